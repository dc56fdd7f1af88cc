"""A Hopper GPU with vLLM's own kernels (0.26): FlashAttention-3 over paged KV, and the small operators where its
library of those is given too.

The attention library, `vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so` in vLLM's wheel, needs nothing but torch;
`vllm/_C_stable_libtorch.abi3.so` holds fused norms, activation, rotary embedding and the KV write. Operators that no
library brings are torch's; every row of the table names its kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

from servesim.calibrate.timing import Device
from servesim.cost.grid import HeadShape
from servesim.errors import UserError

from . import Pieces, Work
from .cuda_torch_sdpa import CudaTorchSdpa

BLOCK = 16
"""Tokens of a KV block, vLLM's default."""
_GRAPH_TOKENS = 512
_GRAPH_SPLITS = 32
"""Up to so many tokens vLLM runs captured graphs and lets a sequence be split so often (flash_attn.py)."""
LIBRARY = "_vllm_fa3_C.abi3.so"


class CudaFa3Vllm(CudaTorchSdpa):
    """FlashAttention-3 with block tables, scheduled ahead once a step as vLLM does."""

    name = "cuda_fa3_vllm"
    dtypes = ("bf16", "fp8", "int8", "int4")

    def __init__(self, device: Device, dtype: str, libraries: Sequence[Path] = ()) -> None:
        try:
            super().__init__(device, dtype, libraries)
        except OSError as error:
            raise UserError(f"--library: does not load with this torch: {' '.join(str(error).split())}") from None
        self._fa3 = self.torch.ops._vllm_fa3_C
        if not hasattr(self._fa3, "fwd"):
            raise UserError(
                f"kernel set {self.name} needs --library {LIBRARY} (from the wheel of vllm 0.26.0, "
                "vllm/vllm_flash_attn/); --kernels cuda_torch_sdpa does without, with kernels no server runs"
            )
        capability = getattr(device, "capability", (9, 0))
        if capability[0] != 9:
            raise UserError(
                f"FlashAttention-3 is for Hopper GPUs (sm_90), {device.name} is sm_{capability[0]}{capability[1]}: "
                "take --kernels cuda_torch_sdpa"
            )
        self._c = self.torch.ops._C if hasattr(self.torch.ops._C, "fused_add_rms_norm") else None

    def attention(self, shape: HeadShape, pieces: Pieces) -> Work:
        batch = PagedBatch(self.torch, self.on, pieces)
        q = self.randn(batch.tokens, shape.heads, shape.head_dim)
        out = self.torch.empty_like(q)
        pool = (batch.blocks, BLOCK, shape.kv_heads, shape.head_dim)
        size = 4 * batch.blocks * BLOCK * shape.kv_heads * shape.head_dim
        pools = [(self.randn(*pool), self.randn(*pool)) for _ in self.copies(size)]
        attend = self.paged_attention(shape, batch)
        return Work("vllm fa3 paged", [lambda p=p: attend(q, *p, out) for p in pools])

    def paged_attention(self, shape: HeadShape, batch: PagedBatch) -> Any:
        """A function of (q, keys, values, out) for this batch."""
        splits = _GRAPH_SPLITS if batch.tokens <= _GRAPH_TOKENS else 0
        metadata = self._fa3.get_scheduler_metadata(
            batch.sequences, batch.max_query, batch.max_context, shape.heads, shape.kv_heads, shape.head_dim,
            shape.head_dim, self.float, batch.used, batch.starts, None, None, None, None, BLOCK, 0, True, -1, -1,
            False, splits, None, 0,
        )  # fmt: skip
        scale = shape.head_dim**-0.5

        def attend(q: Any, keys: Any, values: Any, out: Any) -> Any:
            return self._fa3.fwd(
                q, keys, values, None, None, None, out, batch.starts, None, None, None, batch.used,
                batch.max_query, batch.max_context, batch.table, None, None, None, None, None, None, None, None,
                scale, True, -1, -1, 0.0, True, metadata, splits, None, 0, None, 1, 0, None,
            )  # fmt: skip

        return attend

    # Small operators of vLLM's own library.

    def _norm(self, rows: int, width: int) -> Work:
        if self._c is None:
            return super()._norm(rows, width)
        norm, weight = self._c.fused_add_rms_norm, self.randn(width)
        pairs = [(self.randn(rows, width), self.randn(rows, width)) for _ in self._outer(4 * rows * width)]
        return Work("vllm fused_add_rms_norm", [lambda p=p: norm(*p, weight, 1e-5) for p in pairs])

    def _activation(self, rows: int, width: int) -> Work:
        if self._c is None:
            return super()._activation(rows, width)
        act = self._c.silu_and_mul
        pairs = [(self.randn(rows, width), self.randn(rows, 2 * width)) for _ in self._outer(6 * rows * width)]
        return Work("vllm silu_and_mul", [lambda p=p: act(*p) for p in pairs])

    def _rotary(self, rows: int, shape: HeadShape) -> Work:
        if self._c is None:
            return super()._rotary(rows, shape)
        turn, dim = self._c.rotary_embedding, shape.head_dim
        q, k = self.randn(rows, shape.heads * dim), self.randn(rows, shape.kv_heads * dim)
        table, positions = self.randn(32_768, dim), self.torch.randint(0, 32_768, (rows,), device=self.on)
        return Work("vllm rotary_embedding", [lambda: turn(positions, q, k, dim, table, True)])

    def _kv_write(self, rows: int, width: int) -> Work:
        if self._c is None or width % 64:
            return super()._kv_write(rows, width)
        torch, heads = self.torch, width // 64
        k, v = self.randn(rows, heads, 64), self.randn(rows, heads, 64)
        blocks = ceil(4 * rows / BLOCK)
        keys, values = (self.randn(blocks, BLOCK, heads, 64) for _ in range(2))
        slots, one = torch.randperm(blocks * BLOCK, device=self.on)[:rows], torch.ones((), device=self.on)
        write = self._c.reshape_and_cache_flash
        calls = [lambda: write(k, v, keys, values, slots, "auto", one, one)]
        return Work("vllm reshape_and_cache_flash", calls)


class PagedBatch:
    """Block tables of sequences scattered over a pool of blocks."""

    def __init__(self, torch: Any, on: str, pieces: Pieces, blocks: int | None = None) -> None:
        """`blocks`: of the pool; None: as many as needed."""
        news, ends = [new for new, _ in pieces], [new + past for new, past in pieces]
        need = [ceil(end / BLOCK) for end in ends]
        self.tokens, self.sequences, self.blocks = sum(news), len(news), blocks or sum(need)
        self.max_query, self.max_context = max(news), max(ends)
        ids = torch.randperm(self.blocks, dtype=torch.int32)
        table = torch.zeros(len(news), max(need), dtype=torch.int32)
        for row, (count, end) in enumerate(zip(need, accumulate(need), strict=True)):
            table[row, :count] = ids[end - count : end]
        ints = {"dtype": torch.int32, "device": on}
        self.table = table.to(on)
        self.starts = torch.tensor([0, *accumulate(news)], **ints)
        self.used = torch.tensor(ends, **ints)


KERNELS = CudaFa3Vllm
