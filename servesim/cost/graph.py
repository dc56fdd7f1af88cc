"""The layer graph: the operators that a pipeline stage runs, with their counts and widths."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import inf

from servesim.cost.attention import Attention, TableAttention, roofline_attention
from servesim.cost.curve import EXTRAPOLATED, ROOFLINE, Curve
from servesim.cost.curves import free_up_to, monotone, total, upper
from servesim.cost.eager import EagerAttention
from servesim.cost.expert_load import MEASURED_SKEW, ROUTED_SKEW, touched
from servesim.cost.formula import COMPUTE_DTYPE, Roofline, line
from servesim.cost.grid import HeadShape
from servesim.cost.host import HostTerms
from servesim.cost.latent import latent_attention, token_linears
from servesim.cost.linear import GemmTables, collective_curve, row_curve
from servesim.cost.moe import experts_curve, family_measured
from servesim.cost.recurrent import recurrent_attention
from servesim.cost.router import fp32_router_curve
from servesim.cost.sparse import sparse_attention
from servesim.cost.stage import AttentionLayers, Operator
from servesim.cost.streamed import BesidePrompt, LimitedPrefill, StreamedDecode
from servesim.hardware.gpu import Gpu
from servesim.hardware.layers import Experts, dtype_bytes
from servesim.hardware.model import ModelSpec, kv_heads_per_gpu

_SAMPLER_BYTES_PER_LOGIT = 14.0
"""Bytes per logit: read as 2 bytes, read and written as float32 by softmax, and read once more when sampling."""


@dataclass(frozen=True)
class LayerGraph:
    """Operators of a model on one of `tp` GPUs. Activations are 2 bytes (4 in fp32); the compiled graph fuses the
    residual addition into the norm, and QK-norm into the rotary embedding."""

    model: ModelSpec
    gpu: Gpu
    tp: int
    dtype: str
    kv_dtype: str
    gemms: GemmTables
    host: HostTerms | None
    moe_backend: str = "auto"
    ep: int = 1
    """Number of GPUs, counting those of all ranks, over which whole experts are distributed; across the remaining
    degree of parallelism, experts are split by width."""
    eager_attention: bool = False
    own_all_reduce_below: float = inf
    """Message size in bytes from which NCCL performs the all-reduce instead of the engine's own kernels."""
    fused_norm_to: float = 0.0
    """Message size in bytes up to which the all-reduce kernel also adds the residual and normalizes."""
    within_attention: frozenset[str] = frozenset()
    """Subset of `kv_write` and `rotary` that the attention table's rows include; `rotary` only if no norm precedes
    it."""
    dp: int = 1
    """Number of data-parallel ranks, each of `tp` GPUs."""
    load: float | None = None
    """Load of the most loaded GPU relative to the mean, or None for the measured load."""
    prefill_flops: float = inf
    """Highest rate in FLOP/s of the engine's attention kernel in prefill, if the tables' rows are of a faster one."""
    fp32_router: str | None = None
    """Precision of float32 products (`highest` or `high`) if the engine keeps this model's routers in float32."""

    @property
    def roofline(self) -> Roofline:
        return self.gemms.roofline

    @property
    def shape(self) -> HeadShape:
        """Attention heads on this GPU."""
        model = self.model
        return HeadShape(model.num_heads // self.tp, kv_heads_per_gpu(model, self.tp), model.head_dim)

    def per_token(self, stage: range) -> list[Operator]:
        """Return the operators that run on all tokens of a step, for the layers of `stage`."""
        hidden, layers = self.model.hidden_size, [self.model.layers[i] for i in stage]
        found: list[Operator] = []

        def add(count: int, operators: list[Operator]) -> None:
            for name, curve, throttled, _ in operators if count else ():
                slow = throttled.scaled(float(count)) if throttled is not None else None
                found.append(Operator(name, curve.scaled(float(count)), slow, count))

        kinds = Counter(layer.owns_kv for layer in layers if layer.mixer and not layer.recurrent)
        for owns_kv in (True, False):
            add(kinds[owns_kv], self._latent_linears() if self.model.latent else self._head_linears(owns_kv))
        states = sum(layer.recurrent for layer in layers)
        add(states, self._recurrent_linears() if states else [])
        mixtures, mlps = sum(layer.experts for layer in layers), sum(layer.mlp for layer in layers)
        add(mlps - mixtures, self._mlp("", self.model.intermediate_size) if mlps > mixtures else [])
        add(mixtures, self._experts() if mixtures else [])
        halves = mlps + sum(layer.mixer for layer in layers)
        add(halves, [Operator("norm", self._norm_after_all_reduce())])
        add(max(0, self.model.norms_per_layer - 2) * len(layers), [Operator("norm", self._memory(4.0 * hidden))])
        reductions = halves
        if stage.start == 0:
            add(1, [Operator("embedding", self._embedding())])
            reductions += 1  # vocabulary-parallel embedding
        if stage.stop == self.model.num_layers:
            add(1, [Operator("norm", self._rows("norm", hidden, 8.0 * hidden))])
        else:
            add(1, self._send())
        if self.tp > 1:
            add(reductions, [Operator("all_reduce", self._collective("all_reduce", 2 * hidden, self.fused_norm_to))])
        return found

    def per_sample(self) -> list[Operator]:
        """Return the operators that run on the sequences that sample: LM head, gathering of its shards, sampler."""
        vocab = self.model.vocab_size
        sampler = self._rows("sampler", vocab, _SAMPLER_BYTES_PER_LOGIT * vocab)
        if self.host is not None and self.host.sampling_per_logit:
            sampler = total([sampler, line(0.0, self.host.sampling_per_logit * vocab)])
        found = [
            Operator("lm_head", self.gemms.curve(vocab // self.tp, self.model.hidden_size, self._wide)),
            Operator("sampler", sampler),
        ]
        if self.tp > 1:
            found.append(Operator("all_gather", self._collective("all_gather", 2 * vocab)))
        return found

    def attention(self, stage: range) -> list[AttentionLayers]:
        """Return the attention of the layers of `stage`, grouped by window, with stateful layers last."""
        layers = [self.model.layers[i] for i in stage]
        windows = Counter(layer.window for layer in layers if layer.mixer and not layer.recurrent)
        found = [AttentionLayers(self._attention(window), windows[window]) for window in sorted(windows)]
        states = sum(layer.recurrent for layer in layers)
        if states and self.model.recurrent is not None:
            found.append(AttentionLayers(recurrent_attention(self.gemms, self.model.recurrent, self.tp), states))
        return found

    def _attention(self, window: int) -> Attention:
        kernels, shape = self.gemms.tables, self.shape
        attention: Attention
        latent = self.model.latent
        kv_bytes = dtype_bytes(self.kv_dtype)
        if latent is not None and latent.indexer is not None:
            attention = sparse_attention(self.gemms, latent, self.model.hidden_size, shape.heads, self.kv_dtype)
        elif latent is not None:
            attention = latent_attention(self.gemms, latent, shape.heads, self.kv_dtype)
        elif kernels is not None and kernels.rows("attention_decode", _table_dtype(self.kv_dtype)):
            slowdown = self.gemms.measured_on.gpu.bandwidth / self.gpu.bandwidth
            attention = TableAttention(kernels, shape, self.kv_dtype, slowdown, window)
        else:
            attention = roofline_attention(self.roofline, shape, kv_bytes, window, self._wide)
        if self.prefill_flops < inf:
            attention = LimitedPrefill(attention, 4.0 * shape.heads * shape.head_dim / self.prefill_flops * 1e9)
        if self.eager_attention:
            attention = EagerAttention(attention, self.roofline, shape, self._wide)
        if self.host is None or latent is not None:
            return attention
        if attention.skew is not None:
            # host terms were fitted to decode steps with unequal contexts, so they already include that cost, as does
            # `BesidePrompt` for decodes batched with prompts, which is not used if mixed calls were measured
            attention.skew = attention.skew.beside_prompts() if attention.mixed is not None else None
        token = 2.0 * shape.kv_heads * shape.head_dim * kv_bytes * 1e9 / self.gpu.bandwidth
        if self.host.kv_bandwidth_share:
            attention = StreamedDecode(attention, token / self.host.kv_bandwidth_share)
        if attention.mixed is None:
            attention.mixed = BesidePrompt.of(self.host, shape.kv_heads, token, window)
        return attention

    def _norm_after_all_reduce(self) -> Curve:
        """Return the residual addition and norm that follow an all-reduce. They cost nothing up to the size for which
        the engine fuses them into its all-reduce kernel."""
        hidden = self.model.hidden_size
        alone = self._rows("norm", hidden, 8.0 * hidden)
        fused = int(self.fused_norm_to / (2 * hidden)) if self.tp > 1 else 0
        return free_up_to(alone, fused)

    def _head_linears(self, owns_kv: bool) -> list[Operator]:
        """Return the per-head projections of keys, values and queries; layers that share KV only project queries."""
        shape, hidden = self.shape, self.model.hidden_size
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim if owns_kv else 0
        gate = q if self.model.attention_gate else 0
        found = [
            self._gemm("qkv", q + gate + 2 * kv, hidden),
            self._gemm("attention_out", hidden, q),
        ]
        if gate:
            found.append(Operator("activation", self._rows("activation", q, 6.0 * q)))
        if self.model.qk_norm_all_heads and self.tp > 1:
            found += self._norm_across_gpus(q + kv)
        if owns_kv and "kv_write" not in self.within_attention:
            found.append(Operator("kv_write", self._rows("kv_write", kv, 8.0 * kv)))
        rotates = self.model.qk_norm or "rotary" not in self.within_attention
        if rotates and not self.model.learned_positions:
            found.append(Operator("rotary", self._rows("rotary", q + kv, 4.0 * (q + kv))))
        return found

    def _recurrent_linears(self) -> list[Operator]:
        """Return the projections of layers that keep a state, and the gated per-head norm of their output."""
        recurrent = self.model.recurrent
        assert recurrent is not None
        *into, (n, k) = recurrent.linears(self.model.hidden_size, self.tp)
        found = [self._gemm("state_in", width, size) for width, size in into]
        return [*found, Operator("norm", self._memory(6.0 * k)), self._gemm("state_out", n, k)]

    def _norm_across_gpus(self, width: int) -> list[Operator]:
        """Return the computation of the mean squares of queries and keys on this GPU, their sum over all GPUs, and the
        normalization (vLLM's MiniMaxText01RMSNormTP: both in one float32 all-reduce; recent versions fuse the
        passes)."""
        passes = [Operator("norm", self._memory(2.0 * width)), Operator("norm", self._memory(4.0 * width))]
        return [*passes, Operator("all_reduce", self._collective("all_reduce", 8))]

    def _latent_linears(self) -> list[Operator]:
        latent, heads = self.model.latent, self.shape.heads
        assert latent is not None
        widths = token_linears(latent, self.model.hidden_size, heads)
        return [
            *(self._gemm(f"latent {n} x {k}", n, k) for n, k in widths),
            Operator("norm", self._memory(4.0 * (latent.q_rank + latent.kv_rank))),
            Operator("kv_write", self._memory(4.0 * latent.width)),
            Operator("rotary", self._memory(4.0 * (heads + 1) * latent.rope_dim)),
        ]

    def _mlp(self, prefix: str, width: int) -> list[Operator]:
        hidden, inter = self.model.hidden_size, width // self.tp
        up = 2 * inter if self.model.gated_mlp else inter
        return [
            self._gemm(f"{prefix}up", up, hidden),
            Operator(f"{prefix}activation", self._rows("activation", inter, 2.0 * (up + inter))),
            self._gemm(f"{prefix}down", hidden, inter),
        ]

    def _experts(self) -> list[Operator]:
        """Return the router, the routed experts, and the shared expert that every token passes through."""
        moe = self.model.experts
        assert moe is not None
        found = [Operator("router", self._router(moe))]
        if self.dp == 1:  # otherwise ranks compute them jointly (see `mixture`)
            found.append(Operator("experts", self.routed(moe)))
        return found + (self._mlp("shared_", moe.shared_size) if moe.shared_size else [])

    def _router(self, experts: Experts) -> Curve:
        if self.fp32_router is None:
            return self.gemms.curve(experts.count, self.model.hidden_size, "bf16")
        tf32 = self.fp32_router == "high"
        return fp32_router_curve(self.roofline, experts.count, self.model.hidden_size, tf32)

    def _gemm(self, name: str, n: int, k: int) -> Operator:
        """Return a dense layer in the model's format: at the table's clock and, if known, at the clock that the power
        limit sustains."""
        curve, arithmetic = self.gemms.curve(n, k, self.dtype), COMPUTE_DTYPE[self.dtype]
        share = self.host.sustained_share(arithmetic) if self.host is not None else 0.0
        if not share:
            return Operator(name, curve)
        ns_per_token = 2.0 * n * k / (self.gpu.flops[arithmetic] * share / 1e9)
        return Operator(name, curve, upper(curve, line(0.0, ns_per_token)))

    def routed(self, moe: Experts) -> Curve:
        """Return the time of the routed experts of one layer as a function of the tokens of all ranks."""
        dtype, hidden, gpus = moe.dtype or self.dtype, self.model.hidden_size, self.tp * self.dp
        if not moe.gated and not family_measured(self.gemms, moe, hidden, dtype):
            moe = replace(moe, size=max(gpus, 2 * moe.size // 3))  # 2 of the 3 matrices
        curve = experts_curve(self.gemms, moe, hidden, gpus, dtype, self.moe_backend, self.ep, self.load)
        skew = ROUTED_SKEW.get(self.model.model_type)
        by_tables = (
            self.load is None and not self.moe_backend.startswith("deepgemm") and min(curve.knot_source) < ROOFLINE
        )
        if skew is not None and by_tables:
            curve = self._as_routed(curve, moe, skew, 3.0 * hidden * moe.size / gpus * dtype_bytes(dtype))
        return monotone(curve) if self.gemms.monotone else curve

    def _as_routed(self, curve: Curve, moe: Experts, skew: float, expert_bytes: float) -> Curve:
        """Return the times of measured experts for loads that are less unequal than the tables': as long as not all are
        touched, more of them are, each of which takes `expert_bytes` to read on each GPU."""
        read = expert_bytes / self.roofline.rate

        def more(tokens: float) -> float:
            own, tables = (touched(moe.count, moe.per_token, tokens, s) for s in (skew, MEASURED_SKEW))
            return max(read * (own - tables), 0.0)

        ys = [y + more(x) for x, y in zip(curve.xs, curve.ys, strict=True)]
        return Curve(curve.xs, ys, EXTRAPOLATED, last_slope=curve.slopes[-1])

    def _send(self) -> list[Operator]:
        """Return the time to send the hidden state and residual to the next stage, one slice per GPU, and to gather
        them there."""
        size = 4 * self.model.hidden_size
        found = [Operator("send", line(self.roofline.link_latency_ns, size / self.tp / self.roofline.link_rate))]
        return found + ([Operator("all_gather", self._collective("all_gather", size))] if self.tp > 1 else [])

    def _embedding(self) -> Curve:
        hidden = self.model.hidden_size
        if not self.roofline.textbook:
            return self._rows("embedding", hidden, 4.0 * hidden)
        rows = self.model.learned_positions + (0 if self.model.tie_embeddings else self.model.vocab_size // self.tp)
        return self.roofline.memory_op(0.0, rows * hidden * dtype_bytes(self._wide))

    @property
    def _wide(self) -> str:
        """Format of the activations and the LM head."""
        return "fp32" if self.dtype == "fp32" else "bf16"

    def _rows(self, op: str, width: int, bytes_per_row: float) -> Curve:
        return row_curve(self.gemms, op, width, bytes_per_row * dtype_bytes(self._wide) / 2, self._wide)

    def _memory(self, bytes_per_token: float) -> Curve:
        return self.roofline.memory_op(bytes_per_token * dtype_bytes(self._wide) / 2)

    def _collective(self, op: str, bytes_per_token: int, fused_below: float = 0.0) -> Curve:
        below = self.own_all_reduce_below
        return collective_curve(self.gemms.tables, self.roofline, op, self.tp, bytes_per_token, below, fused_below)


def _table_dtype(kv_dtype: str) -> str:
    return "bf16" if kv_dtype == "fp16" else kv_dtype
