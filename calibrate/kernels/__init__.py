"""Kernel sets, one per file: the kernels that represent a model's operators on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from servesim.calibrate.timing import Call, Device
from servesim.cost.grid import HeadShape
from servesim.errors import UserError, suggest

Pieces = Sequence[tuple[int, int]]
"""Sequences in one attention call as (new tokens, tokens already in the KV cache)."""

KERNEL_SETS = ("cpu_torch", "cuda_fa3_vllm", "cuda_torch_sdpa")


@dataclass(frozen=True)
class Work:
    """One kernel, ready to run on each of several sets of buffers."""

    kernel: str
    calls: list[Call]


class KernelSet(ABC):
    """Builder of the calls that are timed. Sizes are per-GPU shards; buffers hold random normal numbers (kernels are up
    to 13 % faster on zeros); weights are repeated until they no longer fit in the cache."""

    name: ClassVar[str]
    device: ClassVar[str]
    """Kind of device, "cuda" or "cpu", on which the set runs."""
    dtypes: ClassVar[tuple[str, ...]]
    """Data formats of the linear layers, the default first."""

    @abstractmethod
    def __init__(self, device: Device, dtype: str, libraries: Sequence[Path] = ()) -> None:
        """Open a set. `libraries` are shared libraries with torch operators, already checked to exist."""

    @abstractmethod
    def gemm(self, m: int, n: int, k: int, dtype: str) -> Work:
        """Return the kernel for [m, k] x [k, n], including input quantization if the format needs it."""

    @abstractmethod
    def attention(self, shape: HeadShape, pieces: Pieces) -> Work:
        """Return the causal attention of one layer over a paged KV cache."""

    @abstractmethod
    def rows(self, op: str, rows: int, width: int, shape: HeadShape | None = None) -> Work:
        """Return the small operator with this name in the tables, over `rows` rows of `width` outputs. `shape` is for
        rotary embeddings."""

    @abstractmethod
    def bytes_of(self, dtype: str) -> float:
        """Return the number of bytes of one weight."""


def kernel_set(name: str) -> type[KernelSet]:
    """Return the kernel set named `name`."""
    if name not in KERNEL_SETS:
        raise UserError(f"unknown kernel set {name!r}{suggest(name, KERNEL_SETS)}")
    found: Any = import_module(f"servesim.calibrate.kernels.{name}").KERNELS
    return found  # type: ignore[no-any-return]


def open_kernels(device: Device, name: str | None, dtype: str | None, libraries: Sequence[Path]) -> KernelSet:
    """Open the kernel set named `name`, or the device's default; on a GPU, that is FlashAttention-3 as vLLM ships
    it."""
    cls = kernel_set(name or {"cuda": "cuda_fa3_vllm", "cpu": "cpu_torch"}[device.kind])
    if cls.device != device.kind:
        raise UserError(f"kernel set {cls.name} is for --device {cls.device}, not {device.kind}")
    chosen = dtype or cls.dtypes[0]
    if chosen not in cls.dtypes:
        raise UserError(f"kernel set {cls.name} has no {chosen} GEMMs (choose from: {', '.join(cls.dtypes)})")
    for path in libraries:
        if not path.is_file():
            raise UserError(f"--library {path}: no such file")
    return cls(device, chosen, libraries)
