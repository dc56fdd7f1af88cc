"""Work of each operator of a step on one GPU, and the minimum time that the GPU's data sheet allows for it.

Linear layers and small operators are those of the layer graph, with the widths that it prices; attention is counted by
the query-key pairs and tokens of the batch. Traffic is counted as for separate kernels: weights, activations in and
out, keys and values. Data that a fused kernel keeps in registers is counted here but not in
`servesim.cost.work.step_work`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from servesim.contracts.cost import Batch
from servesim.cost.breakdown import ATTENTION_DECODE, ATTENTION_PREFILL
from servesim.cost.curve import Curve
from servesim.cost.formula import COMPUTE_DTYPE, WEIGHT_BYTES, Roofline, format_on, line, moved_bytes
from servesim.cost.graph import LayerGraph
from servesim.cost.linear import GemmTables
from servesim.cost.moe import ExpertShape, experts_work
from servesim.cost.work import chosen, decode_attended, prefill_pairs
from servesim.hardware.gpu import Gpu
from servesim.hardware.layers import Experts, dtype_bytes
from servesim.hardware.model import ModelSpec

KINDS = ("flops", "compute_ns", "bytes", "link_bytes")


class Work(NamedTuple):
    """Work of one operator in a step on one GPU."""

    flops: float = 0.0
    compute_ns: float = 0.0
    """Time of the arithmetic at the data sheet's peak."""
    bytes: float = 0.0
    """Bytes of memory read and written."""
    link_bytes: float = 0.0
    """Bytes sent to other GPUs."""

    def roofline_ns(self, gpu: Gpu) -> float:
        """Return the minimum time: the maximum of arithmetic, memory and links, each at the data sheet's rate."""
        return max(self.compute_ns, self.bytes / gpu.bandwidth * 1e9, self.link_bytes / gpu.link_bandwidth * 1e9)

    def bound(self, gpu: Gpu) -> str:
        """Return the resource that determines that time: "compute", "memory" or "links"."""
        if self.link_bytes / gpu.link_bandwidth * 1e9 == self.roofline_ns(gpu):
            return "links"
        return "compute" if self.compute_ns == self.roofline_ns(gpu) else "memory"

    def plus(self, other: Work) -> Work:
        """Return the sum of this work and another's."""
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


def operator_work(
    model: ModelSpec, gpu: Gpu, batch: Batch, dtype: str = "bf16", kv_dtype: str = "bf16", tp: int = 1
) -> dict[str, Work]:
    """Return the work of every operator of a step, with the names and order used by `servesim.cost.breakdown`. Assume
    one pipeline stage and fused attention; padding is included."""
    tokens, rows = batch.linear_tokens + batch.padded_tokens, batch.sampled + batch.drafts
    counts: dict[str, list[float]] = {}
    for i, kind in enumerate(KINDS):
        roofline = _Counts(gpu, kind=kind)
        priced = format_on(gpu, dtype)
        graph = _Counting(model, gpu, tp, priced, kv_dtype, GemmTables(None, roofline, roofline), None, tokens=tokens)
        found = [(operator, tokens) for operator in graph.per_token(range(model.num_layers))]
        found += [(operator, rows) for operator in graph.per_sample()] if rows else []
        for operator, x in found:
            counts.setdefault(operator.name, [0.0] * len(KINDS))[i] += operator.curve.at(x)
    work = {name: Work(*values) for name, values in counts.items()}
    head = [name for name in work if name in ("lm_head", "sampler", "all_gather")]
    body = {name: one for name, one in work.items() if name not in head}
    return {**body, **_attention(model, gpu, batch, dtype, kv_dtype, tp), **{name: work[name] for name in head}}


def _attention(model: ModelSpec, gpu: Gpu, batch: Batch, dtype: str, kv_dtype: str, tp: int) -> dict[str, Work]:
    windows = Counter(layer.window for layer in model.layers if layer.mixer and not layer.recurrent)
    kv = model.kv_bytes_per_token_per_layer(kv_dtype, tp)
    decode_pair, prefill_pair, expanded = _per_pair(model, tp)
    wide = "fp32" if dtype == "fp32" else "bf16"
    moved = 2.0 * dtype_bytes(wide) * model.q_size / tp  # queries read and outputs written
    decode = prefill = Work()
    indexer = model.latent.indexer if model.latent is not None else None
    for whole, layers in windows.items():
        window = chosen(model, whole)
        pairs, read = decode_attended(batch, window)
        queries = batch.decode_count * batch.queries_per_sequence
        if pairs:
            flops = layers * (pairs * decode_pair + 2.0 * expanded * queries)
            data = layers * (read * kv + queries * moved + 2.0 * expanded)
            decode = decode.plus(Work(flops, 0.0, data))
        if indexer is not None:
            every, of_all = decode_attended(batch, whole)
            a_pair = 2.0 * layers * indexer.heads * indexer.dim
            decode = decode.plus(Work(a_pair * every, 0.0, layers * (of_all - read) * indexer.key_bytes))
            for new, past in batch.prefill:
                beyond = max(past - window, 0) * indexer.key_bytes
                prefill = prefill.plus(Work(a_pair * prefill_pairs(new, past, whole), 0.0, layers * beyond))
        for new, past in batch.prefill:
            seen = min(past, window) + new if window else past + new
            flops = layers * (prefill_pairs(new, past, window) * prefill_pair + 2.0 * expanded * seen)
            prefill = prefill.plus(Work(flops, 0.0, layers * (seen * kv + new * moved)))
        if batch.prefill:
            prefill = prefill.plus(Work(bytes=layers * 2.0 * expanded))
    if model.recurrent is not None:
        layers = sum(layer.recurrent for layer in model.layers)
        of_token = 4.0 * layers * model.recurrent.value_size * model.recurrent.key_dim / tp
        state = 2.0 * layers * model.recurrent.state_bytes(tp)
        queries = batch.decode_count * batch.queries_per_sequence
        decode = decode.plus(Work(of_token * queries, 0.0, state * batch.decode_count))
        new = sum(piece[0] for piece in batch.prefill)
        prefill = prefill.plus(Work(of_token * new, 0.0, state * len(batch.prefill)))
    found = {ATTENTION_PREFILL: prefill, ATTENTION_DECODE: decode}
    peak = gpu.flops[wide]
    return {name: one._replace(compute_ns=one.flops / peak * 1e9) for name, one in found.items() if one.flops}


def _per_pair(model: ModelSpec, tp: int) -> tuple[float, float, float]:
    """Return the FLOPs of one query-key pair on one GPU in decode and in prefill, and the number of weights that expand
    latents to heads.

    In decode, latent attention works on the compressed vectors, with the expansion absorbed into queries and outputs;
    in prefill, it expands keys and values."""
    if model.latent is None:
        return 4.0 * model.q_size / tp, 4.0 * model.q_size / tp, 0.0
    latent, heads = model.latent, model.num_heads / tp
    decode = 2.0 * heads * (latent.width + latent.kv_rank)
    prefill = 2.0 * heads * (latent.nope_dim + latent.rope_dim + latent.v_dim)
    return decode, prefill, latent.kv_rank * heads * (latent.nope_dim + latent.v_dim)


@dataclass(frozen=True, slots=True)
class _Counts(Roofline):
    """Stand-in for a roofline, with curves that count work instead of time."""

    kind: str = KINDS[0]

    def gemm_curve(self, n: int, k: int, dtype: str) -> Curve:
        flops, peak = 2.0 * n * k, self.gpu.flops[COMPUTE_DTYPE[dtype]]
        return {
            "flops": line(0.0, flops),
            "compute_ns": line(0.0, flops / peak * 1e9),
            "bytes": line(n * k * WEIGHT_BYTES[dtype], moved_bytes(n, k, dtype)),
            "link_bytes": line(0.0, 0.0),
        }[self.kind]

    def memory_op(self, bytes_per_token: float, constant_bytes: float = 0.0) -> Curve:
        return line(constant_bytes, bytes_per_token) if self.kind == "bytes" else line(0.0, 0.0)

    def collective(self, bytes_per_token: float) -> Curve:
        return line(0.0, bytes_per_token if self.kind == "link_bytes" else 0.0)


@dataclass(frozen=True)
class _Counting(LayerGraph):
    """Layer graph of a step of `tokens` tokens."""

    tokens: int = 0

    def routed(self, moe: Experts) -> Curve:
        dtype = moe.dtype or self.dtype
        size = moe.size * moe.matrices // 3  # `experts_work` counts three
        shape = ExpertShape(size // self.tp, self.model.hidden_size, moe.count, moe.per_token)
        flops, weights, activations = experts_work(shape, dtype, self.tokens)
        compute = flops / self.gpu.flops[COMPUTE_DTYPE[dtype]] * 1e9
        work = {"flops": flops, "compute_ns": compute, "bytes": weights + activations, "link_bytes": 0.0}
        counts = self.roofline
        assert isinstance(counts, _Counts)
        return line(work[counts.kind], 0.0)
