"""Arithmetic intensity: of matrices and attention, calculated by hand, and of the steps of a served trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from servesim.contracts import Batch
from servesim.cost.work import step_work
from servesim.hardware import Gpu, ModelSpec
from servesim.run.simulate import simulate

from . import Curve, Given, Lines, Outcome, Row, amount, experiment
from .batches import decode
from .outcome import COURSE


@experiment(
    "arithmetic-intensity",
    group="time",
    claim="A matrix product over T tokens does about T FLOP per byte, an H100 breaks even at 295; decode stays below",
    source=f"{COURSE}; data sheet of the H100",
)
def arithmetic_intensity(given: Given) -> Outcome:
    """Compute intensities from shapes, and determine the intensities of a run's steps."""
    outcome = Outcome()
    gpu = Gpu.load(given["gpu"])
    ridge = gpu.flops["bf16"] / gpu.bandwidth
    outcome.near("FLOP per byte at which an H100 breaks even, 16 bits", 295, ridge, within=0.005)
    _matrices(outcome, given["matrix"], given["tokens"])
    _attention(outcome, given["attention"])
    _served(outcome, given, gpu, ridge)
    return outcome


def gemm_intensity(m: int, n: int, k: int) -> float:
    """Return the FLOP per byte of [m, k] x [k, n], with each matrix moved once at 2 bytes per element."""
    return 2 * m * n * k / (2 * (m * k + n * k + m * n))


def _matrices(outcome: Outcome, matrix: list[int], tokens: list[int]) -> None:
    k, n = matrix
    few, many = (gemm_intensity(m, n, k) for m in tokens)
    what = f"intensity of {{}} tokens on a {k:,} x {n:,} matrix"
    outcome.near(what.format(tokens[0]), 270, few, within=0.01)
    work, moved = (2 * tokens[1] * n * k, 2 * (tokens[1] * (n + k) + n * k))
    cause = f"inputs, weights and outputs are {amount(moved / 1e6, 'MB')} for {amount(work / 1e9, 'GFLOP')}"
    outcome.near(what.format(f"1 x {tokens[1]:,}"), 2731, many, within=0.01, otherwise="corrected", cause=cause)
    outcome.add(
        Row(
            "intensity of a matrix product is about batch x tokens",
            f"{tokens[0]} and {tokens[1]:,}",
            f"{amount(few)} and {amount(many)}",
            "corrected",
            f"while tokens are few beside the widths; it cannot exceed {amount(n * k / (n + k))} here, "
            "where inputs and outputs outweigh the weights",
        )
    )


def _attention(outcome: Outcome, given: Given) -> None:
    spec, length = ModelSpec.load(given["mha"]), given["prompt"]
    flops = 4 * length**2 * spec.q_size
    moved = 2 * length * (2 * spec.q_size + 2 * spec.kv_size)
    what = f"attention over a prompt of S tokens, all pairs, S = {length:,}"
    note = f"half of it if pairs above the diagonal are skipped: {amount(flops / moved / 2)}"
    outcome.near(what, length / 2, flops / moved, note=note)
    found = {kind: [_decode_intensity(given[kind], b) for b in given["batches"]] for kind in ("mha", "gqa")}
    told = {kind: " and ".join(amount(x) for x in values) for kind, values in found.items()}
    outcome.add(
        Row(
            f"decode attention, batch {' and '.join(str(b) for b in given['batches'])}",
            "below 1, whatever the batch",
            f"{told['mha']} with KV heads of its own (MHA), {told['gqa']} with 8 of 64 (GQA)",
            "corrected",
            "whatever the batch, yes; but it is the query heads that share a KV head: 1 FLOP per byte each",
        )
    )


def _decode_intensity(model: str, batch: int) -> float:
    """Return the FLOP per byte of one additional context token in a decode step."""
    spec = ModelSpec.load(model)
    near, far = (step_work(spec, decode(batch, context)) for context in (1000, 2000))
    return (far[0] - near[0]) / (far[1] - near[1])


@dataclass(frozen=True)
class Kind:
    """Steps of one kind: work and GPU time of each row of the records."""

    flops: np.ndarray
    data: np.ndarray
    seconds: np.ndarray

    def utilisation(self, gpu: Gpu) -> tuple[float, float]:
        """Return the MFU and MBU while such steps run."""
        whole = self.seconds.sum()
        return float(self.flops.sum() / whole / gpu.flops["bf16"]), float(self.data.sum() / whole / gpu.bandwidth)


def kinds(steps: pd.DataFrame, model: ModelSpec, least: int) -> dict[str, Kind]:
    """Return the prompt steps of at least `least` tokens, and the decode steps. The prompts of a step are assumed to
    have equal lengths."""
    masks = {
        "prompts": (steps.decode_count == 0) & (steps.prefill_tokens >= least),
        "decodes": (steps.prefill_pieces == 0) & (steps.decode_count > 0),
    }
    found = {}
    for name, mask in masks.items():
        rows = steps[mask]
        work = [step_work(model, _batch(row)) for row in rows.to_dict("records")]
        flops, data = (np.array([w[i] for w in work]) * rows.k.to_numpy() for i in (0, 1))
        found[name] = Kind(flops, data, rows.gpu_ns.to_numpy() / 1e9)
    return found


def _batch(row: Mapping[Any, int]) -> Batch:
    """Return the step in the middle of a recorded row."""
    count, pieces = row["decode_count"], row["prefill_pieces"]
    each = (row["prefill_tokens"] // max(pieces, 1), row["prefill_context"] // max(pieces, 1))
    return Batch(
        linear_tokens=row["prefill_tokens"] + count,
        prefill=[each] * pieces,
        decode_count=count,
        decode_context_sum=row["decode_context"] + count * (row["k"] - 1) // 2,
        sampled=row["sampled"],
    )


def _served(outcome: Outcome, given: Given, gpu: Gpu, ridge: float) -> None:
    run = simulate(given["served"])
    spec = ModelSpec.load(given["served"]["model"])
    found = kinds(run.steps, spec, given["compute_bound_from"])
    mfu, mbu = zip(*(found[kind].utilisation(gpu) for kind in ("prompts", "decodes")), strict=True)
    intensity = {kind: float(k.flops.sum() / k.data.sum()) for kind, k in found.items()}
    outcome.holds(
        "prompts are bound by arithmetic, decodes by memory",
        f"above and below {ridge:.0f} FLOP/byte",
        f"{amount(intensity['prompts'])} and {amount(intensity['decodes'])} FLOP/byte",
        intensity["prompts"] > ridge > intensity["decodes"],
    )
    outcome.holds(
        "utilisation of the arithmetic in prompt steps",
        "80 to 100 %",
        f"MFU {100 * mfu[0]:.0f} %, MBU {100 * mbu[0]:.0f} %",
        mfu[0] >= 0.8,
        cause="measured kernels reach less than the data sheet's peak; `GPU utilisation` of a monitor counts a GPU as "
        "busy while any kernel runs",
    )
    outcome.holds(
        "utilisation of the arithmetic in decode steps",
        "5 to 20 %",
        f"MFU {100 * mfu[1]:.1f} %, MBU {100 * mbu[1]:.0f} %",
        0.05 <= mfu[1] <= 0.2,
        cause="the memory, not the arithmetic, is busy; the share of the arithmetic grows with the batch",
    )
    _draw(outcome, found, gpu, ridge, given["points"])


def _draw(outcome: Outcome, found: dict[str, Kind], gpu: Gpu, ridge: float, points: int) -> None:
    curves = []
    for name, kind in found.items():
        chosen = np.unique(np.linspace(0, len(kind.flops) - 1, points).astype(int))
        x, y = (kind.flops / kind.data)[chosen], (kind.flops / kind.seconds)[chosen] / 1e12
        curves.append(Curve(f"steps with {name}", x.tolist(), y.tolist(), joined=False))
    low = min(min(curve.x) for curve in curves) / 2
    high = max(max(curve.x) for curve in curves) * 2
    roof = [(x, min(x * gpu.bandwidth, gpu.flops["bf16"]) / 1e12) for x in (low, ridge, high)]
    curves.insert(0, Curve("roofline", [x for x, _ in roof], [y for _, y in roof]))
    outcome.figures.append(
        Lines(
            name="roofline",
            title="Steps of a served trace under the roofline of an H100",
            alt="Decode steps lie below the slanted part, limited by memory; prompt steps below the flat one, by "
            "arithmetic.",
            x_label="FLOP per byte",
            y_label="TFLOP/s",
            curves=curves,
            log="xy",
            caption=f"The roof bends at {ridge:.0f} FLOP per byte, where the H100 breaks even.",
        )
    )
