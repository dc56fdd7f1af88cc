"""Kinds of decoder layers, where they are not all the same: windows, experts, latent attention, states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from servesim.errors import UserError, suggest

DTYPE_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "int8_wo": 1.0,
    "int4": 0.5,
    "mxfp4": 0.53125,
    "mxfp4_mxfp8": 0.53125,
    "nvfp4": 0.5625,
    "nf4": 0.515875,
    "int3": 0.375,
    "ternary": 0.1975,
}
"""Bytes of one weight or KV element. mxfp4 is 4 bits and an 8-bit scale for every 32 weights (mxfp4_mxfp8:
multiplied by activations in mxfp8), nvfp4 one for every 16, nf4 has 0.127 bits of
scales (QLoRA, arXiv 2305.14314), ternary the 1.58 bits of BitNet b1.58 (arXiv 2402.17764; packed they take 2); scales
of the other formats (under 1 %, int4 in groups of 128 about 3 %) are not counted."""

GGUF_BYTES = {"q8_0": 8.5008 / 8, "q6_k": 6.5633 / 8, "q5_k_m": 5.7036 / 8, "q4_k_m": 4.8944 / 8, "q2_k": 3.1593 / 8}
"""Bytes of one weight, embeddings, LM head and scales included, in files of llama.cpp (its tools/quantize/README.md,
measured on Llama-3.1-8B; other models differ by some percent)."""


STATE_WINDOW = 2
"""The window that memory gives layers that keep a state: the last computed token, at which it lies, and the next, which
goes on from it."""


class Layer(NamedTuple):
    """The kind of one decoder layer."""

    window: int = 0
    """Tokens a query attends, itself included; 0: all of them."""
    experts: bool = False
    """True: a mixture of experts; False: one MLP."""
    owns_kv: bool = True
    """False: attends the keys and values an earlier layer keeps (cross-layer sharing), or keeps a state instead."""
    recurrent: bool = False
    """True: keeps a state of constant size instead of keys and values (`servesim.hardware.recurrent`)."""
    mixer: bool = True
    """False: neither attends nor keeps a state: an MLP alone (Nemotron-H counts the two apart)."""
    mlp: bool = True
    """False: neither an MLP nor experts."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The MLP of a mixture-of-experts layer, before tensor parallelism."""

    count: int
    per_token: int
    """Experts each token is routed to (top-k)."""
    size: int
    """Width of one expert."""
    shared_size: int = 0
    """Width of the shared expert every token passes; 0: none."""
    gated: bool = True
    """False: no gate projection beside up and down (Nemotron-H, whose activation is a square)."""
    bias: bool = False
    """Router, gate, up and down projections have biases."""
    dtype: str | None = None
    """The only precision the experts are published in; None: that of the other linear layers."""

    @property
    def matrices(self) -> int:
        """Weight matrices of an expert."""
        return 3 if self.gated else 2

    def params(self, hidden: int) -> int:
        """Return the weights of the experts of one layer, without router and shared expert."""
        bias = 2 * self.size + hidden if self.bias else 0
        return self.count * (self.matrices * hidden * self.size + bias)

    def router_params(self, hidden: int) -> int:
        """Return the weights of the router of one layer."""
        return self.count * (hidden + (1 if self.bias else 0))

    def touched(self, tokens: float) -> float:
        """Return the expected number of distinct experts that `tokens` tokens use if each picks its experts uniformly
        and independently of the others."""
        return self.count * float(1.0 - (1.0 - self.per_token / self.count) ** tokens)


@dataclass(frozen=True, slots=True)
class Indexer:
    """The indexer that chooses the tokens which sparse attention attends (DeepSeek-V3.2, GLM-5): it scores all of them
    by keys of its own, and is whole on every GPU."""

    heads: int
    dim: int
    topk: int
    """Tokens attended, of all there are."""

    @property
    def key_bytes(self) -> int:
        """Bytes kept of one token in one layer: a key in fp8, and a scale of 4 bytes for each 128 numbers (vLLM's and
        SGLang's indexer caches)."""
        return self.dim + 4 * -(-self.dim // _SCALED)

    def linears(self, hidden: int, q_rank: int) -> list[tuple[int, int]]:
        """Return (output width, input width) of its queries, its key, and the weights of its heads."""
        return [(self.heads * self.dim, q_rank or hidden), (self.dim, hidden), (self.heads, hidden)]


_SCALED = 128
"""Numbers in fp8 that share a scale of 4 bytes."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2 and later): keys and values are one compressed vector a token."""

    kv_rank: int
    rope_dim: int
    """Width of the rotary key every head shares; the cache holds kv_rank + rope_dim numbers a token."""
    nope_dim: int
    """Width of a head's key without rotary embedding."""
    v_dim: int
    q_rank: int = 0
    """Rank of the compressed query; 0: not compressed."""
    indexer: Indexer | None = None
    """None: all tokens are attended."""

    @property
    def width(self) -> int:
        """Numbers the cache keeps of one token in one layer: one head, no separate value."""
        return self.kv_rank + self.rope_dim

    def linears(self, hidden: int, heads: int) -> list[tuple[int, int]]:
        """Return (output width, input width) of the projections of `heads` heads. Those to the latents are whole on
        every GPU; those from and to heads split."""
        query = self.nope_dim + self.rope_dim
        down = [(self.q_rank + self.width, hidden), (heads * query, self.q_rank)]
        if not self.q_rank:
            down = [(self.width, hidden), (heads * query, hidden)]
        index = self.indexer.linears(hidden, self.q_rank) if self.indexer is not None else []
        return [*down, (heads * (self.nope_dim + self.v_dim), self.kv_rank), (hidden, heads * self.v_dim), *index]

    def token_bytes(self, kv_dtype: str) -> int:
        """Return the bytes kept of one token in one layer. Sparse attention in fp8 keeps scales, and the rotary part in
        2 bytes (the layout of FlashMLA's sparse kernels)."""
        if self.indexer is None:
            return int(self.width * dtype_bytes(kv_dtype))
        if dtype_bytes(kv_dtype) > 1:
            return int(self.width * dtype_bytes(kv_dtype)) + self.indexer.key_bytes
        return self.kv_rank + 4 * -(-self.kv_rank // _SCALED) + 2 * self.rope_dim + self.indexer.key_bytes


def dtype_bytes(dtype: str) -> float:
    """Return the bytes of one element of `dtype`."""
    known = DTYPE_BYTES | GGUF_BYTES
    if dtype not in known:
        raise UserError(f"unknown dtype {dtype!r}{suggest(dtype, known)}")
    return known[dtype]


def wide_bytes(dtype: str) -> float:
    """Return the bytes of one weight of embeddings, LM head, routers and final norm where linear layers are in `dtype`:
    never below 2 (vLLM leaves them unquantised), but in GGUF files, whose figure is a mean over everything."""
    return GGUF_BYTES.get(dtype) or max(2.0, dtype_bytes(dtype))


def pipeline_layers(num_layers: int, stages: int) -> list[range]:
    """Split layers into pipeline stages as vLLM does: evenly, the remainder one each to the stages before the last,
    from the back (the last one has the LM head)."""
    if not 1 <= stages <= num_layers:
        raise UserError(f"pp = {stages} must be from 1 to the {num_layers} layers of the model")
    counts = [num_layers // stages] * stages
    for i in range(2, num_layers % stages + 2):
        counts[-i] += 1
    starts = [sum(counts[:i]) for i in range(stages)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
