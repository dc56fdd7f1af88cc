"""Operators that torch itself has, for every device: GEMMs by weight format, and the small ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servesim.calibrate.timing import Device
from servesim.cost.grid import HeadShape
from servesim.hardware.layers import dtype_bytes

from . import KernelSet, Work

_EPS = 1e-5
_INT8_LEAST_ROWS = 32
"""torch._int_mm wants more than 16 rows: fewer are padded."""
_INT4_GROUP = 128


class TorchOps(KernelSet):
    """GEMMs and small operators of torch; attention is the subclass's."""

    def __init__(self, device: Device, dtype: str, libraries: Sequence[Path] = ()) -> None:
        from servesim.calibrate.timing import import_torch

        self.torch = import_torch()
        self.timed_on = device
        self.on = device.target
        self.dtype = dtype
        self.float = self.torch.float32 if dtype == "fp32" else self.torch.bfloat16
        for path in libraries:
            self.torch.ops.load_library(str(path))

    def bytes_of(self, dtype: str) -> float:
        return dtype_bytes(dtype)

    def randn(self, *shape: int) -> Any:
        """Random normal numbers in the activations' format."""
        return self.torch.randn(*shape, device=self.on, dtype=self.float)

    def copies(self, size: float) -> range:
        """Indices of the buffers it takes to keep each other out of the cache."""
        return range(self.timed_on.copies(int(size)))

    # Linear layers.

    def gemm(self, m: int, n: int, k: int, dtype: str) -> Work:
        if dtype in ("bf16", "fp32"):
            return self._plain_gemm(m, n, k)
        return {"fp8": self._fp8_gemm, "int8": self._int8_gemm, "int4": self._int4_gemm}[dtype](m, n, k)

    def _plain_gemm(self, m: int, n: int, k: int) -> Work:
        linear, x = self.torch.nn.functional.linear, self.randn(m, k)
        weights = [self.randn(n, k) for _ in self.copies(n * k * x.element_size())]
        return Work("torch.linear", [lambda w=w: linear(x, w) for w in weights])

    def _fp8_gemm(self, m: int, n: int, k: int) -> Work:
        torch = self.torch
        x, one = self.randn(m, k).to(torch.float8_e4m3fn), torch.ones((), device=self.on)
        weights = [self.randn(n, k).to(torch.float8_e4m3fn).t() for _ in self.copies(n * k)]

        def call(w: Any) -> Any:
            return torch._scaled_mm(x, w, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

        return Work("torch._scaled_mm", [lambda w=w: call(w) for w in weights])

    def _int8_gemm(self, m: int, n: int, k: int) -> Work:
        """Dynamic per-token quantisation, product, and scaling back."""
        torch, rows = self.torch, max(m, _INT8_LEAST_ROWS)
        x, scales = self.randn(rows, k), torch.rand(n, device=self.on)
        weights = [
            torch.randint(-127, 128, (n, k), dtype=torch.int8, device=self.on).t() for _ in self.copies(n * k)
        ]

        def call(w: Any) -> Any:
            scale = x.abs().amax(-1, keepdim=True).float() / 127
            return (torch._int_mm((x / scale).round().to(torch.int8), w) * scale * scales).to(self.float)

        padded = f" (padded to {rows} rows)" if rows > m else ""
        return Work(f"torch._int_mm{padded}", [lambda w=w: call(w) for w in weights])

    def _int4_gemm(self, m: int, n: int, k: int) -> Work:
        """Weight-only, groups of 128."""
        torch, aten, cuda = self.torch, self.torch.ops.aten, self.timed_on.kind == "cuda" and self.on != "cpu"
        x = self.torch.randn(m, k, device=self.on, dtype=torch.bfloat16)
        scales = torch.randn(k // _INT4_GROUP, n, 2, device=self.on, dtype=torch.bfloat16)
        multiply = aten._weight_int4pack_mm if cuda else aten._weight_int4pack_mm_for_cpu

        def packed() -> Any:
            if cuda:
                pairs = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=self.on)
                return aten._convert_weight_to_int4pack(pairs, 8)
            return aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (n, k), dtype=torch.int32), 1)

        weights = [packed() for _ in self.copies(n * k / 2)]
        calls = [lambda w=w: multiply(x, w, _INT4_GROUP, scales) for w in weights]
        return Work("torch._weight_int4pack_mm", calls)

    # Small operators.

    def rows(self, op: str, rows: int, width: int, shape: HeadShape | None = None) -> Work:
        if op == "rotary":
            assert shape is not None
            return self._rotary(rows, shape)
        kinds = {
            "norm": self._norm,
            "activation": self._activation,
            "kv_write": self._kv_write,
            "embedding": self._embedding,
            "sampler": self._sampler,
        }
        return kinds[op](rows, width)

    def _norm(self, rows: int, width: int) -> Work:
        """RMSNorm of the sum with the residual."""
        functional, weight = self.torch.nn.functional, self.randn(width)
        pairs = [(self.randn(rows, width), self.randn(rows, width)) for _ in self._outer(4 * rows * width)]

        def call(x: Any, residual: Any) -> Any:
            total = x + residual
            return functional.rms_norm(total, (width,), weight, _EPS), total

        return Work("torch add, rms_norm", [lambda p=p: call(*p) for p in pairs])

    def _activation(self, rows: int, width: int) -> Work:
        silu = self.torch.nn.functional.silu
        inputs = [self.randn(rows, 2 * width) for _ in self._outer(4 * rows * width)]
        return Work("torch silu, mul", [lambda x=x: silu(x[:, :width]) * x[:, width:] for x in inputs])

    def _rotary(self, rows: int, shape: HeadShape) -> Work:
        dim, torch = shape.head_dim, self.torch
        q, k = self.randn(rows, shape.heads, dim), self.randn(rows, shape.kv_heads, dim)
        cos, sin = self.randn(rows, 1, dim), self.randn(rows, 1, dim)

        def turned(x: Any) -> Any:
            low, high = x[..., : dim // 2], x[..., dim // 2 :]
            return x * cos + torch.cat((-high, low), dim=-1) * sin

        return Work("torch rotate_half", [lambda: (turned(q), turned(k))])

    def _kv_write(self, rows: int, width: int) -> Work:
        """Keys and values of `width` each into a cache of scattered slots."""
        k, v = self.randn(rows, width), self.randn(rows, width)
        keys, values = self.randn(4 * rows, width), self.randn(4 * rows, width)
        slots = self.torch.randperm(4 * rows, device=self.on)[:rows]
        return Work("torch.index_copy", [lambda: (keys.index_copy_(0, slots, k), values.index_copy_(0, slots, v))])

    def _embedding(self, rows: int, width: int) -> Work:
        table, torch = self.randn(32_000, width), self.torch
        ids = torch.randint(0, 32_000, (rows,), device=self.on)
        return Work("torch.embedding", [lambda: torch.nn.functional.embedding(ids, table)])

    def _sampler(self, rows: int, width: int) -> Work:
        """Greedy."""
        logits = self.randn(rows, width)
        return Work("torch float, argmax", [lambda: logits.float().argmax(-1)])

    def _outer(self, values: int) -> range:
        """Inputs of a small operator come fresh from the one before: a few sets, so that none stays in registers."""
        return range(2 if values * 2 > self.timed_on.cache_bytes else 4)
