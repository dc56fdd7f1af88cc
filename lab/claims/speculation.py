"""Gains and losses from drafts: vLLM's 2024 study, and MagicDec's exception for long contexts."""

from __future__ import annotations

from typing import Any

from servesim.contracts import Batch, build_params, speculators
from servesim.cost import build_cost_model
from servesim.hardware import Gpu, ModelSpec
from servesim.hardware.footprint import Load, fit
from servesim.run.simulate import simulate

from . import Curve, Given, Lines, Outcome, Row, experiment


@experiment(
    "speculation-crossover",
    group="published",
    claim="Drafts speed up a lightly loaded server and slow down a busy one, unless contexts are long",
    source="vLLM blog 2024-10-17 (Llama-3-70B, 4 x H100); MagicDec (arXiv 2408.11049)",
)
def crossover(given: Given) -> Outcome:
    """Return the ratio of end-to-end latency without drafts to that with drafts, by load."""
    outcome = Outcome()
    alpha, scorer, lookup = f"independent:alpha={given['alpha']}", f"scorer={given['scorer']}", given["lookup"]
    timed = f"{lookup},{scorer},host_us_per_sequence={given['lookup_us']}"
    methods = {
        "0.5B drafter on ShareGPT": (given["sharegpt"], f"{given['drafter']},{scorer}", alpha),
        "n-gram on CNN/DM": (given["summaries"], timed, "copy:"),
        "n-gram on CNN/DM, lookups free": (given["summaries"], lookup, "copy:"),
        "0.5B drafter, k by goodput": (given["sharegpt"], f"{given['drafter']},adapt=goodput", alpha),
    }
    rates = given["rates"]
    found = {name: [_speed_up(given["base"], *method, rate) for rate in rates] for name, method in methods.items()}
    draft, ngram, free, adaptive = found.values()
    _rows(outcome, given, draft, ngram, min(free))
    outcome.holds("k by goodput, worst load", "never slower", f"{min(adaptive):.2f}", min(adaptive) > 0.97)
    outcome.notes.append("verification by batch expansion, synchronous scheduling, kernel times alone")
    said = "; ".join(f"{name}: {', '.join(f'{v:.2f}' for v in ratios)}" for name, ratios in found.items())
    outcome.figures.append(
        Lines(
            name="crossover",
            title="Mean latency without drafts over that with them",
            alt=f"At {', '.join(f'{rate:g}' for rate in rates)} requests/s: {said}.",
            x_label="requests/s",
            y_label="speed-up",
            curves=[Curve(name, rates, ratios) for name, ratios in found.items()],
            level=(1.0, "neither better nor worse"),
        )
    )
    _magicdec(outcome, given["magicdec"])
    return outcome


def _rows(outcome: Outcome, given: Given, draft: list[float], ngram: list[float], free: float) -> None:
    light = f"acceptance set by it: {given['alpha']}"
    outcome.add(Row("ShareGPT, 0.5B drafter, 1 request/s", "1.50", f"{draft[0]:.2f}", "calibrated", light))
    outcome.near(
        "ShareGPT, 0.5B drafter, high load",
        1 / 1.4,
        min(draft),
        within=0.1,
        note="the study does not say how high; " + _passes(given["rates"], draft, 1 / 1.4),
    )
    outcome.near(
        "CNN/DM, n-gram, 1 request/s",
        2.8,
        ngram[0],
        within=0.1,
        note="with the acceptance measured on code edits, 2.96 tokens a step; summaries copy more",
    )
    note = (
        f"set by it: {given['lookup_us']:g} us a lookup, one sequence after the other; with free lookups {free:.2f}, "
        "since most of a busy server's time goes to prompts there"
    )
    outcome.add(Row("CNN/DM, n-gram, high load", f"{1 / 1.8:.2f}", f"{min(ngram):.2f}", "calibrated", note))


def _speed_up(base: Given, trace: str, speculation: str, acceptance: str, rate: float) -> float:
    settings: dict[str, Any] = {**base, "trace": f"{trace},rate={rate}"}
    runs = (simulate(settings), simulate(settings, speculation=speculation, acceptance=acceptance))
    plain, drafted = (run.summary["latency_ms"]["e2el"]["mean"] for run in runs)
    return float(plain / drafted)


def _magicdec(outcome: Outcome, given: Given) -> None:
    """Add the speedup of decoding alone, from the price of steps, for the largest number of sequences that the GPUs can
    hold."""
    short, long = given["contexts"]
    for name, published in given["models"].items():
        few, *_, many = (batch for batch in given["batches"] if batch <= _held(name, given, long))
        pairs = [(context, batch) for context in (short, long) for batch in (few, many)]
        gains = {(context, batch): _gain(name, given, context, batch) for context, batch in pairs}
        note = f"acceptance {given['alpha']} and drafts of {given['speculation']} are assumed"
        what = f"MagicDec, {name}, contexts of {long:,}, batch {many}"
        outcome.near(what, published, gains[long, many], within=0.1, note=note)
        rise, fall = (gains[context, many] / gains[context, few] for context in (long, short))
        text = f"times {rise:.2f}; at contexts of {short:,} {fall:.2f}"
        outcome.holds(f"MagicDec, {name}, from batch {few} to {many}", "rises with long contexts", text, rise > 1)


def _held(name: str, given: Given, context: int) -> int:
    """Return the number of sequences that fit in memory in addition to the weights."""
    return fit(ModelSpec.load(name), Gpu.load(given["gpu"]), given["tp"], "bf16", Load(context)).sequences


def _gain(name: str, given: Given, context: int, batch: int) -> float:
    target, gpu = ModelSpec.load(name), Gpu.load(given["gpu"])
    method, values = speculators.resolve(given["speculation"])
    drafter = method(build_params("speculation", method.Params, dict(values)), target)
    cost = build_cost_model(target, gpu, given["tp"], speculator=drafter)
    plain = build_cost_model(target, gpu, given["tp"])
    tokens = 1 + sum(given["alpha"] ** i for i in (1, 2, 3))
    return float(tokens * plain.price(_decode(batch, context, 0)).ns / cost.price(_decode(batch, context, 3)).ns)


def _passes(rates: list[float], ratios: list[float], level: float) -> str:
    """Return the two loads between which a decreasing ratio crosses a level."""
    after = next((i for i, ratio in enumerate(ratios) if ratio < level), None)
    if not after:
        return f"it does not pass {level:.2f} here"
    return f"it passes {level:.2f} between {rates[after - 1]:g} and {rates[after]:g} requests/s"


def _decode(batch: int, context: int, drafts: int) -> Batch:
    queries, total = 1 + drafts, batch * context
    return Batch(
        linear_tokens=batch * queries,
        decode_count=batch,
        decode_context_sum=total,
        decode_context_max=context,
        queries_per_sequence=queries,
        sampled=batch,
        drafts=batch * drafts,
        draft_k=drafts,
        sampled_context=total,
    )
