"""Held-out whole steps: compositions of real traffic run through a whole model, compared with the sum of its kernels.

The model is timed as a whole (`whole_model`), separately from the timing of single kernels. A prediction is the cost
model's price with the profile's tables. One parameter is fitted, on every other composition: the host time of a step.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from servesim.calibrate.points import Shard
from servesim.calibrate.timing import Device, Timing
from servesim.contracts.cost import Batch
from servesim.cost.model import TableCostModel
from servesim.errors import UserError

KINDS = {"decode": 40, "prefill": 30, "mixed": 50}
"""Number of compositions of each kind."""
TRACES = ("preset:azure-conv-2023", "preset:azure-code-2023", "preset:mooncake-conversation")
_SIZES = (1, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
HEADER = (
    "kind", "tokens", "sequences", "measured_us", "p10_us", "p90_us", "predicted_us", "method", "eager_us", "pieces",
)  # fmt: skip


@dataclass(frozen=True)
class Composition:
    """One step: (new, past) of every sequence, prompts first."""

    kind: str
    pieces: tuple[tuple[int, int], ...]

    def batch(self) -> Batch:
        """Return the batch that the cost model prices: sequences with one new token and some past tokens are
        decodes."""
        contexts = [past + 1 for new, past in self.pieces if new == 1 and past]
        return Batch(
            sum(new for new, _ in self.pieces),
            [(new, past) for new, past in self.pieces if new > 1 or not past],
            decode_count=len(contexts),
            decode_context_sum=sum(contexts),
            decode_context_sumsq=sum(c * c for c in contexts),
            decode_context_max=max(contexts, default=0),
            sampled=len(self.pieces),
        )


@dataclass(frozen=True)
class Step:
    """Composition with its measured and predicted times in microseconds."""

    composition: Composition
    timing: Timing
    predicted_us: float

    @property
    def error(self) -> float:
        """Signed relative error."""
        return float(self.predicted_us / self.timing.median_us - 1.0)


def compositions(
    tokens: int, context: int, batch: int, kv_tokens: int, share: float = 1.0, seed: int = 1
) -> list[Composition]:
    """Return steps that a server would run on requests with the lengths of real traces, within the limits. `share` is
    the fraction of the full set to return."""
    from servesim.traces import open_trace

    rng = random.Random(seed)
    lengths = [
        (int(p), int(o))
        for name in TRACES
        for trace in [open_trace(name, requests=300)]
        for p, o in zip(trace.prompt_len, trace.output_len, strict=True)
    ]

    def decodes(count: int) -> list[tuple[int, int]]:
        drawn = [rng.choice(lengths) for _ in range(count)]
        return [(1, max(1, min(context, p + rng.randrange(o)))) for p, o in drawn]

    def prompt(most: int) -> tuple[int, int]:
        new = rng.choice(lengths)[0]
        past = 0 if rng.random() < 0.7 else min(context, rng.choice(lengths)[0])
        return max(2, min(most, new)), past

    found = []
    for kind, count in KINDS.items():
        for _ in range(max(3, round(count * share))):
            size = min(batch, rng.choice(_SIZES))
            if kind == "decode":
                pieces = decodes(size)
            elif kind == "prefill":
                prompts = rng.choice((1, 1, 1, 2, 4))
                pieces = [prompt(tokens // prompts) for _ in range(prompts)]
            else:
                pieces = [prompt(max(2, tokens - size)), *decodes(size)]
            while sum(new + past + 16 for new, past in pieces) > kv_tokens and len(pieces) > 1:
                pieces.pop()
            if sum(new + past + 16 for new, past in pieces) <= kv_tokens:
                found.append(Composition(kind, tuple(pieces)))
    return found


def run_steps(
    device: Device,
    ops: Any,
    shard: Shard,
    cost: TableCostModel,
    found: Sequence[Composition],
    deadline: Callable[[], bool],
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> list[Step]:
    """Measure the compositions in an order that mixes the kinds, until the deadline."""
    from servesim.calibrate.whole_model import WholeModel

    most = max(sum(new + past + 16 for new, past in c.pieces) for c in found)
    model = WholeModel(ops, shard, most)
    steps = []
    order = list(found)
    random.Random(0).shuffle(order)
    with ops.torch.no_grad():
        for i, composition in enumerate(order):
            if deadline():
                break
            progress("steps", i, len(order))
            if sum(new + past + 16 for new, past in composition.pieces) > model.kv_tokens:
                continue
            prepared = model.prepare(composition.pieces)
            try:
                timing = device.time([partial(model.step, prepared)])
            except (RuntimeError, MemoryError):
                device.release()
                continue
            steps.append(Step(composition, timing, cost.price(composition.batch()).gpu_ns / 1e3))
    if not steps:
        raise UserError("no step could be measured: not enough memory or time")
    return steps


def summary(steps: Sequence[Step]) -> dict[str, Any]:
    """Return errors by kind, from kernels alone and with one host time per step, which is fitted on the even steps and
    evaluated on the odd ones. Errors are fractions; times are in microseconds."""
    fitted, judged = steps[::2], steps[1::2]
    host = float(np.median([s.timing.median_us - s.predicted_us for s in fitted]))
    kinds: dict[str, Any] = {}
    for kind in (*KINDS, "all"):
        raw = [s.error for s in steps if kind in (s.composition.kind, "all")]
        with_host = [
            (s.predicted_us + host) / s.timing.median_us - 1.0 for s in judged if kind in (s.composition.kind, "all")
        ]
        if raw:
            kinds[kind] = {"steps": len(raw), **_figures(raw)}
            if with_host:
                kinds[kind]["with_host"] = {"steps": len(with_host), **_figures(with_host)}
    return {"kinds": kinds, "host_us": host}


def _figures(errors: Sequence[float]) -> dict[str, float]:
    sizes = np.abs(errors)
    return {
        "mape": float(sizes.mean()),
        "p95": float(np.percentile(sizes, 95)),
        "bias": float(np.mean(errors)),
    }


def steps_csv(path: Path, steps: Sequence[Step]) -> None:
    """Write one row per step."""
    scratch = path.with_name(path.name + ".partial")
    with scratch.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(HEADER)
        for s in steps:
            c, t = s.composition, s.timing
            out.writerow(
                [
                    c.kind,
                    sum(new for new, _ in c.pieces),
                    len(c.pieces),
                    *(round(v, 2) for v in (t.median_us, t.p10_us, t.p90_us, s.predicted_us)),
                    t.method,
                    "" if t.eager_us is None else round(t.eager_us, 2),
                    " ".join(f"{new}+{past}" for new, past in c.pieces),
                ]
            )
    scratch.replace(path)


def scatter(path: Path, steps: Sequence[Step], title: str) -> None:
    """Plot the error of predicted times relative to measured times, by kind, with a band of 3 percent, as SVG or PNG
    depending on the file suffix."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    for kind, marker in zip(KINDS, "os^", strict=True):
        mine = [s for s in steps if s.composition.kind == kind]
        x, y = [s.timing.median_us / 1e3 for s in mine], [100 * s.error for s in mine]
        axes.scatter(x, y, s=18, marker=marker, alpha=0.75, label=f"{kind} ({len(mine)})")
    axes.axhline(0.0, color="0.4", lw=0.8)
    axes.axhspan(-3, 3, color="0.85", zorder=0)
    axes.set_xscale("log")
    axes.set_xlabel("measured step (ms)")
    axes.set_ylabel("sum of kernels relative to measured, minus 1 (%)")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8)
    scratch = path.with_name("partial-" + path.name)
    with matplotlib.rc_context({"svg.hashsalt": "servesim"}):
        figure.savefig(scratch, metadata={"Date": None} if path.suffix == ".svg" else None)
    scratch.replace(path)
