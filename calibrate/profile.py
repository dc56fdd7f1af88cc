"""Profiling of a device: the points of a model are measured within a time budget, and a run can be stopped at any
time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servesim.calibrate.journal import Journal, Measured
from servesim.calibrate.kernels import KernelSet
from servesim.calibrate.points import HELD_OUT, Limits, Point, Shard, points
from servesim.calibrate.timing import Device
from servesim.errors import UserError
from servesim.experiments.recording import known_gpu

CHECK_S = 30.0
"""Seconds between clock checks."""
_REPEATED = 0.1
_FOR_REPEATS = 0.06
"""Share of the points that are measured again at the end, and share of the budget reserved for this."""
_MEMORY = 0.6
"""Maximum share of the free memory for one point."""
_GPU_LIMITS = {"tokens": 8192, "context": 32768, "batch": 256}
_CPU_LIMITS = {"tokens": 512, "context": 1024, "batch": 32}
_CPU_MASK = 2_000_000
Progress = Callable[[str, int, int], None]
"""Callback that receives the current set, the number of finished points and the total number of points."""


@dataclass(frozen=True)
class Options:
    """Options of a profile."""

    out: Path
    budget_s: float
    max_drift: float | None = None
    """Tolerated relative change of the reference GEMM; None means 5 % on a GPU, 50 % on a CPU."""
    tokens: int | None = None
    context: int | None = None
    batch: int | None = None
    """Extent of the grids; None means 8192 tokens, contexts of 32768 and 256 sequences on a GPU, and 512, 1024 and 32
    on a CPU."""


@dataclass
class Outcome:
    """Result of a profile."""

    measured: int
    total: int
    skipped: dict[str, int]
    """Number of points that could not be measured, by reason."""
    drift: float
    """Largest relative change of the reference GEMM."""
    tables: dict[str, int]


def profile(
    device: Device,
    kernels: KernelSet,
    shards: Sequence[Shard],
    options: Options,
    progress: Progress = lambda *_: None,
    began: float | None = None,
) -> Outcome:
    """Measure everything not yet in the folder, in order of importance, until the budget is spent. On an interrupt,
    save the results so far and reraise it. `began` is the time when the budget started (time.monotonic)."""
    run = _Run(device, kernels, shards, options, progress, time.monotonic() if began is None else began)
    try:
        run.grid()
        run.repeats()
    finally:  # an interrupt or unexpected error keeps earlier results
        run.close()
    return run.outcome()


class _Run:
    def __init__(
        self,
        device: Device,
        kernels: KernelSet,
        shards: Sequence[Shard],
        options: Options,
        progress: Progress,
        began: float,
    ) -> None:
        self.device, self.kernels, self.options, self.progress = device, kernels, options, progress
        self.began, self.deadline = began, began + options.budget_s
        limits = grid_limits(device, options)
        self.points = points(shards, limits)
        _check_memory(device, kernels, self.points)
        bandwidth = device.bandwidth()
        self.journal = Journal.open(options.out, _settings(device, kernels, shards, limits, bandwidth))
        self.reference = device.reference_us()
        self.checks = [self.reference]
        self.last_check = time.monotonic()
        self.skipped: dict[str, int] = {}
        self.since: list[Measured] = []  # measured since the last good clock check
        self.max_drift = options.max_drift or {"cuda": 0.05, "cpu": 0.5}[device.kind]

    def grid(self) -> None:
        """Measure every missing point; at the end, rerun points that were measured while the clock drifted."""
        grid, failed = self.journal.grid, self.journal.settings.get("failed", {})
        todo = [p for p in self.points if p.key not in failed and (p.key not in grid or grid[p.key].suspect)]
        total, done = len(self.points), len(self.points) - len(todo)
        reserve = _FOR_REPEATS * self.options.budget_s
        for i, point in enumerate(todo):
            if time.monotonic() > self.deadline - reserve:
                break
            self.progress(point.set, done + i, total)
            self._measure(point)
            if i + 1 == len(todo) or todo[i + 1].set != point.set:
                self.journal.save_tables()
            if time.monotonic() - self.last_check > CHECK_S:
                self._look_at_the_clock()
                self.journal.save_tables()
        self._look_at_the_clock()
        for measured in [m for m in self.journal.grid.values() if m.suspect]:
            if time.monotonic() > self.deadline - reserve:
                break
            self._measure(measured.point)

    def repeats(self) -> None:
        """Measure a tenth of the points once more to determine how well times repeat."""
        grid = [m.point for m in self.journal.grid.values() if m.point.stage != HELD_OUT]
        known = {m.point.key for m in self.journal.repeats}
        fresh = [p for p in grid if p.key not in known]
        random.Random(len(grid)).shuffle(fresh)
        wanted = max(0, round(_REPEATED * len(grid)) - len(self.journal.repeats))
        for i, point in enumerate(fresh[:wanted]):
            if time.monotonic() > self.deadline:
                break
            self.progress("repeats", i, wanted)
            self._measure(point, repeat=True)

    def close(self) -> None:
        """Save everything."""
        drift = [round(t / self.reference - 1.0, 4) for t in self.checks]
        self.journal.settings["runs"][-1] |= {"drift": drift, "seconds": round(time.monotonic() - self.began, 1)}
        self.tables = self.journal.save_tables()

    def outcome(self) -> Outcome:
        for what in self.journal.settings.get("failed", {}).values():
            self.skipped[what] = self.skipped.get(what, 0) + 1
        drift = max(abs(t / self.reference - 1.0) for t in self.checks)
        there = sum(p.key in self.journal.grid for p in self.points)
        return Outcome(there, len(self.points), self.skipped, drift, self.tables)

    def _measure(self, point: Point, repeat: bool = False) -> None:
        try:
            work = _work(self.kernels, point)
            timing = self.device.time(work.calls)
        except (RuntimeError, MemoryError, NotImplementedError) as error:
            what = "out of memory" if "out of memory" in str(error).lower() else f"{point.op}: {_first_line(error)}"
            if "CUDA error" in what:  # this process can no longer use the device
                self.journal.settings.setdefault("failed", {})[point.key] = what
                raise UserError(
                    f"{what}, at {point.key}. {self.options.out} keeps the measurements; run the same command again to "
                    "continue without this point"
                ) from error
            self.skipped[what] = self.skipped.get(what, 0) + 1
            self.device.release()
            return
        kernel = work.kernel if timing.method != "eager" else f"{work.kernel} (not captured)"
        measured = Measured(point, kernel, timing, time.monotonic() - self.began, repeat)
        self.journal.add(measured)
        self.since.append(measured)

    def _look_at_the_clock(self) -> None:
        now = self.device.reference_us()
        self.checks.append(now)
        self.last_check = time.monotonic()
        if abs(now / self.reference - 1.0) > self.max_drift:
            for measured in self.since:
                if not measured.repeat:
                    self.journal.add(replace(measured, suspect=True))
        self.since = []


def grid_limits(device: Device, options: Options) -> Limits:
    """Return the extent of the grids on a device."""
    default = _GPU_LIMITS if device.kind == "cuda" else _CPU_LIMITS
    return Limits(
        options.tokens or default["tokens"],
        options.context or default["context"],
        options.batch or default["batch"],
        int(device.free_bytes() * _MEMORY / 2),
        _CPU_MASK if device.kind == "cpu" else None,
    )


def _work(kernels: KernelSet, point: Point) -> Any:
    if point.op == "gemm":
        assert point.m is not None and point.n is not None and point.k is not None  # noqa: PT018
        return kernels.gemm(point.m, point.n, point.k, point.dtype)
    if point.pieces:
        return kernels.attention(point.shape, point.sequences)
    assert point.m is not None and point.n is not None  # noqa: PT018
    return kernels.rows(point.op, point.m, point.n, point.shape if point.heads else None)


def _check_memory(device: Device, kernels: KernelSet, found: Sequence[Point]) -> None:
    """Check that memory can hold enough copies of the largest linear layer's weights to overflow the cache."""
    sizes = [(p.n or 0) * (p.k or 0) * kernels.bytes_of(p.dtype) for p in found if p.op == "gemm"]
    need = max(size * device.copies(int(size)) + 2 * size for size in sizes)
    free = device.free_bytes()
    if need > free:
        raise UserError(
            f"{device.name} has {free / 2**30:.1f} GiB free, but the largest linear layer needs "
            f"{need / 2**30:.1f} GiB: free memory, or profile a shard (--tp)"
        )


def _settings(
    device: Device, kernels: KernelSet, shards: Sequence[Shard], limits: Limits, bandwidth: float
) -> dict[str, Any]:
    from dataclasses import asdict
    from datetime import UTC, datetime

    described = device.describe()
    clock, power = described.pop("clock_mhz", None), described.pop("power_limit_w", None)
    run = {
        "models": [f"{s.model.name} tp{s.tp} {s.dtype}" for s in shards],
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "clock_mhz": clock,
        "power_limit_w": power,
        "limits": {k: v for k, v in asdict(limits).items() if k != "kv_bytes"},
    }
    return {
        **described,
        "gpu": known_gpu(device.name) if device.kind == "cuda" else None,
        "kernels": kernels.name,
        "memory_bytes": device.total_bytes(),
        "bandwidth": float(f"{bandwidth:.3g}"),
        "runs": [run],
    }


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
