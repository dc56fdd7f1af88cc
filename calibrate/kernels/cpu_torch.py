"""The processor, as transformers' continuous batching uses it: `paged|sdpa`, one dense mask over the whole batch."""

from __future__ import annotations

from typing import Any

from servesim.cost.grid import HeadShape

from . import Pieces, Work
from .torch_ops import TorchOps


class CpuTorch(TorchOps):
    """Attention gathers the KV of every sequence and masks what belongs to others, so a call costs queries times keys
    of the whole batch (transformers 5.17, integrations/sdpa_paged.py)."""

    name, device = "cpu_torch", "cpu"
    dtypes = ("fp32", "bf16", "int8", "int4")

    def attention(self, shape: HeadShape, pieces: Pieces) -> Work:
        torch = self.torch
        queries, keys = sum(new for new, _ in pieces), sum(new + past for new, past in pieces)
        width = keys * shape.kv_heads * shape.head_dim
        mask = dense_mask(torch, pieces, self.float)
        q = self.randn(1, shape.heads, queries, shape.head_dim)
        read = torch.randperm(keys)
        caches = [
            (self.randn(keys, shape.kv_heads, shape.head_dim), self.randn(keys, shape.kv_heads, shape.head_dim))
            for _ in self.copies(2 * width * q.element_size())
        ]
        alone = not any(past for _, past in pieces)  # fresh prompts attend what they have just computed
        groups = shape.heads // shape.kv_heads

        def call(k: Any, v: Any) -> Any:
            if not alone:
                k, v = k.index_select(0, read), v.index_select(0, read)
            k, v = (x.transpose(0, 1).unsqueeze(0).repeat_interleave(groups, 1).contiguous() for x in (k, v))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return out.transpose(1, 2).contiguous()

        return Work("torch sdpa, dense mask", [lambda c=c: call(*c) for c in caches])


def dense_mask(torch: Any, pieces: Pieces, dtype: Any) -> Any:
    """[1, 1, queries, keys] of the whole batch: 0 where a query attends a key, the least number elsewhere."""
    queries, keys = sum(new for new, _ in pieces), sum(new + past for new, past in pieces)
    mask = torch.full((1, 1, queries, keys), torch.finfo(dtype).min, dtype=dtype)
    q = k = 0
    for new, past in pieces:
        mask[0, 0, q : q + new, k : k + past + new].triu_(past + 1)
        q, k = q + new, k + past + new
    return mask


KERNELS = CpuTorch
