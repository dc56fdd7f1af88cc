"""Metrics of TensorRT-LLM's trtllm-serve (tensorrt_llm/metrics/collector.py of its main branch in 2026; releases before
1.2 have fewer), shown at /prometheus/metrics as there, and at /metrics, where trtllm-serve shows iterations as JSON.

Labels have no values there: the server creates them as "undefined". Replicas are added up, as the ranks of one server.
"""

from __future__ import annotations

from collections.abc import Callable

from servesim.live.metrics.counts import Bounds, Counts
from servesim.live.metrics.dialect import Dialect, Engine, Family, Labelled, Value, one
from servesim.live.metrics.vllm import FIRST_TOKEN, LATENCY, TOKEN, reported, served

PREFILL = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)


def bounds(max_model_len: int) -> Bounds:
    """Return the bounds of all histograms."""
    return {
        "ttft": FIRST_TOKEN,
        "tpot": TOKEN,
        "prefill": PREFILL,
        **dict.fromkeys(("e2e", "queue", "decode", "inference"), LATENCY),
        "cached": (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    }


def labels(model: str, engine: Engine, of_engine: bool) -> dict[str, str]:
    """Return the labels of a sample."""
    return {"model_name": "undefined", "engine_type": "undefined"}


def _added(measure: str) -> Callable[[Engine], float]:
    return lambda e: sum(e.counts.served[streamed].of[measure].total for streamed in (True, False))


def _by_finish(engine: Engine) -> Labelled:
    return [((reason,), count) for reason, count in engine.counts.finished.items()]


def _blocks(engine: Engine) -> float:
    return engine.usage * _most_blocks(engine)


def _most_blocks(engine: Engine) -> float:
    kv = engine.replica.core.kv
    return float(kv.capacity_tokens // kv.block_size)


def _gauge(name: str, text: str, read: Callable[[Engine], Value], averaged: bool = False) -> Family:
    return Family("gauge", f"trtllm_{name}", text, one(read), averaged=averaged)


def _counter(name: str, text: str, read: Callable[[Engine], float]) -> Family:
    return Family("counter", f"trtllm_{name}_total", text, one(read))


def _histogram(name: str, text: str, measure: str) -> Family:
    return Family("histogram", f"trtllm_{name}", text, served(measure))


FAMILIES = (
    Family("counter", "trtllm_request_success_total", "Finished requests.", _by_finish, ("finished_reason",)),
    _histogram("e2e_request_latency_seconds", "Time from arrival to last token.", "e2e"),
    _histogram("time_to_first_token_seconds", "Time from arrival to first token.", "ttft"),
    _histogram("time_per_output_token_seconds", "Mean time between the tokens of a request.", "tpot"),
    _histogram("request_queue_time_seconds", "Time until first scheduled.", "queue"),
    _histogram("request_prefill_time_seconds", "Time from first scheduled to first token.", "prefill"),
    _histogram("request_decode_time_seconds", "Time from first to last token.", "decode"),
    _histogram("request_inference_time_seconds", "Time from first scheduled to last token.", "inference"),
    _counter("prompt_tokens", "Prompt tokens of finished requests.", _added("prompt")),
    _counter("generation_tokens", "Output tokens of finished requests.", _added("generation")),
    _counter("prompt_cached_tokens", "Prompt tokens found in the KV cache.", _added("cached")),
    _histogram("prompt_cached_tokens_per_request", "Prompt tokens of a request found in the KV cache.", "cached"),
    _gauge("num_requests_running", "Requests that run.", lambda e: e.load.running),
    _gauge("num_requests_waiting", "Requests that wait.", lambda e: e.load.waiting),
    _counter("num_requests_completed", "Finished requests.", lambda e: sum(e.counts.finished.values())),
    _gauge("kv_cache_utilization", "Share of the KV cache in use, 0 to 1.", lambda e: e.usage, averaged=True),
    _gauge("kv_cache_max_blocks", "Blocks.", _most_blocks),
    _gauge("kv_cache_used_blocks", "Blocks in use.", lambda e: round(_blocks(e))),
    _gauge("kv_cache_free_blocks", "Blocks available.", lambda e: round(_most_blocks(e) - _blocks(e))),
    _gauge("kv_cache_tokens_per_block", "Tokens per block.", lambda e: e.replica.core.kv.block_size, averaged=True),
)
TRTLLM = Dialect(
    FAMILIES, labels, Counts, bounds, reported, paths=("/metrics", "/prometheus/metrics"), one_server=True, lazy=True
)
