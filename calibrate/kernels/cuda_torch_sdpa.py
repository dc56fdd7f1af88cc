"""GPU with torch only: its scaled dot-product attention over KV gathered from blocks."""

from __future__ import annotations

from typing import Any

from servesim.cost.grid import HeadShape

from .torch_ops import Attend, PagedBatch, TorchOps


class CudaTorchSdpa(TorchOps):
    """Kernel set with torch's attention. Sequences of equal size share a call, which torch passes to FlashAttention-2
    if possible. Serving engines do not run this; it is for GPUs whose engine kernels are unavailable."""

    name, device = "cuda_torch_sdpa", "cuda"
    dtypes = ("bf16", "fp8", "int8", "int4")
    attends_by = "torch gather, sdpa"

    def paged_attention(self, shape: HeadShape, batch: PagedBatch) -> Attend:
        torch = self.torch
        groups: dict[tuple[int, int], list[int]] = {}
        for i, piece in enumerate(batch.pieces):
            groups.setdefault(piece, []).append(i)
        starts = batch.starts.tolist()
        prepared = []
        for (new, past), members in groups.items():
            rows = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in members]).to(self.on)
            read = torch.stack([batch.read[i] for i in members])
            mask = None
            if new > 1 and past:
                mask = torch.ones(new, new + past, dtype=torch.bool, device=self.on).tril(past)
            prepared.append((rows, read, new, mask))

        def attend(q: Any, keys: Any, values: Any, out: Any) -> None:
            for rows, read, new, mask in prepared:
                k, v = (pool.flatten(0, 1)[read].transpose(1, 2) for pool in (keys, values))
                mine = q[rows].view(len(read), new, *q.shape[1:]).transpose(1, 2)
                attended = torch.nn.functional.scaled_dot_product_attention(
                    mine, k, v, attn_mask=mask, is_causal=mask is None and new > 1, enable_gqa=True
                )
                out.index_copy_(0, rows, attended.transpose(1, 2).flatten(0, 1))

        return attend


KERNELS = CudaTorchSdpa
