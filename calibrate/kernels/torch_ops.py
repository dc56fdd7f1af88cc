"""Operators built into torch, for every device: GEMMs by weight format, paged KV, and the small operators.

A kernel set times these functions one by one, and `whole_model` combines the same functions into a step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

from servesim.calibrate.timing import Device, import_torch
from servesim.cost.grid import HeadShape
from servesim.hardware.layers import dtype_bytes

from . import KernelSet, Pieces, Work

BLOCK = 16
"""Tokens per KV block, vLLM's default."""
EPS = 1e-5
_INT8_LEAST_ROWS = 32
"""Minimum number of rows for torch._int_mm, which needs more than 16; fewer rows are padded."""
_INT4_GROUP = 128
_PRODUCTS = {
    "bf16": "torch.linear",
    "fp32": "torch.linear",
    "fp8": "torch to float8, _scaled_mm",
    "int8": "torch quantise, _int_mm, scale",
    "int4": "torch._weight_int4pack_mm",
}

Attend = Callable[[Any, Any, Any, Any], object]
"""Attention of one layer: (queries [tokens, heads, dim], keys and values [blocks, BLOCK, kv heads, dim], out)."""


class PagedBatch:
    """Block tables of sequences scattered over a pool of blocks."""

    def __init__(self, torch: Any, on: str, pieces: Pieces, blocks: int | None = None) -> None:
        """Lay out a batch. `blocks` is the size of the pool, or None for the number needed."""
        news, ends = [new for new, _ in pieces], [new + past for new, past in pieces]
        need = [ceil(end / BLOCK) for end in ends]
        self.pieces = list(pieces)
        self.tokens, self.sequences, self.blocks = sum(news), len(news), blocks or sum(need)
        self.max_query, self.max_context = max(news), max(ends)
        ids = torch.randperm(self.blocks, dtype=torch.int32)
        table = torch.zeros(len(news), max(need), dtype=torch.int32)
        for row, (count, end) in enumerate(zip(need, accumulate(need), strict=True)):
            table[row, :count] = ids[end - count : end]
        self._torch, self._on, self._table = torch, on, table
        ints = {"dtype": torch.int32, "device": on}
        self.table = table.to(on)
        self.starts = torch.tensor([0, *accumulate(news)], **ints)
        self.used = torch.tensor(ends, **ints)

    @cached_property
    def read(self) -> list[Any]:
        """Slots of the whole context of each sequence."""
        return [self._slots(row, 0, past + new) for row, (new, past) in enumerate(self.pieces)]

    @cached_property
    def write(self) -> Any:
        """Slots of the new tokens."""
        rows = enumerate(self.pieces)
        return self._torch.cat([self._slots(row, past, past + new) for row, (new, past) in rows])

    @cached_property
    def positions(self) -> Any:
        """Positions of the new tokens in their sequences."""
        return self._torch.cat([self._torch.arange(past, past + new) for new, past in self.pieces]).to(self._on)

    def _slots(self, row: int, start: int, stop: int) -> Any:
        offsets = self._torch.arange(start, stop)
        return (self._table[row].long()[offsets // BLOCK] * BLOCK + offsets % BLOCK).to(self._on)


class TorchOps(KernelSet):
    """GEMMs and small operators of torch; subclasses provide attention."""

    def __init__(self, device: Device, dtype: str, libraries: Sequence[Path] = ()) -> None:
        self.torch = import_torch()
        self.timed_on = device
        self.on = device.target
        self.dtype = dtype
        self.float = self.torch.float32 if dtype == "fp32" else self.torch.bfloat16
        self._one = self.torch.ones((), device=self.on)
        for path in libraries:
            self.torch.ops.load_library(str(path))

    def bytes_of(self, dtype: str) -> float:
        return dtype_bytes(dtype)

    def randn(self, *shape: int) -> Any:
        """Return random normal numbers in the activations' format."""
        return self.torch.randn(*shape, device=self.on, dtype=self.float)

    # Parts of a model.

    @abstractmethod
    def paged_attention(self, shape: HeadShape, batch: PagedBatch) -> Attend:
        """Return the attention of a batch, prepared once per step as in an engine."""

    def weight(self, n: int, k: int, dtype: str) -> Any:
        """Return a random weight in the form that `multiply` takes."""
        torch = self.torch
        if dtype in ("bf16", "fp32"):
            return self.randn(n, k)
        if dtype == "fp8":
            return self.randn(n, k).to(torch.float8_e4m3fn).t()
        if dtype == "int8":
            return torch.randint(-127, 128, (n, k), dtype=torch.int8, device=self.on).t()
        scales = torch.randn(k // _INT4_GROUP, n, 2, device=self.on, dtype=torch.bfloat16)
        if self.on == "cpu":
            pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
            return pack(torch.randint(0, 16, (n, k), dtype=torch.int32), 1), scales
        pairs = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=self.on)
        return torch.ops.aten._convert_weight_to_int4pack(pairs, 8), scales

    def multiply(self, x: Any, weight: Any, dtype: str) -> Any:
        """Multiply x [m, k] by a weight made by `weight`; quantize x if the format needs it."""
        torch = self.torch
        if dtype in ("bf16", "fp32"):
            return torch.nn.functional.linear(x, weight)
        if dtype == "fp8":
            x8, one = x.to(torch.float8_e4m3fn), self._one
            return torch._scaled_mm(x8, weight, scale_a=one, scale_b=one, out_dtype=x.dtype, use_fast_accum=True)
        if dtype == "int8":
            return self._int8(x, weight)
        packed, scales = weight
        aten = torch.ops.aten
        product = aten._weight_int4pack_mm_for_cpu if self.on == "cpu" else aten._weight_int4pack_mm
        return product(x, packed, _INT4_GROUP, scales)

    def _int8(self, x: Any, weight: Any) -> Any:
        """Quantize per token, multiply, and scale back."""
        torch, rows = self.torch, x.shape[0]
        if rows < _INT8_LEAST_ROWS:
            x = torch.nn.functional.pad(x, (0, 0, 0, _INT8_LEAST_ROWS - rows))
        scale = x.abs().amax(-1, keepdim=True).float().clamp_min(1e-6) / 127
        product = torch._int_mm((x / scale).round().to(torch.int8), weight)
        return (product * scale).to(x.dtype)[:rows]

    def add_norm(self, x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
        """Return the RMSNorm of the sum of x and the residual, and the sum itself."""
        total = x + residual
        return self.torch.nn.functional.rms_norm(total, weight.shape, weight, EPS), total

    def activate(self, gate_up: Any) -> Any:
        """Return SwiGLU of the input."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.torch.nn.functional.silu(gate) * up

    def rotation(self, positions: Any, dim: int) -> Any:
        """Return the input that `rotate` needs for the positions of a step, computed once."""
        angles = positions.float().unsqueeze(-1) / (10_000 ** (self.torch.arange(0, dim, 2, device=self.on) / dim))
        angles = self.torch.cat((angles, angles), dim=-1).unsqueeze(1)
        return angles.cos().to(self.float), angles.sin().to(self.float)

    def rotate(self, q: Any, k: Any, rotation: Any) -> tuple[Any, Any]:
        """Apply the rotary embedding to [tokens, heads, dim]."""
        cos, sin = rotation

        def turned(x: Any) -> Any:
            low, high = x.chunk(2, dim=-1)
            return x * cos + self.torch.cat((-high, low), dim=-1) * sin

        return turned(q), turned(k)

    def write_kv(self, k: Any, v: Any, keys: Any, values: Any, slots: Any) -> None:
        """Write [tokens, kv heads, dim] into the slots of a paged cache."""
        keys.flatten(0, 1).index_copy_(0, slots, k)
        values.flatten(0, 1).index_copy_(0, slots, v)

    def sample(self, logits: Any) -> Any:
        """Sample greedily."""
        return logits.float().argmax(-1)

    # Timed operators.

    def gemm(self, m: int, n: int, k: int, dtype: str) -> Work:
        x = self.randn(m, k)
        weights = [self.weight(n, k, dtype) for _ in self._copies(n * k * self.bytes_of(dtype))]
        padded = f", padded to {_INT8_LEAST_ROWS} rows" if dtype == "int8" and m < _INT8_LEAST_ROWS else ""
        return Work(_PRODUCTS[dtype] + padded, [partial(self.multiply, x, w, dtype) for w in weights])

    def attention(self, shape: HeadShape, pieces: Pieces) -> Work:
        batch = PagedBatch(self.torch, self.on, pieces)
        q = self.randn(batch.tokens, shape.heads, shape.head_dim)
        out = self.torch.empty_like(q)
        pool = (batch.blocks, BLOCK, shape.kv_heads, shape.head_dim)
        size = 2 * batch.blocks * BLOCK * shape.kv_heads * shape.head_dim * q.element_size()
        pools = [(self.randn(*pool), self.randn(*pool)) for _ in self._copies(size)]
        attend = self.paged_attention(shape, batch)
        return Work(self.attends_by, [partial(attend, q, *p, out) for p in pools])

    attends_by = ""
    """Name of the attention kernel."""
    small_by: Mapping[str, str] = {
        "norm": "torch add, rms_norm",
        "activation": "torch silu, mul",
        "rotary": "torch rotate_half",
        "kv_write": "torch index_copy",
        "embedding": "torch embedding",
        "sampler": "torch float, argmax",
    }
    """Names of the kernels of the small operators."""

    def rows(self, op: str, rows: int, width: int, shape: HeadShape | None = None) -> Work:
        make = getattr(self, f"_{op}")
        return Work(self.small_by[op], make(rows, width) if shape is None else make(rows, shape))

    def _norm(self, rows: int, width: int) -> list[Callable[[], object]]:
        weight = self.randn(width)
        pairs = [(self.randn(rows, width), self.randn(rows, width)) for _ in range(4)]
        return [partial(self.add_norm, *p, weight) for p in pairs]

    def _activation(self, rows: int, width: int) -> list[Callable[[], object]]:
        return [partial(self.activate, self.randn(rows, 2 * width)) for _ in range(4)]

    def _rotary(self, rows: int, shape: HeadShape) -> list[Callable[[], object]]:
        q, k = (self.randn(rows, heads, shape.head_dim) for heads in (shape.heads, shape.kv_heads))
        rotation = self.rotation(self.torch.arange(rows, device=self.on), shape.head_dim)
        return [lambda: self.rotate(q, k, rotation)]

    def _kv_write(self, rows: int, width: int) -> list[Callable[[], object]]:
        dim = 64 if width % 64 == 0 else width
        k, v = (self.randn(rows, width // dim, dim) for _ in range(2))
        blocks = ceil(4 * rows / BLOCK)
        keys, values = (self.randn(blocks, BLOCK, width // dim, dim) for _ in range(2))
        slots = self.torch.randperm(blocks * BLOCK, device=self.on)[:rows]
        return [lambda: self.write_kv(k, v, keys, values, slots)]

    def _embedding(self, rows: int, width: int) -> list[Callable[[], object]]:
        table = self.randn(32_000, width)
        ids = self.torch.randint(0, 32_000, (rows,), device=self.on)
        return [lambda: self.torch.nn.functional.embedding(ids, table)]

    def _sampler(self, rows: int, width: int) -> list[Callable[[], object]]:
        logits = self.randn(rows, width)
        return [lambda: self.sample(logits)]

    def _copies(self, size: float) -> range:
        """Return indices of enough buffers to evict each other from the cache."""
        return range(self.timed_on.copies(int(size)))
