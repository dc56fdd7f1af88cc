"""Kernel rates: compared with the data sheet, fused attention with three kernels, weight formats with bf16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.cost.breakdown import ATTENTION_PREFILL, breakdown
from servesim.hardware import Gpu, ModelSpec

from . import Bars, Curve, Given, Lines, Outcome, Row, amount, experiment
from .batches import cost_of, prompts, step_of
from .outcome import COURSE

LINEAR = ("qkv", "attention_out", "up", "down")
"""Operators whose weights depend on the format."""


@experiment(
    "kernels-and-roofline",
    group="time",
    claim="Real engines reach about 80 % of the roofline",
    source=f"{COURSE}; kernel timings of aiconfigurator-core",
)
def kernels_and_roofline(given: Given) -> Outcome:
    """Compare the data sheet's time with the measured one, by step and by operator."""
    outcome = Outcome()
    ideal, measured = cost_of(given["base"], kernel_tables="ideal"), cost_of(given["base"])
    served = cost_of(given["base"], host=given["host"])
    shares: dict[str, dict[str, float]] = {}
    for name, kind in given["steps"].items():
        batch = step_of(kind, given["context"])
        least = ideal.price(batch)
        kernels, engine = (100 * least.ns / cost.price(batch).ns for cost in (measured, served))
        low, high = (_operators(breakdown(cost, batch)) for cost in (ideal, measured))
        shares[name] = {op: 100 * low[op] / high[op] for op in given["operators"]}
        formula = 100 * measured.price(batch).shares[3]
        outcome.near(
            f"share of the roofline, a {_name(kind)}",
            80,
            engine,
            "%",
            within=0.0625,  # 75 to 85: "about"
            note=f"kernels alone {kernels:.0f} %; {_range(shares[name])}; {formula:.0f} % of that by formula",
            cause="measured kernels stay below it, those of prompts more so, in attention most of all",
        )
    outcome.notes.append(
        f"engine: the host terms {given['host']}: host time, the clock that long steps lower, and what the tables "
        "overstate beside served steps (KV read too slowly, odd GEMMs)"
    )
    drawn = given["drawn"]
    rows = {op: [shares[name][op] for name in drawn] for op in given["operators"]}
    outcome.figures.append(
        Bars(
            name="operators",
            title=f"Share of the roofline by operator, {given['base']['model']}, one H100",
            alt="; ".join(f"{name}: {_range(shares[name])}" for name in drawn) + ".",
            x_label="% of the data sheet's rate",
            rows=rows,
            series=drawn,
            level=(80.0, "80 %"),
        )
    )
    return outcome


def _operators(times: Mapping[str, float]) -> dict[str, float]:
    """Return the times of a step that has only one kind of attention, under its common name."""
    return {name.removesuffix("_decode").removesuffix("_prefill"): ns for name, ns in times.items()}


def _name(kind: Mapping[str, int]) -> str:
    return f"decode step of {kind['decode']}" if "decode" in kind else f"prompt of {kind['prompt']:,}"


def _range(shares: Mapping[str, float]) -> str:
    low, high = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    return f"{low} {shares[low]:.0f} % to {high} {shares[high]:.0f} %"


@experiment(
    "flash-attention",
    group="time",
    claim="FlashAttention makes attention 2 to 4 times as fast; the second version reaches 70 % of the arithmetic",
    source=f"{COURSE}; Dao et al., arXiv 2205.14135 and 2307.08691",
)
def flash_attention(given: Given) -> Outcome:
    """Compare attention of whole prompts, fused and not, and its effect on a step."""
    outcome = Outcome()
    lengths, told = given["lengths"], given["told"]
    curves = []
    for name, gpu in given["gpus"].items():
        fused = cost_of(given["base"], gpu=gpu)
        eager = cost_of(given["base"], gpu=gpu, engine={**given["base"]["engine"], "attention_backend": "eager"})
        pairs = [(breakdown(eager, prompts(n)), breakdown(fused, prompts(n))) for n in lengths]
        ratio = [slow[ATTENTION_PREFILL] / fast[ATTENTION_PREFILL] for slow, fast in pairs]
        whole = [sum(slow.values()) / sum(fast.values()) for slow, fast in pairs]
        curves += [Curve(f"attention, {name}", lengths, ratio), Curve(f"whole prompt, {name}", lengths, whole)]
        at = lengths.index(told)
        note = f"fused kernel measured, the three by formula; the whole prompt is {whole[at]:.2f} times as fast"
        _speed_up(outcome, f"attention over a prompt of {told:,}, {name}", ratio[at], note, name)
        spec = ModelSpec.load(given["base"]["model"])
        times = [fast[ATTENTION_PREFILL] for _, fast in pairs]
        shares = [_utilisation(spec, gpu, n, ns) for n, ns in zip(lengths, times, strict=True)]
        _reached(outcome, name, lengths, shares)
    why = "no kernel table has the first version"
    outcome.add(Row("utilisation of the first FlashAttention", "35 %", "-", "out of reach", why))
    outcome.notes.append(
        "not fused: scores and probabilities of every head written and read once each, at 80 % of the bandwidth"
    )
    outcome.figures.append(
        Lines(
            name="speed-up",
            title=f"Fused over unfused attention, {given['base']['model']}",
            alt="; ".join(f"{c.label}: {amount(c.y[0] or 0)} to {amount(c.y[-1] or 0)}" for c in curves) + ".",
            x_label="tokens of the prompt",
            y_label="speed-up",
            curves=curves,
            log="x",
            level=(1.0, "no difference"),
        )
    )
    return outcome


def _speed_up(outcome: Outcome, what: str, ratio: float, note: str, gpu: str) -> None:
    cause = f"the claim was measured on A100; FlashAttention-3 uses what the {gpu} adds" if gpu != "A100" else ""
    outcome.near(what, (2, 4), ratio, "x", within=0.05, formula=1.0, note=note, cause=cause)


def _utilisation(spec: ModelSpec, gpu: str, length: int, ns: float) -> float:
    """Return the FLOPs of the pairs at or below the diagonal as a percentage of the GPU's peak during that time."""
    flops = 4 * spec.q_size * length**2 / 2 * spec.num_layers
    return 100 * flops / (ns / 1e9) / Gpu.load(gpu).flops["bf16"]


def _reached(outcome: Outcome, name: str, lengths: list[int], shares: list[float]) -> None:
    told = ", ".join(f"{share:.0f} % at {n:,}" for n, share in zip(lengths, shares, strict=True))
    outcome.near(
        f"utilisation of fused attention over a prompt of {lengths[-1]:,}, {name}",
        70,
        shares[-1],
        "%",
        within=0.1,
        note=told,
        cause="70 % was measured without a causal mask; with one, blocks on the diagonal are computed in full and "
        "counted by half",
    )


@experiment(
    "quantised-kernels",
    group="time",
    claim="fp8 is 1.8 times as fast, int8 1.2 or 1.5 to 2, int4 2 to 3, 3 bits 3 to 4, BitNet 4 to 8",
    source=f"{COURSE}; kernel timings of aiconfigurator-core",
)
def quantised_kernels(given: Given) -> Outcome:
    """Compare steps by weight format with bf16: one decode, many, and a prompt."""
    outcome = Outcome()
    outcome.notes.append(
        "a claim is reproduced if it holds for one decode, many, and a prompt, and partly if for some of them; formats "
        "of the weights alone help while a step reads them for few tokens"
    )
    regimes = {name: step_of(kind, given["context"]) for name, kind in given["regimes"].items()}
    drawn: dict[str, list[float | None]] = {}
    for one in given["formats"]:
        base = {**given["base"], "gpu": one["gpu"], "kernel_tables": one.get("tables")}
        wide, narrow = cost_of(base), cost_of(base, dtype=one["dtype"])
        linear, steps, formula = {}, {}, []
        for name, batch in regimes.items():
            slow, fast = breakdown(wide, batch), breakdown(narrow, batch)
            linear[name] = sum(slow[op] for op in LINEAR) / sum(fast[op] for op in LINEAR)
            steps[name] = sum(slow.values()) / sum(fast.values())
            formula.append(narrow.price(batch).shares[3])
        drawn[f"{one['dtype']}, {one['gpu'].upper()}"] = list(steps.values())
        _format(outcome, one, linear, steps, sum(formula) / len(formula))
    _contradiction(outcome, drawn)
    names = list(regimes)
    outcome.figures.append(
        Bars(
            name="formats",
            title=f"Speed of a step against bf16, {given['base']['model']}",
            alt="; ".join(f"{k}: {', '.join(amount(v or 0) for v in values)}" for k, values in drawn.items())
            + f" ({', '.join(names)}).",
            x_label="speed-up",
            rows=drawn,
            series=names,
            level=(1.0, "bf16"),
            caption="3 bits and 1.58 bits by formula, the others from measured kernels.",
        )
    )
    return outcome


def _format(
    outcome: Outcome, one: Given, linear: Mapping[str, float], steps: Mapping[str, float], formula: float
) -> None:
    """Add a row on the gains of the linear layers over all steps, with the mean share of these that is by formula."""
    origin = "by formula" if one.get("tables") else "measured"
    outcome.near(
        f"{one['name']}, {one['gpu'].upper()}",
        one["claim"],
        [*linear.values()],
        "x",
        formula=formula,
        told=f"{min(linear.values()):.2f} to {max(linear.values()):.2f} x",
        note=f"linear layers, {origin}: {_told(linear)}; whole steps: {_told(steps)}",
        cause="kernels of narrow weights reach less of the roofline than those of bf16",
    )


def _told(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())


def _contradiction(outcome: Outcome, drawn: Mapping[str, Any]) -> None:
    found = ", ".join(f"{name} {min(v):.2f} to {max(v):.2f} x" for name, v in drawn.items() if name.startswith("int8"))
    outcome.add(
        Row(
            "LLM.int8() in the same text",
            "1.2 x faster, and 15 to 23 % slower",
            found,
            "corrected",
            "the text contradicts itself: 15 to 23 % slower is LLM.int8(), which computes outlier columns in 16 bits "
            "apart (arXiv 2208.07339; in no kernel table); plain int8 kernels are the ones that are faster",
        )
    )
