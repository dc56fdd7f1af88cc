"""Metrics of vLLM 0.33.0 (vllm/v1/metrics/loggers.py, stats.py and buckets.py; vllm/v1/spec_decode/metrics.py).

A prompt is counted when its first token is delivered, lookups of the prefix cache when a request is admitted for the
first time, and the metrics of a request when it finishes; requests that clients abandon are not counted then
(AsyncLLM.abort forgets them). Gauges show the scheduler as the last step left it. Metrics that vLLM shows only with
further options (LoRA, MFU, residency of KV blocks, watermarks) are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servesim.contracts.request import State
from servesim.live.metrics.counts import Bounds, Counts
from servesim.live.metrics.dialect import Dialect, Engine, Family, Labelled, load_of, one
from servesim.live.metrics.histogram import Histogram
from servesim.records.step import Step

LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
REASONS = ("stop", "length", "abort", "error", "repetition")
CACHE_CONFIG = (
    *("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization"),
    "kv_cache_size_tokens",
)
"""Labels of vLLM's CacheConfig that a simulated engine has; the real ones are many more."""
TIERS = ("device", "host", "p2p", "disk", "external_unspecified")


def bounds(max_model_len: int) -> Bounds:
    """Return the bounds of all histograms."""
    series = (digit * 10**power for power in range(len(str(max_model_len))) for digit in (1, 2, 5))
    lengths = tuple(tokens for tokens in series if tokens <= max_model_len)
    return {
        "ttft": FIRST_TOKEN,
        **dict.fromkeys(("itl", "tpot"), TOKEN),
        **dict.fromkeys(("e2e", "queue", "prefill", "decode", "inference"), LATENCY),
        **dict.fromkeys(("prompt", "generation", "uncached", "max_tokens", "most"), lengths),
        "iteration": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        "preemptions": (1, 2, 3, 4, 5, 10, 20),
        "n": (1, 2, 5, 10, 20),
    }


def labels(model: str, engine: Engine, of_engine: bool) -> dict[str, str]:
    """Return the labels of a sample."""
    index = {"engine": str(engine.replica.index)} if of_engine else {}
    return {"model_name": model, **index}


def reported(counts: Counts, replica: Any, step: Step, tokens: int, running: int) -> None:
    """Report the state of a replica, as after every step."""
    counts.load = load_of(replica)


def served(measure: str) -> Callable[[Engine], Labelled]:
    """Return a reader of the histogram of a measure."""

    def read(engine: Engine) -> Histogram:
        streamed, whole = engine.counts.served[True].of[measure], engine.counts.served[False].of[measure]
        return streamed.and_others([whole])

    return one(read)


def _by_reason(engine: Engine) -> Labelled:
    load = engine.load
    return [(("capacity",), load.waiting - load.deferred), (("deferred",), load.deferred)]


def _by_stage(engine: Engine) -> Labelled:
    core = engine.replica.core
    if core.connector is None:
        return []
    loading = core.num_loading
    arrived = sum(request.state < State.FINISHED for request in core.fetched) - loading
    waiting = engine.load.waiting - engine.load.deferred if engine.replica.role == "decode" else 0
    return [(("waiting_to_start",), waiting), (("in_progress",), loading), (("completed_waiting",), arrived)]


def _by_source(engine: Engine) -> Labelled:
    prompts = engine.counts.prompts
    return [
        (("local_compute",), prompts.computed),
        (("local_cache_hit",), prompts.hits),
        (("external_kv_transfer",), prompts.external),
    ]


def _by_tier(engine: Engine) -> Labelled:
    found = {"device": engine.counts.local.hits, source_of(engine.replica.core): engine.counts.external.hits}
    return [((tier,), found.get(tier, 0)) for tier in TIERS]


def source_of(core: Any) -> str:
    """Return the tier that a core's connector loads from (vllm/v1/metrics/cache_hit_source.py): only the offloading
    connector knows it; NIXL's and LMCache's do not say."""
    return getattr(core.connector, "tier", "") or "external_unspecified"


def _by_finish(engine: Engine) -> Labelled:
    return [((reason,), engine.counts.finished.get(reason, 0)) for reason in REASONS]


def _rejections(engine: Engine) -> Labelled:
    return [(("max_num_queued_reqs",), engine.counts.refused), (("max_num_queued_tokens",), 0)]


def _cache_config(engine: Engine) -> Labelled:
    kv, settings = engine.replica.core.kv, engine.scenario
    values = {
        "block_size": kv.memory.block_size,
        "num_gpu_blocks": kv.memory.num_blocks,
        "cache_dtype": "auto" if settings.kv_dtype == "bf16" else settings.kv_dtype,
        "enable_prefix_caching": kv.shares,
        "gpu_memory_utilization": settings.engine.gpu_memory_utilization,
        "kv_cache_size_tokens": kv.capacity_tokens,
    }
    return [(tuple(str(values[name]) for name in CACHE_CONFIG), 1)]


def _accepted_at(engine: Engine) -> Labelled:
    speculator, at = engine.replica.core.speculator, engine.counts.drafts.accepted_at
    if speculator is None:
        return []
    most = max(speculator.depth(speculator.verified(speculator.max_drafts)), len(at))
    return [((str(position),), at[position] if position < len(at) else 0) for position in range(most)]


def _drafting(read: Callable[[Engine], float]) -> Callable[[Engine], Labelled]:
    """Return a reader of one sample of replicas that use drafts."""
    return lambda engine: [((), read(engine))] if engine.replica.core.speculator is not None else []


FAMILIES = (
    Family("gauge", "vllm:num_requests_running", "Requests that hold a slot.", one(lambda e: e.load.running)),
    Family("gauge", "vllm:num_requests_waiting", "Requests that wait.", one(lambda e: e.load.waiting)),
    Family(
        "gauge",
        "vllm:num_requests_waiting_by_reason",
        "Requests that wait for capacity, or are deferred because their KV is loaded from elsewhere.",
        _by_reason,
        ("reason",),
    ),
    Family("gauge", "vllm:num_requests_kv_fetch_by_stage", "Requests by stage of their load.", _by_stage, ("stage",)),
    Family(
        "gauge",
        "vllm:engine_sleep_state",
        "Whether the engine is awake or asleep; a simulated one never sleeps.",
        lambda e: [(("awake",), 1), (("weights_offloaded",), 0), (("discard_all",), 0)],
        ("sleep_state",),
    ),
    Family("gauge", "vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", one(lambda e: e.usage)),
    Family(
        "counter",
        "vllm:prefix_cache_queries_total",
        "Tokens looked up in the prefix cache.",
        one(lambda e: e.counts.local.queries),
    ),
    Family(
        "counter",
        "vllm:prefix_cache_hits_total",
        "Tokens found in the prefix cache.",
        one(lambda e: e.counts.local.hits),
    ),
    Family(
        "counter",
        "vllm:external_prefix_cache_queries_total",
        "Tokens looked up beyond the prefix cache, by the KV connector.",
        one(lambda e: e.counts.external.queries),
    ),
    Family(
        "counter",
        "vllm:external_prefix_cache_hits_total",
        "Tokens that the KV connector found.",
        one(lambda e: e.counts.external.hits),
    ),
    Family("counter", "vllm:mm_cache_queries_total", "Multi-modal items looked up; none.", one(lambda e: 0)),
    Family("counter", "vllm:mm_cache_hits_total", "Multi-modal items found; none.", one(lambda e: 0)),
    Family("counter", "vllm:num_preemptions_total", "Preemptions.", one(lambda e: e.counts.preemptions)),
    Family("counter", "vllm:prompt_tokens_total", "Prompt tokens.", one(lambda e: e.counts.prompts.total)),
    Family("counter", "vllm:prompt_tokens_by_source_total", "Prompt tokens by source.", _by_source, ("source",)),
    Family(
        "counter",
        "vllm:prompt_tokens_cached_total",
        "Prompt tokens that were not computed.",
        one(lambda e: e.counts.prompts.hits + e.counts.prompts.external),
    ),
    Family(
        "counter",
        "vllm:prompt_tokens_cached_by_source_total",
        "Tokens found, by the tier that had them, counted at admission.",
        _by_tier,
        ("source",),
    ),
    Family("counter", "vllm:generation_tokens_total", "Output tokens.", one(lambda e: e.counts.generated)),
    Family("counter", "vllm:request_success_total", "Finished requests.", _by_finish, ("finished_reason",)),
    Family(
        "counter",
        "vllm:admission_rejections_total",
        "Requests refused because the queue was full.",
        _rejections,
        ("reason",),
        of_engine=False,
    ),
    Family("histogram", "vllm:request_prompt_tokens", "Prompt tokens of a request.", served("prompt")),
    Family("histogram", "vllm:request_generation_tokens", "Output tokens of a request.", served("generation")),
    Family(
        "histogram",
        "vllm:iteration_tokens_total",
        "Tokens of a step: prompts whose first token it delivered, and output tokens.",
        one(lambda e: e.counts.iteration),
    ),
    Family(
        "histogram",
        "vllm:request_max_num_generation_tokens",
        "Most output tokens of a request's samples.",
        served("most"),
    ),
    Family("histogram", "vllm:request_params_n", "Samples of a request.", served("n")),
    Family("histogram", "vllm:request_params_max_tokens", "max_tokens of a request.", served("max_tokens")),
    Family("histogram", "vllm:time_to_first_token_seconds", "Time from arrival to first token.", served("ttft")),
    Family("histogram", "vllm:inter_token_latency_seconds", "Time between deliveries.", one(lambda e: e.counts.itl)),
    Family(
        "histogram",
        "vllm:request_time_per_output_token_seconds",
        "Mean time between the tokens of a request.",
        served("tpot"),
    ),
    Family("histogram", "vllm:e2e_request_latency_seconds", "Time from arrival to last token.", served("e2e")),
    Family("histogram", "vllm:request_queue_time_seconds", "Time until first scheduled.", served("queue")),
    Family(
        "histogram",
        "vllm:request_inference_time_seconds",
        "Time from first scheduled to last token.",
        served("inference"),
    ),
    Family(
        "histogram",
        "vllm:request_prefill_time_seconds",
        "Time from first scheduled to first token.",
        served("prefill"),
    ),
    Family("histogram", "vllm:request_decode_time_seconds", "Time from first to last token.", served("decode")),
    Family("histogram", "vllm:request_num_preemptions", "Preemptions of a request.", served("preemptions")),
    Family(
        "histogram",
        "vllm:request_prefill_kv_computed_tokens",
        "Prompt tokens of a request that were computed.",
        served("uncached"),
    ),
    Family(
        "gauge",
        "vllm:cache_config_info",
        "Configuration of the KV cache.",
        _cache_config,
        CACHE_CONFIG,
    ),
    Family(
        "counter",
        "vllm:spec_decode_num_drafts_total",
        "Drafts verified, one for each request and step.",
        _drafting(lambda e: e.counts.drafts.count),
    ),
    Family(
        "counter",
        "vllm:spec_decode_num_draft_tokens_total",
        "Draft tokens verified.",
        _drafting(lambda e: e.counts.drafts.tokens),
    ),
    Family(
        "counter",
        "vllm:spec_decode_num_accepted_tokens_total",
        "Draft tokens accepted.",
        _drafting(lambda e: e.counts.drafts.accepted),
    ),
    Family(
        "counter",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "Draft tokens accepted, by position.",
        _accepted_at,
        ("position",),
    ),
)
VLLM = Dialect(FAMILIES, labels, Counts, bounds, reported, tpot_of_one=True)
