"""Devices and kernels that cost what a formula says: profiles without torch and without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from servesim.calibrate.kernels import KernelSet, Pieces, Work
from servesim.calibrate.timing import Call, Device, Timing
from servesim.cost.grid import HeadShape


class FormulaDevice(Device):
    """A call returns its microseconds, and that is what it takes."""

    kind, name, cache_bytes, target = "cuda", "NVIDIA H200", 60 << 20, "none"

    def __init__(self, name: str = "NVIDIA H200", memory: int = 140 << 30) -> None:
        self.name = name
        self.memory = memory
        self.slower = 1.0
        self.timed = 0
        self.on_time: Callable[[int], None] = lambda timed: None

    def time(self, calls: Sequence[Call]) -> Timing:
        self.timed += 1
        self.on_time(self.timed)
        us: Any = calls[0]()
        return Timing.of([us * self.slower] * 10, "graph")

    def reference_us(self) -> float:
        return 100.0 * self.slower

    def bandwidth(self) -> float:
        return 4.3e12

    def free_bytes(self) -> int:
        return self.memory

    def total_bytes(self) -> int:
        return self.memory

    def describe(self) -> dict[str, Any]:
        return {"device": self.name, "device_kind": self.kind, "torch": "2.11.0", "driver": "580", "clock_mhz": 1980}


class FormulaKernels(KernelSet):
    """5 us and what the roofline of an H200 says."""

    name, device, dtypes = "formula", "cuda", ("bf16", "fp8")

    def __init__(self, device: Device, dtype: str = "bf16", libraries: Sequence[Path] = ()) -> None:
        self.lost: set[str] = set()
        """Operators that raise."""

    def bytes_of(self, dtype: str) -> float:
        return 1.0 if dtype == "fp8" else 2.0

    def gemm(self, m: int, n: int, k: int, dtype: str) -> Work:
        us = 5.0 + max(2e6 * m * n * k / 989e12, 2e6 * n * k / 4.8e12)
        return self._work("gemm", us)

    def attention(self, shape: HeadShape, pieces: Pieces) -> Work:
        pairs = sum(new * (past + new / 2) for new, past in pieces)
        keys = sum(new + past for new, past in pieces)
        flops, data = 4e6 * shape.heads * shape.head_dim * pairs, 4e6 * shape.kv_heads * shape.head_dim * keys
        return self._work("attention", 5.0 + flops / 989e12 + data / 4.8e12)

    def rows(self, op: str, rows: int, width: int, shape: HeadShape | None = None) -> Work:
        return self._work(op, 3.0 + 8e6 * rows * width / 4.8e12)

    def _work(self, op: str, us: float) -> Work:
        if op in self.lost:
            raise RuntimeError(f"CUDA out of memory in {op}")
        return Work(f"formula {op}", [lambda: us])
