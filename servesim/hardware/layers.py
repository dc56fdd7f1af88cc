"""Kinds of decoder layers, if they are not all the same: windows, experts, latent attention, states."""

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
"""Bytes of one weight or KV element. mxfp4 is 4 bits plus an 8-bit scale for every 32 weights (mxfp4_mxfp8: multiplied
by activations in mxfp8), nvfp4 one for every 16. nf4 has 0.127 bits of scales per weight (QLoRA, arXiv 2305.14314);
ternary weights have the 1.58 bits of BitNet b1.58 (arXiv 2402.17764; they take 2 when packed). Scales of the other
formats (under 1 %, int4 in groups of 128 about 3 %) are not counted."""

GGUF_BYTES = {"q8_0": 8.5008 / 8, "q6_k": 6.5633 / 8, "q5_k_m": 5.7036 / 8, "q4_k_m": 4.8944 / 8, "q2_k": 3.1593 / 8}
"""Bytes of one weight, including embeddings, LM head and scales, in files of llama.cpp (its tools/quantize/README.md,
measured on Llama-3.1-8B; other models differ by a few percent)."""


STATE_WINDOW = 2
"""Window of layers that keep a state, for memory purposes: the last computed token, whose block holds the state, and
the next token, which continues from it."""


class Layer(NamedTuple):
    """The kind of one decoder layer."""

    window: int = 0
    """Number of tokens that a query attends to, including itself; 0: all of them."""
    experts: bool = False
    """Whether it has a mixture of experts instead of one MLP."""
    owns_kv: bool = True
    """Whether it keeps its own keys and values. If not, it attends to the KV of an earlier layer (cross-layer sharing),
    or keeps a state instead."""
    recurrent: bool = False
    """Whether it keeps a state of constant size instead of keys and values (`servesim.hardware.recurrent`)."""
    mixer: bool = True
    """Whether it attends or keeps a state. If not, it is an MLP alone (Nemotron-H counts the two as separate
    layers)."""
    mlp: bool = True
    """Whether it has an MLP or experts."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The MLP of a mixture-of-experts layer, before tensor parallelism."""

    count: int
    per_token: int
    """Number of experts that each token is routed to (top-k)."""
    size: int
    """Width of one expert."""
    shared_size: int = 0
    """Width of the shared expert that every token passes through; 0: none."""
    gated: bool = True
    """Whether there is a gate projection in addition to up and down (not in Nemotron-H, whose activation is a
    square)."""
    bias: bool = False
    """Whether router, gate, up and down projections have biases."""
    dtype: str | None = None
    """The only precision in which the experts are published; None: the same as the other linear layers."""

    @property
    def matrices(self) -> int:
        """Number of weight matrices of an expert."""
        return 3 if self.gated else 2

    def params(self, hidden: int) -> int:
        """Return the number of weights of the experts of one layer, without router and shared expert."""
        bias = 2 * self.size + hidden if self.bias else 0
        return self.count * (self.matrices * hidden * self.size + bias)

    def router_params(self, hidden: int) -> int:
        """Return the number of weights of the router of one layer."""
        return self.count * (hidden + (1 if self.bias else 0))

    def touched(self, tokens: float) -> float:
        """Return the expected number of distinct experts that `tokens` tokens use if each picks its experts uniformly
        and independently of the others."""
        return self.count * float(1.0 - (1.0 - self.per_token / self.count) ** tokens)


@dataclass(frozen=True, slots=True)
class Indexer:
    """The indexer that chooses the tokens for sparse attention (DeepSeek-V3.2, GLM-5): it scores all tokens with its
    own keys, and is replicated on every GPU."""

    heads: int
    dim: int
    topk: int
    """Number of tokens attended to, out of all."""

    @property
    def key_bytes(self) -> int:
        """Bytes kept per token in one layer: a key in fp8, and a scale of 4 bytes for each 128 numbers (vLLM's and
        SGLang's indexer caches)."""
        return self.dim + 4 * -(-self.dim // _SCALED)

    def linears(self, hidden: int, q_rank: int) -> list[tuple[int, int]]:
        """Return (output width, input width) of the projections to its queries, its key, and the weights of its
        heads."""
        return [(self.heads * self.dim, q_rank or hidden), (self.dim, hidden), (self.heads, hidden)]


_SCALED = 128
"""Number of fp8 values that share a scale of 4 bytes."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2 and later): keys and values are one compressed vector per token."""

    kv_rank: int
    rope_dim: int
    """Width of the rotary key that all heads share; the cache holds kv_rank + rope_dim numbers per token."""
    nope_dim: int
    """Width of a head's key without rotary embedding."""
    v_dim: int
    q_rank: int = 0
    """Rank of the compressed query; 0: not compressed."""
    indexer: Indexer | None = None
    """Indexer of sparse attention; None: all tokens are attended to."""

    @property
    def width(self) -> int:
        """Number of values that the cache keeps per token in one layer: one head, no separate value."""
        return self.kv_rank + self.rope_dim

    def linears(self, hidden: int, heads: int) -> list[tuple[int, int]]:
        """Return (output width, input width) of the projections of `heads` heads. Projections to the latents are
        replicated on every GPU; projections from and to heads are split."""
        query = self.nope_dim + self.rope_dim
        down = [(self.q_rank + self.width, hidden), (heads * query, self.q_rank)]
        if not self.q_rank:
            down = [(self.width, hidden), (heads * query, hidden)]
        index = self.indexer.linears(hidden, self.q_rank) if self.indexer is not None else []
        return [*down, (heads * (self.nope_dim + self.v_dim), self.kv_rank), (hidden, heads * self.v_dim), *index]

    def token_bytes(self, kv_dtype: str) -> int:
        """Return the bytes kept per token in one layer. Sparse attention in fp8 also keeps scales, and the rotary part
        in 2 bytes (the layout of FlashMLA's sparse kernels)."""
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
    """Return the bytes of one weight of embeddings, LM head, routers and final norm if linear layers are in `dtype`: at
    least 2 (vLLM leaves them unquantized), except in GGUF files, whose figure is a mean over all weights."""
    return GGUF_BYTES.get(dtype) or max(2.0, dtype_bytes(dtype))


def pipeline_layers(num_layers: int, stages: int) -> list[range]:
    """Split layers into pipeline stages as vLLM does: evenly, with the remainder assigned one layer each to the stages
    before the last, starting from the back (the last stage has the LM head)."""
    if not 1 <= stages <= num_layers:
        raise UserError(f"pp = {stages} must be from 1 to the {num_layers} layers of the model")
    counts = [num_layers // stages] * stages
    for i in range(2, num_layers % stages + 2):
        counts[-i] += 1
    starts = [sum(counts[:i]) for i in range(stages)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
