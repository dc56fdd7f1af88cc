"""Time per token calculated by hand: bytes over bandwidth, and whether the memory suffices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec
from servesim.run.result import Result
from servesim.run.scenario import Scenario
from servesim.run.setup import set_up
from servesim.run.simulate import simulate

from . import Curve, Given, Lines, Outcome, Row, amount, experiment
from .batches import cost_of, decode, formula_share
from .outcome import COURSE


@experiment(
    "decode-time",
    group="time",
    claim="A decode step takes its bytes over the bandwidth: 42 ms for 70B on an H100, 8 to 72 ms for 13B by batch",
    source=f"{COURSE}; data sheets of H100 and A100",
)
def decode_time(given: Given) -> Outcome:
    """Compute the time of replies from a 70B model, and of static batches of a 13B model, at the data sheet's rates."""
    outcome = Outcome()
    _single(outcome, given["ideal"], given["single"])
    _batches(outcome, given["ideal"], given["batch"])
    outcome.notes.append(
        "`kernel_tables: ideal` prices every weight once a step, the input embedding included, and keys and values, at "
        "the data sheet's full rates"
    )
    return outcome


def _single(outcome: Outcome, ideal: Given, given: Given) -> None:
    base = {**ideal, "model": given["model"], "trace": given["trace"], "requests": given["requests"]}
    runs = {name: _run(base, gpu=gpu, engine={"ignore_memory": True}) for name, gpu in given["gpus"].items()}
    h100, small, large = (_latency(run, "tpot") for run in runs.values())
    refused, share = _refusal(base), formula_share(*(run.summary for run in runs.values()))
    outcome.near(
        "a decode step of 70B in 16 bits on one H100",
        42,
        h100,
        "ms",
        within=0.03,
        formula=share,
        note=f"ignoring memory: {refused}",
    )
    outcome.near("speed of 70B on one H100 for one user", 24, 1e3 / h100, "tokens/s", within=0.03, formula=share)
    name = given["gpus"]["A100 of 80 GB"]
    by_hand = 150e9 / Gpu.load(name).bandwidth * 1e3
    outcome.add(
        Row(
            "a decode step of 70B on an A100",
            "about 0.1 s",
            f"{amount(small, 'ms')} (40 GB card), {amount(large, 'ms')} (80 GB card)",
            "corrected",
            f"0.1 s is 150 GB over the 1.5 TB/s of the 40 GB card; the 80 GB card reads 150 GB in "
            f"{amount(by_hand, 'ms')}; neither holds them",
        )
    )
    run = next(iter(runs.values()))
    ttft, e2e = _latency(run, "ttft"), _latency(run, "e2el")
    outcome.near(
        "first token of a 100-token prompt, 70B on one H100",
        30,
        ttft,
        "ms",
        within=0.05,
        otherwise="corrected",
        cause="reading the weights once is the floor, however short the prompt",
    )
    outcome.near(
        "end-to-end latency of a 50-token reply over its first token, 70B",
        (5, 10),
        e2e / ttft,
        "x",
        otherwise="corrected",
        cause=f"49 more steps of 42 ms; by the text's own 30 ms and 42 ms {amount(1 + 49 * 42 / 30)} x",
    )


def _batches(outcome: Outcome, ideal: Given, given: Given) -> None:
    base = {**ideal, "model": given["model"]}
    spec = ModelSpec.load(given["model"])
    context = given["prompt"] + 1
    claims = {1: (8.0, 125.0), 64: (23.8, 2690.0), 256: (71.6, 3575.0)}
    for size in given["sizes"]:
        trace = {"trace": f"synth:rate=1,prompt={given['prompt']},output=2", "requests": size, "rate": float("inf")}
        run = _run({**base, **trace}, engine={"ignore_memory": True})
        step, share = _latency(run, "tpot"), formula_share(run.summary)
        read = spec.weight_bytes("bf16") + size * context * spec.kv_bytes_per_token("bf16")
        note = f"{amount(read / 1e9, 'GB')} of weights and KV; {_room({**base, **trace})}"
        ms, speed = claims.get(size, (step, size / step * 1e3))
        cause = "so by its own formula, weights and KV over 3.35 TB/s" if size in claims else ""
        what = f"13B on an H100, {context:,} tokens of context, {size} together"
        told: dict[str, Any] = {"within": 0.003, "formula": share, "otherwise": "corrected", "cause": cause}
        outcome.near(f"{what}: a step", ms, step, "ms", note=note, **told)
        outcome.near(f"{what}: throughput", speed, size / step * 1e3, "tokens/s", **told)
    _draw(outcome, base, given["curve"], context)


def _draw(outcome: Outcome, base: Mapping[str, Any], sizes: list[int], context: int) -> None:
    curves = []
    for label, tables in (("data sheet", "ideal"), ("kernels: measured where they are", None)):
        cost = cost_of(base, kernel_tables=tables)
        curves.append(Curve(label, sizes, [n * 1e9 / cost.price(decode(n, context)).ns for n in sizes]))
    last = "; ".join(f"{c.label} {amount(c.y[0] or 0)} to {amount(c.y[-1] or 0)}" for c in curves)
    outcome.figures.append(
        Lines(
            name="batch",
            title=f"Tokens per second by batch, {base['model']} at {context:,} tokens of context",
            alt=f"Both rise and level off where KV outweighs the weights: from batch {sizes[0]} to {sizes[-1]} {last}.",
            x_label="sequences in the batch",
            y_label="tokens/s",
            curves=curves,
            log="x",
            caption="Memory is ignored; the table says how many the GPU holds.",
        )
    )


def _run(base: Mapping[str, Any], **changes: Any) -> Result:
    return simulate({**base, **changes})


def _latency(run: Result, name: str) -> float:
    return float(run.summary["latency_ms"][name]["mean"])


def _refusal(base: Mapping[str, Any]) -> str:
    """Return the error of a run that does not ignore the memory."""
    try:
        set_up(Scenario.of(base))
    except UserError as error:
        return str(error)
    return "it fits"


def _room(base: Mapping[str, Any]) -> str:
    """Return the number of requests that fit in the GPU's memory at the same time."""
    setup = set_up(Scenario.of(base))
    each = int(setup.trace.prompt_len[0] + setup.trace.max_tokens[0])
    held, wanted = setup.deployment.capacity_tokens // each, len(setup.trace)
    return f"the GPU holds {held} of {wanted}" if held < wanted else "it fits"
