"""Choices of techniques: the course's table of constraints and its quiz, prices of tokens, the path from a script to a
server."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from servesim.contracts import Batch
from servesim.cost import build_cost_model
from servesim.errors import UserError
from servesim.experiments.metrics import METRICS, metric_label
from servesim.hardware import Gpu, ModelSpec
from servesim.run.simulate import simulate

from . import Bars, Curve, Given, Lines, Outcome, Row, experiment
from .batches import decode, formula_share
from .crossed import model_file, search
from .outcome import COURSE

MATTERS = 1.05
"""Minimum gain of a technique that helps: factor on the metric alone, or when it is missing from the best
combination."""


@experiment(
    "choices",
    group="choices",
    claim="Each constraint has its techniques: memory int4 and GQA, latency drafts and FlashAttention, throughput "
    "continuous batching and paging, long context paging and FlashAttention, many GPUs TP",
    source=COURSE,
)
def choices(given: Given) -> Outcome:
    """Find the best combination for each constraint, and the gain of each technique."""
    outcome = Outcome()
    alone: dict[str, Sequence[float | None]] = {}
    for constraint, question in given["constraints"].items():
        found = search(question)
        best, metric = found.ranked()[0], metric_label(question["metric"])
        claimed = question["claimed"]
        brought = {choice: (found.alone(choice), found.in_the_best(choice)) for choice in claimed}
        helps = [max(gains) >= MATTERS for gains in brought.values()]
        told = "; ".join(
            f"{c}: {times(alone_)} alone, {times(best_)} in the best" for c, (alone_, best_) in brought.items()
        )
        left = ", ".join(choice for choice in claimed if choice not in best)
        note = f"the best is without {left}" if left else ""
        what = f"{constraint}: {', '.join(claimed)}"
        outcome.holds(what, "helps", told, helps, otherwise="corrected", note=note, cause="not every one helps")
        gain, start = found.gain(best, found.baseline), ", ".join(found.baseline)
        note = f"{gain:.3g} x in {metric} over {start}" if gain < float("inf") else f"{start} does not fit"
        outcome.add(Row(f"{constraint}: best of {len(found.values)}", "-", ", ".join(best), "shown", note))
        for choice in (c for options in found.options.values() for c in options[1:]):
            gains = found.alone(choice), found.in_the_best(choice)
            alone[f"{constraint}: {choice}"] = [g if 0 < g < float("inf") else None for g in gains]
    outcome.figures.append(
        Bars(
            "gains",
            "What each technique brings",
            "; ".join(f"{row.what}: {row.simulated}" for row in outcome.rows if row.published == "helps"),
            "times better",
            alone,
            ("over the baseline", "best with it / best without"),
            log=True,
            level=(1.0, "no difference"),
        )
    )
    return outcome


def times(gain: float) -> str:
    """Return a gain as `3.4 x`, or as text if nothing runs without the technique."""
    if gain == float("inf"):
        return "makes it fit"
    return f"{gain:.3g} x" if gain else "does not run"


@experiment(
    "quiz-70b-on-2-h100",
    group="choices",
    claim="70B on 2 x H100, throughput only: which techniques?",
    source=f"{COURSE}, a quiz",
)
def quiz(given: Given) -> Outcome:
    """Rank all combinations, and compute the loss without each part of the best one."""
    outcome = Outcome()
    found = search(given)
    ranked = found.ranked()
    best, metric = ranked[0], METRICS[given["metric"]]
    taught = min((c for c in ranked if set(given["taught"]) <= set(c)), key=ranked.index)
    outcome.holds(
        f"{', '.join(given['taught'])}: the table of constraints",
        "the best",
        f"{100 * found.gain(taught, best):.0f} % of the best",
        taught == best,
        otherwise="corrected",
        cause=f"the best is {', '.join(best)}",
    )
    for place, c in enumerate(ranked[: given["shown"]], 1):
        note = f"${found.prices[c]:.2f} per million output tokens"
        outcome.add(Row(f"place {place}", "-", f"{found.values[c]:,.0f} {metric.unit}: {', '.join(c)}", "shown", note))
    rest = {}
    for choice, options in zip(best, found.options.values(), strict=True):
        for other in (o for o in options if o != choice):
            c = found.changed(best, other)
            share = found.gain(c, best)
            rest[f"{other} instead of {choice}"] = [share]
            text = f"{100 * share:.0f} % of it" if share else "does not run"
            outcome.add(Row(f"{other} instead of {choice}", "-", text, "shown", found.errors.get(c, "")))
    outcome.notes.append(f"{len(found.values)} combinations, of which {len(found.errors)} cannot run")
    outcome.figures.append(
        Bars(
            "without",
            "The best combination with one part changed",
            f"The best is {', '.join(best)}; each bar is what is left of its throughput.",
            "share of the best",
            rest,
        )
    )
    return outcome


@experiment(
    "output-price",
    group="choices",
    claim="Output tokens cost 3 to 10 times as much as input tokens",
    source=COURSE,
)
def output_price(given: Given) -> Outcome:
    """Return the ratio of GPU time per output token to GPU time per prompt token, by the number of concurrent
    decodes."""
    outcome = Outcome()
    cost = build_cost_model(ModelSpec.load(given["model"]), Gpu.load(given["gpu"]), given["tp"])
    prompt, context = given["prompt"], given["prompt"] + given["answer"] // 2
    reading = cost.price(Batch(prompt, [(prompt, 0)], sampled=1)).ns / prompt
    ratios = [cost.price(decode(n, context)).ns / n / reading for n in given["batches"]]
    for n, ratio in zip(given["batches"], ratios, strict=True):
        outcome.add(Row(f"output to input, {n} decode together", "-", f"{ratio:.1f} x", "shown"))
    low, high = given["claimed"]
    within = [n for n, ratio in zip(given["batches"], ratios, strict=True) if low <= ratio <= high]
    found = f"it is where {within[0]} to {within[-1]} decode together" if within else "at no batch tried"
    why = "a prompt's tokens share one reading of the weights; an answer's share it with those of other requests alone"
    batches = given["batches"]
    what = f"output to input, {batches[0]} to {batches[-1]} decode together"
    outcome.near(what, (low, high), ratios, "x", note=found, cause=why, otherwise="corrected")
    outcome.figures.append(
        Lines(
            "price",
            "A token of answer over one of prompt",
            f"The ratio falls with the batch, from {ratios[0]:.0f} for one request to {ratios[-1]:.1f}.",
            "requests that decode together",
            "GPU time, output token / input token",
            [Curve(f"{given['model']}, {given['tp']} x {given['gpu']}", given["batches"], ratios)],
            log="xy",
            level=(1.0, "the same"),
        )
    )
    return outcome


@experiment("end-to-end", group="choices", claim="End to end 10-50x, 30-100x", source=COURSE)
def end_to_end(given: Given) -> Outcome:
    """Return the output tokens per second of each stack, with all requests waiting from the start."""
    outcome = Outcome()
    speed: dict[str, float] = {}
    formula: dict[str, float] = {}
    for stack, settings in given["stacks"].items():
        result = simulate({**given["base"], **settings})
        speed[stack] = float(result.summary["throughput"]["output_throughput"])
        formula[stack] = formula_share(result.summary)
    last = list(speed)[-1]
    for stack, value in speed.items():
        ratio = speed[last] / value
        if stack in given["claims"]:
            note = "the text does not say from where"
            share = max(formula[stack], formula[last])
            claimed = given["claims"][stack]
            outcome.near(f"from {stack}", claimed, ratio, "x", formula=share, otherwise="corrected", note=note)
        elif stack != last:
            outcome.add(Row(f"from {stack}", "-", f"{ratio:.3g} x", "shown"))
    outcome.notes.append(
        f"to {last}: {speed[last]:,.0f} output tokens/s; a server has CUDA graphs, FlashAttention, "
        "continuous batching and paging"
    )
    told = "; ".join(f"{stack}: {value:,.0f}" for stack, value in speed.items())
    bars = {stack: [value] for stack, value in speed.items()}
    outcome.figures.append(Bars("throughput", "From a script to a server", told, "output tokens/s", bars, log=True))
    return outcome


OUT_OF_REACH = {
    "distillation losses": "training; what comes of it is a smaller configuration",
    "pruning recipes": "which weights go is decided on data; what comes of it is a smaller configuration",
    "quality loss of quantisation": "no weights and no text here: formats change bytes and arithmetic alone",
}
"""Topics of the texts, mapped to the reason why each is not simulated."""


@experiment(
    "out-of-scope",
    group="choices",
    claim="Distillation, pruning, quality of quantisation, Mamba, image tokens",
    source=COURSE,
)
def out_of_scope(given: Given) -> Outcome:
    """Show the effect of a smaller configuration, the refused settings and their errors, and the features that cannot
    be simulated."""
    outcome = Outcome()

    def token_ms(model: str) -> float:
        return float(simulate({**given["base"], "model": model}).summary["latency_ms"]["tpot"]["mean"])

    with tempfile.TemporaryDirectory(prefix="servesim-") as scratch:
        whole = token_ms(given["model"])
        for what, model in given["smaller"].items():
            faster = whole / token_ms(model_file(model, Path(scratch)))
            outcome.add(Row(f"{what}: speed of a token", "-", f"{faster:.2f} x", "shown", "by its config.json"))
        for what, model in given["hybrids"].items():
            speed = f"{token_ms(model):.2f} ms a token"
            outcome.add(Row(what, "-", speed, "shown", "its state-space layers have prices: hybrids are served"))
        for what, model in given["refused"].items():
            path = model_file(model, Path(scratch))
            try:
                ModelSpec.load(path)
                said = "loads"
            except UserError as error:
                said = "refused: " + str(error).removeprefix(f"model config {Path(path).parent.name}: ")
            outcome.add(Row(what, "-", said, "out of reach", "such a model has no prices here"))
    for what, why in OUT_OF_REACH.items():
        outcome.add(Row(what, "-", "-", "out of reach", why))
    return outcome
