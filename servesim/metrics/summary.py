"""All figures of a run as one plain dictionary: what `summary.json` holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.cost.formula import COMPUTE_DTYPE
from servesim.hardware import Gpu, ModelSpec
from servesim.hardware.layers import Layer
from servesim.metrics.prefix_cache import RecentHitRate
from servesim.metrics.requests import SECOND, Requests, Stats, counts, goodput, latencies_ms, per, throughput
from servesim.metrics.stability import stability
from servesim.metrics.steps import StepTotals


@dataclass(frozen=True)
class Deployment:
    """The serving system, as far as figures depend on it."""

    model: ModelSpec
    gpu: Gpu
    replicas: int
    tp: int
    pp: int
    dtype: str
    kv_dtype: str
    block_size: int
    num_blocks: int
    """KV blocks of one replica."""
    capacity_tokens: int
    """Tokens the KV memory of one replica holds at most."""
    block_bytes: int
    """Bytes of a block on one GPU."""
    prefix_caching: bool
    usd_per_gpu_hour: float
    up_ns: int | None = None
    """Time that its replicas were up, in all; None: all of them all the time."""

    def replica_ns(self, duration_ns: int) -> int:
        """Return the time that replicas were up in a run of this duration."""
        return self.replicas * duration_ns if self.up_ns is None else self.up_ns

    def up(self, duration_ns: int) -> float:
        """Return the mean number of replicas up at a time in a run of this duration."""
        return self.replicas if self.up_ns is None else self.up_ns / max(duration_ns, 1)

    def gpus(self, duration_ns: int) -> float:
        """Return the mean number of GPUs at a time in a run of this duration."""
        return self.up(duration_ns) * self.tp * self.pp


def summarize(
    requests: Requests, itl: Stats, totals: StepTotals, pools: Sequence[Deployment], slo: Mapping[str, float]
) -> dict[str, Any]:
    """Return the figures of a finished run. Latencies are in ms, durations in s, shares between 0 and 1; None where
    there is nothing to say (no request completed, no SLO given; of several pools what only one can have)."""
    return {
        "requests": counts(requests),
        "duration_s": requests.duration_ns / SECOND,
        "throughput": throughput(requests),
        "latency_ms": latencies_ms(requests, itl),
        "goodput": goodput(requests, slo) if slo else None,
        "stability": stability(requests),
        "engine": engine(requests, totals, pools),
        "kv": kv_memory(requests, totals, pools),
        "prefix_cache": prefix_cache(requests, pools),
        "price": price(requests, pools),
        "cost_shares": totals.cost_shares(),
    }


def engine(requests: Requests, totals: StepTotals, pools: Sequence[Deployment]) -> dict[str, Any]:
    """Return the figures of steps and batches, and how busy the GPUs were. `preemptions` and `recomputed_tokens` count
    all requests."""
    duration_ns = requests.duration_ns
    seconds = duration_ns / SECOND
    whole = sum(seconds * pool.up(duration_ns) * pool.pp for pool in pools)
    alone = pools[0] if len(pools) == 1 else None
    return {
        "steps": totals.steps,
        "steps_by_kind": totals.steps_by_kind,
        "time_by_kind_s": {kind: ns / SECOND for kind, ns in totals.ns_by_kind.items()},
        "batch_size": totals.batch_size(),
        "tokens_per_step": totals.tokens_per_step(),
        "padded_tokens": totals.sums["padded_tokens"],
        "gpu_busy_share": per(totals.sums["gpu_ns"] / SECOND, whole),
        "mfu": mfu(requests, alone) if alone is not None else None,
        "mbu": mbu(requests, totals, alone) if alone is not None else None,
        "preemptions": requests.total("preemptions"),
        "recomputed_tokens": requests.total("recomputed_tokens"),
        "replicas_used": len(totals.replicas),
    }


def mfu(requests: Requests, deployment: Deployment) -> float | None:
    """Return model FLOPs utilization: the arithmetic the answers needed over what the GPUs could do in the duration.

    Per completed request: 2 per weight outside the embeddings and token computed (prompt without its prefix hit, and
    all outputs but the last), 4 per query-key pair and head dimension, 2 per LM-head weight and output token.
    Recomputation after preemption and padding are not useful and do not count. None for models whose layers are
    not all alike and dense.
    """
    model, peak = deployment.model, deployment.gpu.flops.get(COMPUTE_DTYPE[deployment.dtype])
    if peak is None or not _plain(model):
        return None
    flops = (
        2 * (model.num_params - model.embedding_params) * requests.total("useful_tokens")
        + 4 * model.num_layers * model.q_size * requests.total("useful_pairs")
        + 2 * model.hidden_size * model.vocab_size * requests.total("output_tokens")
    )
    ns = requests.duration_ns
    return per(flops, peak * deployment.gpus(ns) * ns / SECOND)


def mbu(requests: Requests, totals: StepTotals, deployment: Deployment) -> float | None:
    """Return memory bandwidth utilization: weights once per step (of embeddings only a tied LM head), and keys and
    values of every context attended (those a prefill piece finds included), over what the GPUs could read meanwhile.
    None for models whose layers are not all alike and dense."""
    model = deployment.model
    if not _plain(model):
        return None
    looked_up = model.learned_positions + (0 if model.tie_embeddings else model.vocab_size)
    weights = model.weight_bytes(deployment.dtype) - 2 * model.hidden_size * looked_up
    context = totals.decode_context + totals.sums["prefill_context"]
    kv_bytes = context * model.kv_bytes_per_token(deployment.kv_dtype, deployment.tp) * deployment.tp
    read = totals.steps * weights + kv_bytes
    ns = requests.duration_ns
    return per(read, deployment.gpu.bandwidth * deployment.gpus(ns) * ns / SECOND)


def _plain(model: ModelSpec) -> bool:
    """Return whether every layer computes all its weights for every token and attends the whole context."""
    return model.latent is None and all(layer == Layer() for layer in model.layers)


def kv_memory(requests: Requests, totals: StepTotals, pools: Sequence[Deployment]) -> dict[str, Any]:
    """Return KV memory over time and replicas: mean shares of the capacity while the run lasted, and the peak of one
    replica. Between steps nothing runs and nothing is held. Sizes are those of the first pool."""
    deployment = pools[0]
    capacity = deployment.capacity_tokens
    whole = sum(pool.capacity_tokens * pool.replica_ns(requests.duration_ns) for pool in pools)
    used = per(totals.sums["kv_used_ns"], whole)
    internal = per(totals.sums["kv_internal_ns"], whole)
    external = per(totals.kv_external_ns, whole)
    free = None if used is None or internal is None or external is None else 1.0 - used - internal - external
    return {
        "num_blocks": deployment.num_blocks,
        "block_size": deployment.block_size,
        "capacity_tokens": capacity,
        "capacity_bytes_per_gpu": deployment.num_blocks * deployment.block_bytes,
        "used_share": used,
        "internal_share": internal,
        "external_share": external,
        "free_share": free,
        "peak_share": per(totals.kv_peak, capacity) if len(pools) == 1 else None,
    }


def prefix_cache(requests: Requests, pools: Sequence[Deployment]) -> dict[str, Any] | None:
    """Return the prompt tokens looked up when requests were first admitted, and those found; `recent_hit_rate` is what
    vLLM would log at the end: that of the last 1000 requests. None without prefix caching."""
    if not any(pool.prefix_caching for pool in pools):
        return None
    queried, hits = requests.total("queried_tokens"), requests.total("hit_tokens")
    recent = RecentHitRate()
    for asked, found in requests.lookups(recent.window):
        recent.observe(1, asked, found)
    return {
        "queried_tokens": queried,
        "hit_tokens": hits,
        "hit_rate": per(hits, queried),
        "recent_hit_rate": recent.rate if queried else None,
    }


def price(requests: Requests, pools: Sequence[Deployment]) -> dict[str, float | None]:
    """Return the GPU time of the duration and its price; each price per million tokens lays all of it on those
    tokens."""
    each = [pool.gpus(requests.duration_ns) * requests.duration_ns / SECOND / 3600 for pool in pools]
    hours, usd = sum(each), sum(h * pool.usd_per_gpu_hour for h, pool in zip(each, pools, strict=True))
    prompt, output = requests.total("input_tokens"), requests.total("output_tokens")
    return {
        "gpu_hours": hours,
        "usd_per_gpu_hour": pools[0].usd_per_gpu_hour if len(pools) == 1 else per(usd, hours),
        "usd": usd,
        "usd_per_million_input_tokens": per(usd * 1e6, prompt),
        "usd_per_million_output_tokens": per(usd * 1e6, output),
        "usd_per_million_tokens": per(usd * 1e6, prompt + output),
    }
