"""A GPU with nothing but torch: its scaled dot-product attention, without paging."""

from __future__ import annotations

from collections import Counter
from typing import Any

from servesim.cost.grid import HeadShape

from . import Pieces, Work
from .torch_ops import TorchOps


class CudaTorchSdpa(TorchOps):
    """Sequences of one size share a call, which torch gives to FlashAttention-2 where it may; the KV lies in one piece.
    Not what a serving engine runs: for GPUs whose engine kernels cannot be had."""

    name, device = "cuda_torch_sdpa", "cuda"
    dtypes = ("bf16", "fp8", "int8", "int4")

    def attention(self, shape: HeadShape, pieces: Pieces) -> Work:
        sets = [
            [self._group(shape, count, new, past) for (new, past), count in Counter(pieces).items()]
            for _ in self.copies(sum(n + p for n, p in pieces) * 4 * shape.kv_heads * shape.head_dim)
        ]
        return Work("torch sdpa", [lambda s=s: [self._attend(*group) for group in s] for s in sets])

    def _group(self, shape: HeadShape, count: int, new: int, past: int) -> tuple[Any, Any, Any, Any]:
        q = self.randn(count, shape.heads, new, shape.head_dim)
        k, v = (self.randn(count, shape.kv_heads, new + past, shape.head_dim) for _ in range(2))
        mask = None
        if new > 1 and past:
            torch = self.torch
            mask = torch.ones(new, new + past, dtype=torch.bool, device=self.on).tril(past)
        return q, k, v, mask

    def _attend(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        attend = self.torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, attn_mask=mask, is_causal=mask is None and q.shape[2] > 1, enable_gqa=True)


KERNELS = CudaTorchSdpa
