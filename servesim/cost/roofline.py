"""Steps under a GPU's roofline: their arithmetic intensity, their bottleneck, and the fraction of the roof that their
kernels reach.

The roof of a step assumes that weights and KV are read once, as if everything else stayed on the chip: its time is the
larger of its arithmetic at the data sheet's peak (for each operator's format) and its bytes at the data sheet's
bandwidth (`step_work`). The roof of an operator counts the traffic of a separate kernel (`operator_work`). Times are
GPU nanoseconds, without host time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from servesim.contracts.cost import Batch
from servesim.cost.breakdown import breakdown
from servesim.cost.formula import COMPUTE_DTYPE, format_on
from servesim.cost.model import TableCostModel
from servesim.cost.operators import Work, operator_work
from servesim.cost.work import step_work
from servesim.hardware.gpu import Gpu
from servesim.hardware.model import ModelSpec


@dataclass(frozen=True)
class Roof:
    """A model on `tp` GPUs, with the cost model that prices its steps."""

    model: ModelSpec
    gpu: Gpu
    tp: int
    dtype: str
    kv_dtype: str
    cost: TableCostModel

    @property
    def peak(self) -> float:
        """FLOP/s of one GPU in the arithmetic format of the linear layers."""
        return self.gpu.flops[COMPUTE_DTYPE[format_on(self.gpu, self.dtype)]]

    @property
    def ridge(self) -> float:
        """FLOP per byte above which a step is compute-bound."""
        return self.peak / self.gpu.bandwidth

    def describe(self, steps: Iterable[Steps]) -> dict[str, Any]:
        """Return the roof and its steps as a JSON-ready mapping."""
        return {
            "model": self.model.name,
            "gpu": self.gpu.name,
            "tp": self.tp,
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "peak_flops": self.peak,
            "bandwidth": self.gpu.bandwidth,
            "ridge": self.ridge,
            "tables": self.cost.tables.name if self.cost.tables is not None else None,
            "steps": [one.describe() for one in steps],
        }


@dataclass
class Steps:
    """Sums over one or more steps. Work is for all GPUs, times are for one."""

    roof: Roof
    label: str
    kind: str
    """"prefill", "decode" or "mixed"."""
    count: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    compute_ns: float = 0.0
    """Time of the arithmetic at the data sheet's peak."""
    memory_ns: float = 0.0
    """Time of the bytes at the data sheet's bandwidth."""
    roofline_ns: float = 0.0
    kernels_ns: float = 0.0
    by_source: list[float] = field(default_factory=lambda: [0.0] * 4)
    """kernels_ns split by source: measured, interpolated, extrapolated, formula."""
    work: dict[str, Work] = field(default_factory=dict)
    operator_ns: dict[str, float] = field(default_factory=dict)
    points: list[tuple[float, float]] = field(default_factory=list)
    """(FLOP per byte, FLOP/s of one GPU) of each step."""

    def add(self, batch: Batch, times: int = 1, gpu_ns: float | None = None) -> None:
        """Add a step taken `times` times, with `gpu_ns` in total (None: use the time of its kernels)."""
        roof = self.roof
        model, gpu, tp = roof.model, roof.gpu, roof.tp
        price = roof.cost.price(batch)
        ns = price.gpu_ns * times if gpu_ns is None else gpu_ns
        flops, data = step_work(model, batch, roof.dtype, roof.kv_dtype, tp)
        works = operator_work(model, gpu, batch, roof.dtype, roof.kv_dtype, tp)
        peak = sum(one.flops for one in works.values()) / sum(one.compute_ns for one in works.values())
        compute, memory = flops / peak / tp, data / gpu.bandwidth / tp * 1e9
        self.count += times
        self.flops += flops * times
        self.bytes += data * times
        self.compute_ns += compute * times
        self.memory_ns += memory * times
        self.roofline_ns += max(compute, memory) * times
        self.kernels_ns += ns
        self.points.append((flops / data, flops * times / tp / ns * 1e9))
        self.by_source = [a + b * ns for a, b in zip(self.by_source, price.shares, strict=True)]
        for name, one in breakdown(roof.cost, batch).items():
            self.operator_ns[name] = self.operator_ns.get(name, 0.0) + one * times
        for name, work in works.items():
            scaled = Work(*(value * times for value in work))
            self.work[name] = self.work[name].plus(scaled) if name in self.work else scaled

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes

    @property
    def reached(self) -> float:
        """Share of the roofline that the kernels reach."""
        return self.roofline_ns / self.kernels_ns

    def describe(self) -> dict[str, Any]:
        """Return a JSON-ready mapping; times are in ns for one step, or the mean if there are several."""
        names = [*self.operator_ns, *(name for name in self.work if name not in self.operator_ns)]
        total = sum(self.by_source) or 1.0
        return {
            "label": self.label,
            "kind": self.kind,
            "steps": self.count,
            "flops": self.flops / self.count,
            "bytes": self.bytes / self.count,
            "intensity": self.intensity,
            "bound": "compute" if self.compute_ns > self.memory_ns else "memory",
            "roofline_ns": self.roofline_ns / self.count,
            "kernels_ns": self.kernels_ns / self.count,
            "reached": self.reached,
            "by_formula": self.by_source[3] / total,
            "operators": [self._operator(name) for name in names],
        }

    def _operator(self, name: str) -> dict[str, Any]:
        """Describe an operator; one without counted work (copies, drafting, lowered clock) has no roof."""
        ns, work, gpu = self.operator_ns.get(name, 0.0), self.work.get(name), self.roof.gpu
        least = work.roofline_ns(gpu) if work else None
        return {
            "name": name,
            "intensity": work.flops / work.bytes if work and work.bytes else None,
            "bound": work.bound(gpu) if work else None,
            "roofline_ns": None if least is None else least / self.count,
            "kernels_ns": ns / self.count,
            "reached": least / ns if least is not None and ns else None,
        }


def decode_step(batch: int, context: int) -> Batch:
    """Return a step in which each of `batch` sequences of `context` tokens (including its new one) takes one token."""
    return Batch.decodes(batch, batch * context, batch * context * context, context)


def prefill_step(prompt: int) -> Batch:
    """Return a step that computes one prompt without cached tokens."""
    return Batch(linear_tokens=prompt, prefill=[(prompt, 0)], sampled=1, sampled_context=prompt)
