"""When drafts help and when they hurt: vLLM's study of 2024, and MagicDec's exception for long contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servesim.contracts import Batch, build_params, speculators
from servesim.cost import build_cost_model
from servesim.experiments.reproduce import Outcome, Row, experiment
from servesim.hardware import Gpu, ModelSpec
from servesim.simulation import simulate

RATES = (1.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0)
SHAREGPT = "synth:prompt=220,output=190"
"""Mean lengths of ShareGPT prompts and answers in vLLM's benchmark."""
SUMMARIES = "synth:prompt=900,output=100"
"""CNN/DailyMail: an article in, some sentences out."""
ALPHA = 0.58
"""Acceptance of the 0.5B drafter, set so that the speed-up at 1 request/s is the published one."""
LOOKUP_US = 650.0
"""Time of one n-gram lookup in the engine of 2024, a loop over sequences, set so that the slowdown is the published
one."""
DRAFT = f"draft-model:model=qwen3-0.6b,k=4,scorer=batch-expansion|independent:alpha={ALPHA}"
LOOKUP = f"ngram:k=5,scorer=batch-expansion,host_us_per_sequence={LOOKUP_US}|copy:"
FREE_LOOKUP = "ngram:k=5|copy:"
ADAPTIVE = f"draft-model:model=qwen3-0.6b,k=4,adapt=goodput|independent:alpha={ALPHA}"


@experiment(
    "speculation-crossover",
    claim="Drafts speed up a lightly loaded server and slow down a busy one, unless contexts are long",
    source="vLLM blog 2024-10-17 (Llama-3-70B, 4 x H100); MagicDec (arXiv 2408.11049)",
)
def crossover() -> Outcome:
    """End-to-end latency without drafts over that with them, by load."""
    outcome = Outcome()
    methods = {
        "0.5B drafter on ShareGPT": (SHAREGPT, DRAFT),
        "n-gram on CNN/DM": (SUMMARIES, LOOKUP),
        "n-gram on CNN/DM, lookups free": (SUMMARIES, FREE_LOOKUP),
        "0.5B drafter, k by goodput": (SHAREGPT, ADAPTIVE),
    }
    found = {name: [_speed_up(trace, method, rate) for rate in RATES] for name, (trace, method) in methods.items()}
    draft, ngram, free, adaptive = found.values()
    outcome.rows += [
        _row("ShareGPT, 0.5B drafter, 1 request/s", 1.5, draft[0], note=f"acceptance set by it: {ALPHA}"),
        _row(
            "ShareGPT, 0.5B drafter, high load",
            1 / 1.4,
            min(draft),
            within=0.1,
            note="the study does not say how high; " + _passes(draft, 1 / 1.4),
        ),
        _row(
            "CNN/DM, n-gram, 1 request/s",
            2.8,
            ngram[0],
            within=0.1,
            note="with the acceptance measured on code edits, 2.96 tokens a step; summaries copy more",
        ),
        _row(
            "CNN/DM, n-gram, high load",
            1 / 1.8,
            min(ngram),
            note=f"set by it: {LOOKUP_US:g} us a lookup, one sequence after the other; with free lookups "
            f"{min(free):.2f}, since most of a busy server's time goes to prompts there",
        ),
        Row("k by goodput, worst load", "never slower", f"{min(adaptive):.2f}", _verdict(min(adaptive) > 0.97)),
    ]
    outcome.notes.append("verification by batch expansion, synchronous scheduling, kernel times alone")
    outcome.figures["speculation-crossover.svg"] = lambda path: _draw(path, found)
    _magicdec(outcome)
    return outcome


def _speed_up(trace: str, method: str, rate: float) -> float:
    speculation, _, acceptance = method.partition("|")
    base: dict[str, Any] = {
        "trace": f"{trace},rate={rate}",
        "requests": 250,
        "model": "llama-3.1-70b",
        "gpu": "h100",
        "tp": 4,
        "kv": "paged",
        "host": "none",
        "engine": {"max_model_len": 4096, "async_scheduling": False},
    }
    plain = simulate(base)
    drafted = simulate(base, speculation=speculation, acceptance=acceptance)
    latencies = [run.summary["latency_ms"]["e2el"]["mean"] for run in (plain, drafted)]
    return float(latencies[0] / latencies[1])


def _magicdec(outcome: Outcome) -> None:
    """Speed-up of decoding alone, from what steps cost; Llama-3.1-8B on eight H100."""
    target, gpu = ModelSpec.load("llama-3.1-8b"), Gpu.load("h100")
    method, values = speculators.resolve("sparse-kv:k=3,budget=512")
    drafter = method(build_params("speculation", method.Params, dict(values)), target)
    cost = build_cost_model(target, gpu, 8, speculator=drafter)
    plain = build_cost_model(target, gpu, 8)
    tokens = 1 + sum(0.85**i for i in (1, 2, 3))
    ratios = {}
    for context in (1024, 32_768):
        for batch in (32, 256):
            step = _decode(batch, context, 0)
            verify = _decode(batch, context, 3)
            ratios[context, batch] = tokens * plain.price(step).ns / cost.price(verify).ns
    outcome.rows.append(_row("MagicDec, 32k contexts, batch 256", 2.0, ratios[32_768, 256], within=0.1))
    outcome.rows.append(Row("MagicDec, 32k contexts, batch 32", "up to 2.00", f"{ratios[32_768, 32]:.2f}", "shown"))
    long, short = (ratios[context, 256] / ratios[context, 32] for context in (32_768, 1024))
    simulated = f"times {long:.2f}; at 1k contexts {short:.2f}"
    outcome.rows.append(Row("from batch 32 to 256", "rises with long contexts", simulated, _verdict(long > 1 > short)))


def _row(what: str, published: float, simulated: float, within: float | None = None, note: str = "") -> Row:
    """A speed-up; without `within` a constant was set by it."""
    verdict = "calibrated" if within is None else _verdict(abs(simulated / published - 1) <= within)
    return Row(what, f"{published:.2f}", f"{simulated:.2f}", verdict, note)


def _passes(ratios: list[float], level: float) -> str:
    """Between which loads a falling ratio passes a level."""
    after = next((i for i, ratio in enumerate(ratios) if ratio < level), None)
    if not after:
        return f"it does not pass {level:.2f} here"
    return f"it passes {level:.2f} between {RATES[after - 1]:g} and {RATES[after]:g} requests/s"


def _verdict(holds: bool) -> str:
    return "matches" if holds else "differs"


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


def _draw(path: Path, found: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "servesim"}):
        figure, axes = plt.subplots(figsize=(7, 4))
        for name, ratios in found.items():
            axes.plot(RATES, ratios, marker="o", label=name)
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_xlabel("requests/s")
        axes.set_ylabel("mean latency without drafts / with")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
