"""CPU kernels as transformers' continuous batching uses them: `paged|sdpa`, one dense mask over the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.cost.grid import HeadShape

from . import Pieces
from .torch_ops import EPS, Attend, PagedBatch, TorchOps


class CpuTorch(TorchOps):
    """Kernel set for a CPU. Attention gathers the KV of all sequences and masks out other sequences' KV for each query,
    so the cost of a call is proportional to queries times keys of the whole batch (transformers 5.17,
    integrations/sdpa_paged.py). The norm is transformers' chain of plain operations."""

    name, device = "cpu_torch", "cpu"
    dtypes = ("fp32", "bf16", "int8", "int4")
    attends_by = "torch sdpa, dense mask"
    small_by: Mapping[str, str] = {**TorchOps.small_by, "norm": "torch add, pow, mean, rsqrt, mul"}

    def paged_attention(self, shape: HeadShape, batch: PagedBatch) -> Attend:
        torch, groups = self.torch, shape.heads // shape.kv_heads
        mask, read = dense_mask(torch, batch.pieces, self.float), torch.cat(batch.read)

        def gathered(pool: Any) -> Any:
            rows = pool.flatten(0, 1).index_select(0, read).transpose(0, 1).unsqueeze(0)
            return rows.repeat_interleave(groups, 1).contiguous()

        def attend(q: Any, keys: Any, values: Any, out: Any) -> None:
            k, v = gathered(keys), gathered(values)
            attended = torch.nn.functional.scaled_dot_product_attention(
                q.transpose(0, 1).unsqueeze(0).contiguous(), k, v, attn_mask=mask
            )
            out.copy_(attended[0].transpose(0, 1))

        return attend

    def add_norm(self, x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
        total = x + residual
        wide = total.float()
        wide = wide * self.torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
        return weight * wide.to(total.dtype), total


def dense_mask(torch: Any, pieces: Pieces, dtype: Any) -> Any:
    """Return the mask [1, 1, queries, keys] of the whole batch: 0 if a query attends to a key, the lowest number
    otherwise."""
    queries, keys = sum(new for new, _ in pieces), sum(new + past for new, past in pieces)
    mask = torch.full((1, 1, queries, keys), torch.finfo(dtype).min, dtype=dtype)
    q = k = 0
    for new, past in pieces:
        mask[0, 0, q : q + new, k : k + past + new].triu_(past + 1)
        q, k = q + new, k + past + new
    return mask


KERNELS = CpuTorch
