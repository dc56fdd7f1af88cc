"""Figures of steps and batches, of memory, and of cost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from operator import attrgetter, itemgetter
from typing import Any

from servesim.contracts.figures import Figure, Group, Summary, Tile
from servesim.cost.formula import COMPUTE_DTYPE, format_on
from servesim.hardware import ModelSpec
from servesim.hardware.layers import Layer
from servesim.metrics.measured import Measured
from servesim.metrics.prefix_cache import RecentHitRate
from servesim.metrics.requests import SECOND, per
from servesim.metrics.steps import KINDS, ORIGINS
from servesim.metrics.words import percent
from servesim.records.spec_stats import SpecStats
from servesim.schemas import COUNT, DISTRIBUTION, FIGURE, NUMBER, a_list, an_object

BY_KIND = an_object(**dict.fromkeys(KINDS, FIGURE))


def mfu(m: Measured) -> float | None:
    """Return model FLOPs utilization: FLOPs that the answers needed, divided by the GPUs' peak over the duration.

    Per completed request: 2 per computed token (prompt without its prefix hit, and all outputs but the last) and weight
    outside the embeddings, 4 per query-key pair and head dimension, 2 per LM-head weight and output token. Padding and
    recomputation after preemption are not useful and do not count. None if the model's layers are not all alike and
    dense, or if there are several pools.
    """
    deployment = m.alone
    if deployment is None:
        return None
    model, gpu = deployment.model, deployment.gpu
    peak = gpu.flops.get(COMPUTE_DTYPE[format_on(gpu, deployment.dtype)])
    if peak is None or not _plain(model):
        return None
    flops = (
        2 * (model.num_params - model.embedding_params) * m.total("useful_tokens")
        + 4 * model.num_layers * model.q_size * m.total("useful_pairs")
        + 2 * model.hidden_size * model.vocab_size * m.total("output_tokens")
    )
    ns = m.duration_ns
    return per(flops, peak * deployment.gpus(ns) * ns / SECOND)


def mbu(m: Measured) -> float | None:
    """Return memory bandwidth utilization: bytes of the weights, once per step (of the embeddings, only a tied LM
    head), and of the keys and values of every attended context (including the context cached before a prefill chunk),
    divided by the bytes that the GPUs could read in the duration. None if the model's layers are not all alike and
    dense, or if there are several pools."""
    deployment, totals = m.alone, m.totals
    if deployment is None:
        return None
    model = deployment.model
    if not _plain(model):
        return None
    looked_up = model.learned_positions + (0 if model.tie_embeddings else model.vocab_size)
    weights = model.weight_bytes(deployment.dtype) - 2 * model.hidden_size * looked_up
    context = totals.decode_context + totals.sums["prefill_context"]
    kv_bytes = context * model.kv_bytes_per_token(deployment.kv_dtype, deployment.tp) * deployment.tp
    read = totals.steps * weights + kv_bytes
    ns = m.duration_ns
    return per(read, deployment.gpu.bandwidth * deployment.gpus(ns) * ns / SECOND)


def _plain(model: ModelSpec) -> bool:
    """Return whether every layer uses all its weights for every token and attends to the whole context."""
    return model.latent is None and all(layer == Layer() for layer in model.layers)


def busy_share(m: Measured) -> float | None:
    """Return the share of the replicas' uptime in which their GPUs computed."""
    whole = sum(m.seconds * pool.up(m.duration_ns) * pool.pp for pool in m.pools)
    return per(m.totals.sums["gpu_ns"] / SECOND, whole)


def _utilization(summary: Summary) -> str:
    known = [f"{name.upper()} {{{name}}}" for name in ("mfu", "mbu") if summary["engine"][name] is not None]
    return ", ".join(known) or "{steps} steps"


def _steps(summary: Summary) -> str:
    kinds = [f"{steps:,} {kind}" for kind, steps in summary["engine"]["steps_by_kind"].items() if steps]
    return f"{{steps}}: {', '.join(kinds)}" if kinds else "{steps}"


def _batch(summary: Summary) -> str:
    batch = summary["engine"]["batch_size"]
    return f"{{batch_size.mean}} requests per step, at most {batch['max']:.0f}" if batch else "-"


ENGINE = Group(
    "engine",
    "engine",
    (
        Figure("steps", "number of steps on all replicas", lambda m: m.totals.steps, schema=COUNT),
        Figure("steps_by_kind",
               "number of steps that compute prompts (`prefill`), output tokens (`decode`), or both (`mixed`)",
               lambda m: m.totals.steps_by_kind, schema=BY_KIND),
        Figure("time_by_kind_s", "time spent in each kind of step",
               lambda m: {kind: ns / SECOND for kind, ns in m.totals.ns_by_kind.items()}, "s", BY_KIND),
        Figure("batch_size", "requests per step. The statistics are over steps, not over time",
               lambda m: m.totals.batch_size(), schema=DISTRIBUTION),
        Figure("tokens_per_step",
               "tokens computed per step, without padding. The statistics are over steps, not over time",
               lambda m: m.totals.tokens_per_step(), schema=DISTRIBUTION),
        Figure("padded_tokens", "padding tokens, which are computed and then discarded (static batching only)",
               lambda m: m.totals.sums["padded_tokens"], schema=COUNT),
        Figure("gpu_busy_share",
               "time during which the GPUs compute, divided by the uptime of their replicas", busy_share, "share"),
        Figure("mfu",
               "FLOPs required to generate the answers, divided by the GPUs' peak FLOP/s times the duration. "
               "Recomputation and padding do not count. `null` for several pools, for models whose layers are not "
               "all dense and identical, and for GPUs without a stated peak for the format", mfu, "share"),
        Figure("mbu",
               "bytes read in all steps, divided by the bytes that the GPUs could read in the duration. A step reads "
               "the weights once and the KV of every attended context. `null` for several pools, and for models "
               "whose layers are not all dense and identical",
               mbu, "share"),
        Figure("preemptions", "number of times a running request lost its KV memory",
               lambda m: m.total("preemptions"), schema=COUNT),
        Figure("recomputed_tokens", "tokens computed again after preemptions",
               lambda m: m.total("recomputed_tokens"), schema=COUNT),
        Figure("replicas_used", "number of replicas that ran at least one step", lambda m: len(m.totals.replicas),
        schema=COUNT),
    ),
    rows=(
        ("steps", _steps),
        ("batch", _batch),
        ("GPU", "busy {gpu_busy_share}, MFU {mfu}, MBU {mbu}"),
        ("preemptions", "{preemptions}, {recomputed_tokens} tokens recomputed"),
    ),
    tiles=(Tile("GPU busy", "{gpu_busy_share}", _utilization),),
)  # fmt: skip


def _used(m: Measured) -> float | None:
    return per(m.totals.sums["kv_used_ns"], m.kv_capacity)


def _internal(m: Measured) -> float | None:
    return per(m.totals.sums["kv_internal_ns"], m.kv_capacity)


def _external(m: Measured) -> float | None:
    return per(m.totals.kv_external_ns, m.kv_capacity)


def _free(m: Measured) -> float | None:
    used, internal, external = _used(m), _internal(m), _external(m)
    return None if used is None or internal is None or external is None else 1.0 - used - internal - external


def _peak(summary: Summary) -> str:
    if summary["kv"]["peak_share"] is None:
        return "no peak for several pools"
    return "peak {peak_share} of {capacity_tokens} tokens"


KV = Group(
    "kv",
    "KV memory",
    (
        Figure("num_blocks",
               "number of KV blocks per replica (in the first pool)", lambda m: m.pools[0].num_blocks, schema=COUNT),
        Figure("block_size", "number of tokens per block (in the first pool)", lambda m: m.pools[0].block_size,
        "tokens", COUNT), Figure("capacity_tokens", "maximum number of tokens in the KV memory of a replica (in the "
        "first pool)",
               lambda m: m.pools[0].capacity_tokens, "tokens", COUNT),
        Figure("capacity_bytes_per_gpu", "size of the KV memory on each GPU, in bytes",
               lambda m: m.pools[0].num_blocks * m.pools[0].block_bytes, "bytes", COUNT),
        Figure("used_share", "mean share of the capacity that tokens of running requests use. Shared tokens count once",
               _used, "share"),
        Figure("internal_share",
               "memory that is allocated but not filled, such as ends of blocks and reservations", _internal, "share"),
        Figure("external_share", "free memory in pieces that are too small to use", _external, "share"),
        Figure("free_share", "free memory, including cached prefixes that may be evicted", _free, "share"),
        Figure("peak_share", "largest share of a replica's memory allocated at any time. `null` for several pools",
               lambda m: per(m.totals.kv_peak, m.pools[0].capacity_tokens) if m.alone else None, "share"),
    ),
    doc=(
        "Shares are means over the duration and all replicas. The time between steps counts as idle, with no memory "
        "in use."
    ),
    rows=(
        ("KV memory", lambda s: f"{{used_share}} used, {{internal_share}} wasted inside blocks, {_peak(s)}"),
    ),
    tiles=(
        Tile("KV memory, peak", "{peak_share}", "of {capacity_tokens} tokens; {engine.preemptions} preemptions",
             lambda summary: summary["engine"]["preemptions"] > 0),
    ),
)  # fmt: skip


def _recent(m: Measured) -> float | None:
    recent = RecentHitRate()
    for asked, found in m.requests.lookups(recent.window):
        recent.observe(1, asked, found)
    return recent.rate if m.total("queried_tokens") else None


PREFIX_CACHE = Group(
    "prefix_cache",
    "prefix cache",
    (
        Figure("queried_tokens", "prompt tokens that were looked up in the cache when requests were first admitted",
               lambda m: m.total("queried_tokens"), schema=COUNT),
        Figure("hit_tokens",
               "queried prompt tokens that were found in the cache", lambda m: m.total("hit_tokens"), schema=COUNT),
        Figure("hit_rate", "`hit_tokens` divided by `queried_tokens`",
               lambda m: per(m.total("hit_tokens"), m.total("queried_tokens")), "share", better="higher",
               scale="difference"),
        Figure("recent_hit_rate", "hit rate of the last 1,000 requests, as vLLM would log it at the end",
               _recent, "share"),
    ),
    doc="`null` without prefix caching.",
    rows=(("prefix cache", "{hit_rate} of prompt tokens found"),),
    if_null="off",
    source=lambda m: m if m.prefix_caching else None,
    null=True,
    windowed=True,
)  # fmt: skip


def _drafted(m: Measured) -> SpecStats | None:
    """Return the counts summed over all replicas, or None if nothing was drafted."""
    if not any(each.proposed for each in m.drafts):
        return None
    counts = ((each.proposed, each.drafts, each.draft_tokens, each.accepted) for each in m.drafts)
    by_position = zip_longest(*(each.per_pos for each in m.drafts), fillvalue=0)
    proposed, drafts, tokens, accepted = map(sum, zip(*counts, strict=True))
    return SpecStats(proposed, drafts, tokens, accepted, list(map(sum, by_position)))


def _drafts(summary: Summary) -> str:
    by_position = summary["speculation"]["per_position_acceptance_rates"]
    rates = " / ".join(percent(rate) for rate in by_position[:8])
    if len(by_position) > 8:
        rates += f" / ... ({len(by_position)} positions)"
    return (
        f"{{acceptance_length}} tokens per verification, {{acceptance_rate}} of {{draft_tokens}} draft tokens "
        f"accepted, {{unverified_tokens}} never verified; by position {rates or '-'}"
    )


SPECULATION = Group(
    "speculation",
    "speculation",
    (
        Figure("num_drafts", "number of verifications of at least one draft token", attrgetter("drafts"), schema=COUNT),
        Figure("draft_tokens", "draft tokens verified", attrgetter("draft_tokens"), schema=COUNT),
        Figure("accepted_tokens", "draft tokens accepted", attrgetter("accepted"), schema=COUNT),
        Figure("unverified_tokens",
               "draft tokens that were never verified, because their request ended or was preempted, or because they "
               "were trimmed",
               lambda s: s.proposed - s.draft_tokens, schema=COUNT),
        Figure("acceptance_rate",
               "accepted draft tokens divided by verified draft tokens", lambda s: per(s.accepted, s.draft_tokens),
               "share", better="higher", scale="difference"),
        Figure("acceptance_length",
               "tokens gained per verification, including the target model's own token: 1 + accepted draft tokens / "
               "verifications",
               lambda s: 1.0 + s.accepted / s.drafts if s.drafts else None, "tokens",
               better="higher"),
        Figure("per_position_acceptance_rates",
               "draft tokens accepted at each position, divided by all verifications, as in vLLM",
               lambda s: [count / s.drafts for count in s.per_pos], "share", a_list(NUMBER)),
    ),
    doc="`null` if nothing was drafted.",
    rows=(("speculation", _drafts),),
    source=_drafted,
    null=True,
)  # fmt: skip


def _price(kind: str, doc: str, amount: Callable[[Any], float], label: str = "") -> Figure:
    name = f"usd_per_million_{kind}"
    better = "lower" if label else ""
    return Figure(name, doc, lambda m: per(m.usd * 1e6, amount(m)), "$", better=better, label=label, stretched="longer")


def _by_the_hour(summary: Summary) -> str:
    usd = summary["price"]["usd_per_gpu_hour"]
    return "at no price" if usd is None else f"at ${usd:g} per GPU-hour"


PRICE = Group(
    "price",
    "price",
    (
        Figure("gpu_hours", "total uptime of all GPUs of the deployment", lambda m: m.gpu_hours, "h", NUMBER),
        Figure("usd_per_gpu_hour", "price per GPU-hour, or the mean price if there are several pools",
               lambda m: m.alone.usd_per_gpu_hour if m.alone else per(m.usd, m.gpu_hours), "$"),
        Figure("usd", "price of the GPU-hours", lambda m: m.usd, "$", NUMBER),
        _price("tokens", "total price divided by the number of input and output tokens of the completed requests",
               lambda m: m.ended("input_tokens") + m.ended("output_tokens"), "price per M tokens"),
        _price("input_tokens", "total price divided by the number of input tokens", lambda m: m.ended("input_tokens")),
        _price("output_tokens", "total price divided by the number of output tokens",
               lambda m: m.ended("output_tokens"),
               "price per M output tokens"),
    ),
    doc="The prices per million tokens divide the same total price by different token counts. Do not add them.",
    rows=(
        ("price", lambda s: "${usd_per_million_tokens} per million tokens, ${usd_per_million_output_tokens} per "
         f"million output tokens {_by_the_hour(s)}"),
    ),
    tiles=(
        Tile("Price", "${usd_per_million_output_tokens} per M", lambda s: f"output tokens, {_by_the_hour(s)}"),
    ),
    windowed=True,
)  # fmt: skip


def _origin(name: str, doc: str) -> Figure:
    return Figure(name, doc, itemgetter(name), "share")


def _costs(summary: Summary) -> str:
    within = summary["uncertainty"]
    shares = ", ".join(f"{{{name}}} {name}" for name in ORIGINS)
    return shares + (
        (f"; GPU time within {percent(within)} according to repeated measurements (95 %)") if within is not None else ""
    )


COST_SHARES = Group(
    "cost_shares",
    "kernel costs",
    (
        _origin("measured", "share of the GPU time that comes from measured kernels"),
        _origin("interpolated", "share of the GPU time that comes from interpolation between measured points"),
        _origin("extrapolated", "share of the GPU time that comes from extrapolation beyond the measured points"),
        _origin("roofline", "share of the GPU time that comes from a formula and the figures in the data sheet"),
    ),
    rows=(("kernel costs", _costs),),
    source=lambda m: m.totals.cost_shares(),
)
UNCERTAINTY = Group(
    "",
    "uncertainty",
    (
        Figure("uncertainty",
               "half-width of a 95 % interval of the GPU time, divided by the GPU time. This figure is defined if "
               "the kernel tables contain the error of repeated measurements", lambda m:
               m.totals.uncertainty(m.relative_error), "share"),
    ),
    rows=(),
)  # fmt: skip
