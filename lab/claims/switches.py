"""Parts of an engine switched on and off: CUDA graphs, tensor parallelism, batches, the engine as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servesim.cost.host import HostTerms
from servesim.run.simulate import simulate

from . import Curve, Given, Lines, Outcome, Row, amount, experiment
from .batches import cost_of, decode, formula_share, step_of
from .outcome import COURSE


@experiment(
    "engine-switches",
    group="time",
    claim="CUDA graphs 1.1 to 1.5 x, tensor parallelism near-linear, larger batches 2 to 8 x, an optimised engine 3 to "
    "10 x, TensorRT-LLM 13 % above vLLM",
    source=COURSE,
)
def engine_switches(given: Given) -> Outcome:
    """Switch each part on and off."""
    outcome = Outcome()
    graphs(outcome, given["graphs"])
    _parallel(outcome, given["parallel"])
    _batches(outcome, given["batching"])
    _engine(outcome, given["engine"])
    _rival(outcome, given["rival"])
    return outcome


def graphs(outcome: Outcome, given: Given) -> None:
    """Compare steps launched kernel by kernel with steps replayed from a graph, by model and batch size."""
    each = HostTerms.load(given["without"]).launch_per_kernel
    for name, base in given["models"].items():
        on, off = (cost_of(base, host=given["with"]) for _ in range(2))
        assert off.terms is not None
        off.terms = replace(off.terms, launch_per_kernel=each)
        steps = [decode(n, given["context"]) for n in given["batches"]]
        gains = [off.price(step).ns / on.price(step).ns for step in steps]
        told = ", ".join(f"{gain:.2f} x at batch {n}" for gain, n in zip(gains, given["batches"], strict=True))
        kernels = off.host(steps[0]).launching / each
        note = f"{kernels:.0f} kernels a step"
        if name == given["set_by"]:
            note = f"the launch time was set by one published step of this model (8.4 ms); {note}"
            outcome.add(Row(f"CUDA graphs, {name}", "1.1 to 1.5 x", told, "calibrated", note))
            continue
        cause = "a step that lasts longer than launching its kernels gains nothing, a shorter one more"
        outcome.near(f"CUDA graphs, {name}", (1.1, 1.5), gains, "x", told=told, note=note, cause=cause)


def _parallel(outcome: Outcome, given: Given) -> None:
    costs = {n: cost_of(given["base"], tp=n) for n in given["gpus"]}
    curves = []
    for name, kind in given["regimes"].items():
        batch = step_of(kind, given["context"])
        times = [cost.price(batch).ns for cost in costs.values()]
        gains = [times[0] / ns for ns in times]
        curves.append(Curve(name, given["gpus"], gains))
        told = ", ".join(f"{gain:.2f} x on {n}" for gain, n in zip(gains[1:], given["gpus"][1:], strict=True))
        efficiency = 100 * gains[-1] / given["gpus"][-1]
        outcome.holds(
            f"tensor parallelism, 70B, {name}",
            "near-linear",
            told,
            efficiency >= 80,
            note=f"{efficiency:.0f} % of linear on {given['gpus'][-1]}, all-reduces measured",
            cause="two all-reduces a layer, and kernels too small for the GPU, do not shrink with it",
        )
    outcome.figures.append(
        Lines(
            name="tensor-parallel",
            title=f"Speed of a step over GPUs, {given['base']['model']}",
            alt="; ".join(f"{c.label} {amount(c.y[-1] or 0)} times on {given['gpus'][-1]}" for c in curves) + ".",
            x_label="GPUs",
            y_label="speed-up",
            curves=[*curves, Curve("linear", given["gpus"], given["gpus"])],
        )
    )


def _throughput(base: Mapping[str, Any], clients: int, requests: int) -> tuple[float, float]:
    """Return the output tokens/s, and the mean TPOT in ms, of `clients` clients that send a request when the previous
    one is answered."""
    settings = {**base, "requests": requests, "rate": float("inf"), "clients": {"max_concurrency": clients}}
    summary = simulate(settings).summary
    return float(summary["throughput"]["output_throughput"]), float(summary["latency_ms"]["tpot"]["mean"])


def _batches(outcome: Outcome, given: Given) -> None:
    found = {n: _throughput(given["base"], n, n * given["rounds"]) for n in given["clients"]}
    one = found[given["clients"][0]][0]
    gains = {n: speed / one for n, (speed, _) in found.items()}
    within = [n for n, gain in gains.items() if 2 <= gain <= 8]
    last = given["clients"][-1]
    told = [*within, last] if within else [last]
    outcome.near(
        "throughput of larger batches",
        (2, 8),
        [gain for n, gain in gains.items() if n > given["clients"][0]],
        "x",
        told=", ".join(f"{gains[n]:.1f} x at {n}" for n in told),
        note=f"a factor says nothing without the batch; time per token is {found[given['clients'][0]][1]:.1f} ms for "
        f"one client, {found[told[0]][1]:.1f} ms for {told[0]}, {found[last][1]:.1f} ms for {last}",
    )
    outcome.figures.append(
        Lines(
            name="batching",
            title=f"Throughput over time per token, {given['base']['model']} on one H100",
            alt="Throughput rises almost for nothing at first; then time per token grows faster than it.",
            x_label="mean TPOT, ms",
            y_label="output tokens/s",
            curves=[Curve(f"{given['clients'][0]} to {last} clients", *_columns(found))],
        )
    )


def _columns(found: Mapping[int, tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [tpot for _, tpot in found.values()], [speed for speed, _ in found.values()]


def _engine(outcome: Outcome, given: Given) -> None:
    runs = [simulate({**given["base"], **given[key]}).summary for key in ("plain", "optimised")]
    plain, optimised = (float(run["throughput"]["output_throughput"]) for run in runs)
    outcome.near(
        "an optimised engine against a model served by hand",
        (3, 10),
        optimised / plain,
        "x",
        formula=formula_share(*runs),
        note=f"{amount(plain)} to {amount(optimised)} output tokens/s, all requests there at once",
        cause="static batches of 8 wait for their longest answer while continuous batches fill the GPU",
    )


def _rival(outcome: Outcome, given: Given) -> None:
    base, load = given["base"], (given["clients"], given["requests"])
    variants = {"engine": {}, "rival": {"kernel_tables": given["tables"]}, "kernels": {"host": "none"}}
    speed = {name: _throughput({**base, **change}, *load)[0] for name, change in variants.items()}
    ahead, most = (100 * (speed[name] / speed["engine"] - 1) for name in ("rival", "kernels"))
    outcome.holds(
        "TensorRT-LLM above vLLM at high concurrency",
        "13 %",
        f"{ahead:+.1f} % by its kernels",
        10 <= ahead <= 16,
        note=f"GEMMs and attention measured in TensorRT-LLM and in vLLM, under the same engine, with {load[0]} clients",
        cause=f"what is more must come from the engine: one that added nothing to vLLM's kernels, neither host time "
        f"nor a lowered clock, would be {most:.1f} % ahead",
    )


@experiment(
    "no-kv-cache",
    group="time",
    claim="Without a KV cache 256 tokens from a prompt of 4,096 process about a million tokens; a cache is worth 10 to "
    "100 x",
    source=COURSE,
)
def no_kv_cache(given: Given) -> Outcome:
    """Serve the same request with keys and values cached, and with every token recomputed in every step."""
    outcome = Outcome()
    told = given["told"]
    kept, recomputed = _pair(given, told)
    what = f"tokens computed for {told['output']} from {told['prompt']:,}, no cache"
    note = f"{recomputed[0] + told['output']:,} if every step counts the token it produces"
    outcome.near(what, 1e6, recomputed[0], "tokens", within=0.1, note=note)
    outcome.near(
        "tokens computed without a cache over those with one",
        4000,
        recomputed[0] / kept[0],
        "x",
        within=0.1,
        otherwise="corrected",
        cause=f"with a cache the prompt is computed too: {kept[0]:,} tokens, not {told['output']}; "
        f"{(recomputed[0] + told['output']) / kept[0]:.0f} x if every step counts the token it produces",
    )
    for one in given["others"]:
        kept, recomputed = _pair(given, one)
        outcome.near(
            f"what the cache is worth in time, {one['prompt']:,} in, {one['output']:,} out",
            (10, 100),
            recomputed[1] / kept[1],
            "x",
            note=f"tokens {amount(recomputed[0] / kept[0])} x; "
            f"{amount(recomputed[1], 's')} against {amount(kept[1], 's')}",
            cause="a step over some hundred tokens takes little longer than one over one: both read the weights",
        )
    return outcome


def _pair(given: Given, one: Mapping[str, int]) -> tuple[tuple[int, float], tuple[int, float]]:
    trace = f"synth:rate=1,prompt={one['prompt']},output={one['output']}"
    return _computed({**given["base"], **given["with"], "trace": trace}), _computed(
        {**given["base"], **given["without"], "trace": trace}
    )


def _computed(settings: Mapping[str, Any]) -> tuple[int, float]:
    """Return the number of tokens through the linear layers, and the seconds to the last token."""
    run = simulate(settings)
    tokens = ((run.steps.prefill_tokens + run.steps.decode_count) * run.steps.k).sum()
    return int(tokens), float(run.summary["latency_ms"]["e2el"]["mean"]) / 1e3
