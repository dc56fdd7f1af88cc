"""Hopper GPU with vLLM's own kernels (0.26): FlashAttention-3 over paged KV and, if vLLM's library of small operators
is also given, those operators.

The attention library, `vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so` in vLLM's wheel, needs only torch;
`vllm/_C_stable_libtorch.abi3.so` contains fused norms, activation, rotary embedding and the KV write. Operators in
neither library are torch's; every row of the table names its kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servesim.calibrate.timing import Device
from servesim.cost.grid import HeadShape
from servesim.errors import UserError

from .cuda_torch_sdpa import CudaTorchSdpa
from .torch_ops import BLOCK, EPS, Attend, PagedBatch

LIBRARY = "_vllm_fa3_C.abi3.so"
_GRAPH_TOKENS = 512
_GRAPH_SPLITS = 32
"""Maximum number of tokens for which vLLM runs captured graphs, and maximum number of splits of a sequence in them
(flash_attn.py)."""
_POSITIONS = 131_072
"""Number of rows in the rotary embedding table."""
_VLLM_OPS = {
    "norm": "vllm fused_add_rms_norm",
    "activation": "vllm silu_and_mul",
    "rotary": "vllm rotary_embedding",
    "kv_write": "vllm reshape_and_cache_flash",
}


class CudaFa3Vllm(CudaTorchSdpa):
    """FlashAttention-3 with block tables, scheduled once per step ahead of the calls, as in vLLM."""

    name = "cuda_fa3_vllm"
    attends_by = "vllm fa3 paged"

    def __init__(self, device: Device, dtype: str, libraries: Sequence[Path] = ()) -> None:
        try:
            super().__init__(device, dtype, libraries)
        except OSError as error:
            raise UserError(f"--library cannot be loaded with this torch: {' '.join(str(error).split())}") from None
        self._fa3 = self.torch.ops._vllm_fa3_C
        if not hasattr(self._fa3, "fwd"):
            raise UserError(
                f"kernel set {self.name} needs --library {LIBRARY} (from the wheel of vllm 0.26.0, "
                "vllm/vllm_flash_attn/); --kernels cuda_torch_sdpa needs no library, but measures kernels that no "
                "server runs"
            )
        capability = getattr(device, "capability", (9, 0))
        if capability[0] != 9:
            raise UserError(
                f"FlashAttention-3 is for Hopper GPUs (sm_90), but {device.name} is sm_{capability[0]}"
                f"{capability[1]}: use --kernels cuda_torch_sdpa"
            )
        self._c = self.torch.ops._C if hasattr(self.torch.ops._C, "fused_add_rms_norm") else None
        if self._c is not None:
            self.small_by = {**self.small_by, **_VLLM_OPS}
            self._tables: dict[int, Any] = {}

    def paged_attention(self, shape: HeadShape, batch: PagedBatch) -> Attend:
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

    # Small operators of vLLM's own library; both of its norms write in place.

    def add_norm(self, x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
        if self._c is None:
            return super().add_norm(x, residual, weight)
        self._c.fused_add_rms_norm(x, residual, weight, EPS)
        return x, residual

    def activate(self, gate_up: Any) -> Any:
        if self._c is None:
            return super().activate(gate_up)
        out = self.torch.empty(gate_up.shape[0], gate_up.shape[1] // 2, device=self.on, dtype=gate_up.dtype)
        self._c.silu_and_mul(out, gate_up)
        return out

    def rotation(self, positions: Any, dim: int) -> Any:
        return positions if self._c is not None else super().rotation(positions, dim)

    def rotate(self, q: Any, k: Any, rotation: Any) -> tuple[Any, Any]:
        if self._c is None:
            return super().rotate(q, k, rotation)
        dim = q.shape[-1]
        if dim not in self._tables:
            self._tables[dim] = self.randn(_POSITIONS, dim)
        self._c.rotary_embedding(rotation, q.flatten(1), k.flatten(1), dim, self._tables[dim], True)
        return q, k

    def write_kv(self, k: Any, v: Any, keys: Any, values: Any, slots: Any) -> None:
        if self._c is None:
            super().write_kv(k, v, keys, values, slots)
        else:
            self._c.reshape_and_cache_flash(k, v, keys, values, slots, "auto", self._one, self._one)


KERNELS = CudaFa3Vllm
