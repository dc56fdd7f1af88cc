"""Metrics of SGLang 0.5.23 (srt/observability/metrics_collector.py, srt/managers/tokenizer_manager.py and
scheduler_components/metrics_reporter.py).

Prompts, hits and outputs are counted when a request ends, even if it was aborted while it ran. The scheduler reports
its state after each prefill batch and each 40th decode batch (`--decode-log-interval`); when nothing runs, at once.
Several replicas are shown as data-parallel ranks behind one tokenizer manager. Counters appear when they first count.
The simulated scheduler cannot verify drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servesim.live.metrics.counts import Bounds, Counts, Load
from servesim.live.metrics.dialect import Dialect, Engine, Family, Labelled, load_of, one
from servesim.live.metrics.histogram import NS, Histogram
from servesim.records.step import Step

REPORT_EVERY = 40
"""Decode batches between reports."""
FIRST_TOKEN = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
TOKEN = (
    *(0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080),
    *(0.100, 0.200, 0.400, 0.600, 0.800, 1.000, 2.000, 4.000, 6.000, 8.000),
)
QUEUE = (
    *(0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90),
    *(100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000),
)
LENGTHS = (
    *(100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12500, 15000, 17500),
    *(20000, 22500, 25000, 27500, 30000, 35000, 40000, 60000, 80000, 100000, 200000, 300000, 400000, 600000),
    *(800000, 1000000, 1100000),
)
ROLES = {"both": "unified", "prefill": "prefill", "decode": "decode"}


def bounds(max_model_len: int) -> Bounds:
    """Return the bounds of all histograms."""
    return {
        "ttft": FIRST_TOKEN,
        **dict.fromkeys(("itl", "tpot"), TOKEN),
        "e2e": (*FIRST_TOKEN, 600, 1200, 1800, 2400),
        "queue": QUEUE,
        **dict.fromkeys(("prompt", "generation", "uncached"), LENGTHS),
    }


def labels(model: str, engine: Engine, of_engine: bool) -> dict[str, str]:
    """Return the labels of a sample."""
    found = {"model_name": model, "engine_type": ROLES[engine.replica.role]}
    if not of_engine:
        return found
    rank = {"dp_rank": str(engine.replica.index)} if engine.several else {}
    return {**found, "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0", **rank}


class SglangCounts(Counts):
    """Counts, and what the scheduler reports."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.throughput = self.hit_rate = 0.0
        """Output tokens per second between the last two reports of decode, and hits among the prompt tokens of the last
        prefill batch."""
        self.decode_context = self.retracted = 0
        """Sum of the lengths at the last report of decode, and number of requests preempted before the last report."""
        self.prefill_tokens = self.decode_tokens = 0
        """Prompt tokens computed, and tokens delivered by decode batches."""
        self._batches = self._tokens = self._since_ns = 0  # decode batches; tokens since the last report, and its time
        self._hits = self._preemptions = 0  # up to the last report

    def prefilled(self, step: Step, replica: Any, running: int) -> None:
        """Report after a prefill batch; `running` counts its requests, too."""
        tokens = sum(new for new, _ in step.batch.prefill)
        hits, self._hits = self.local.hits - self._hits, self.local.hits
        self.prefill_tokens += tokens
        self.hit_rate = hits / (hits + tokens)
        load = load_of(replica)
        alone = replica.role == "prefill"  # no decode batch runs beside it, so the batch itself is shown
        of_batch = len(step.batch.prefill)
        self._report(load._replace(running=of_batch if alone else max(running - of_batch, 0)))

    def decoded(self, step: Step, replica: Any, tokens: int) -> None:
        """Report after a decode batch, if it is time."""
        self.decode_tokens += tokens
        self._tokens += tokens
        self._batches += 1
        if self._batches % REPORT_EVERY:
            return
        self.throughput = self._tokens * NS / (step.end_ns - self._since_ns)
        self._tokens, self._since_ns = 0, step.end_ns
        self.decode_context = step.batch.decode_context_sum
        self._report(load_of(replica)._replace(running=step.batch.decode_count))

    def _report(self, load: Load) -> None:
        self.load = load
        self.retracted, self._preemptions = self.preemptions - self._preemptions, self.preemptions


def stepped(counts: Counts, replica: Any, step: Step, tokens: int, running: int) -> None:
    """Report the state of a replica if the step is one after which SGLang does."""
    assert isinstance(counts, SglangCounts)
    if step.batch.prefill:
        counts.prefilled(step, replica, running if running >= 0 else replica.num_running)
    else:
        counts.decoded(step, replica, tokens)


def _own(read: Callable[[SglangCounts], float]) -> Callable[[Engine], float]:
    def value(engine: Engine) -> float:
        assert isinstance(engine.counts, SglangCounts)
        return read(engine.counts)

    return value


def _throughput(engine: Engine) -> float:
    assert isinstance(engine.counts, SglangCounts)
    return engine.counts.throughput if engine.replica.core.in_flight else 0.0


def _kinds(read: Callable[[Engine, bool], float | Histogram]) -> Callable[[Engine], Labelled]:
    """Return a reader of one sample for streamed answers and one for others."""
    return lambda engine: [(("true",), read(engine, True)), (("false",), read(engine, False))]


def _served(measure: str) -> Callable[[Engine], Labelled]:
    return _kinds(lambda engine, streamed: engine.counts.served[streamed].of[measure])


def _added(measure: str) -> Callable[[Engine], Labelled]:
    return _kinds(lambda engine, streamed: engine.counts.served[streamed].of[measure].total)


def _both(measure: str) -> Callable[[Engine], Histogram]:
    return lambda e: e.counts.served[True].of[measure].and_others([e.counts.served[False].of[measure]])


def _tokens(engine: Engine) -> Labelled:
    counts = engine.counts
    assert isinstance(counts, SglangCounts)
    return [
        (("prefill_compute",), counts.prefill_tokens),
        (("prefill_cache",), counts.local.hits),
        (("decode",), counts.decode_tokens),
    ]


def _cached(engine: Engine) -> Labelled:
    total, host = _both("cached")(engine).total, _both("external")(engine).total
    return [(("device",), total - host), (("host",), host)]


def _used(engine: Engine) -> float:
    free, capacity = engine.load.free_tokens, engine.replica.core.kv.capacity_tokens
    return capacity - free if free >= 0 else 0


def _gauge(name: str, text: str, read: Callable[[Engine], float]) -> Family:
    return Family("gauge", f"sglang:{name}", text, one(read))


def _counter(name: str, text: str, read: Callable[[Engine], float], of_engine: bool = True) -> Family:
    return Family("counter", f"sglang:{name}_total", text, one(read), of_engine=of_engine)


def _lengths(name: str, text: str, measure: str) -> Family:
    return Family("histogram", f"sglang:{name}", text, one(_both(measure)), of_engine=False)


def _sums(name: str, text: str, measure: str) -> Family:
    return Family("counter", f"sglang:{name}_total", text, _added(measure), ("is_streaming",), of_engine=False)


def _times(name: str, text: str, measure: str) -> Family:
    return Family("histogram", f"sglang:{name}_seconds", text, _served(measure), ("is_streaming",), of_engine=False)


FAMILIES = (
    _gauge("num_running_reqs", "Requests that run.", lambda e: e.load.running),
    _gauge("num_queue_reqs", "Requests that wait.", lambda e: e.load.waiting),
    _gauge("num_grammar_queue_reqs", "Requests that wait for a grammar; none.", lambda e: 0),
    _gauge("gen_throughput", "Output tokens per second, over the last decode batches.", _throughput),
    _gauge("cache_hit_rate", "Share of hits in the last prefill batch.", _own(lambda counts: counts.hit_rate)),
    _gauge("decode_sum_seq_lens", "Sum of lengths in decode.", _own(lambda counts: counts.decode_context)),
    _gauge("token_usage", "Share of the KV cache in use, 0 to 1.", lambda e: round(e.usage, 2)),
    _gauge("full_token_usage", "Share of the KV cache in use, not rounded.", lambda e: e.usage),
    _gauge("num_used_tokens", "Tokens in use.", _used),
    _gauge("kv_used_tokens", "Tokens in use.", _used),
    _gauge("spec_accept_length", "Tokens per verification of drafts; none.", lambda e: 0),
    _gauge("spec_accept_rate", "Share of drafts accepted; none.", lambda e: 0),
    _gauge("num_retracted_reqs", "Requests retracted before the last report.", _own(lambda counts: counts.retracted)),
    _gauge("num_paused_reqs", "Requests paused; none.", lambda e: 0),
    _counter("num_retracted_requests", "Retractions.", lambda e: e.counts.preemptions),
    _counter("num_retracted_input_tokens", "Prompt tokens of retracted requests.", lambda e: e.counts.retracted_prompt),
    _counter(
        "num_retracted_output_tokens", "Output tokens of retracted requests.", lambda e: e.counts.retracted_output
    ),
    Family("histogram", "sglang:queue_time_seconds", "Time until first scheduled.", one(_both("queue"))),
    Family("counter", "sglang:realtime_tokens_total", "Tokens processed.", _tokens, ("mode",)),
    _gauge("max_total_num_tokens", "Capacity in tokens.", lambda e: e.replica.core.kv.capacity_tokens),
    _gauge("page_size", "Tokens per page.", lambda e: e.replica.core.kv.block_size),
    _gauge("num_pages", "Pages.", lambda e: e.replica.core.kv.num_blocks),
    _gauge("context_len", "Longest request in tokens.", lambda e: e.replica.core.scheduler.limits.max_model_len),
    _sums("prompt_tokens", "Prompt tokens.", "prompt"),
    _sums("generation_tokens", "Output tokens.", "generation"),
    _sums("num_requests", "Requests that ended.", "n"),
    _counter("num_aborted_requests", "Requests aborted.", lambda e: e.counts.aborted, of_engine=False),
    Family(
        "counter", "sglang:cached_tokens_total", "Tokens found, by tier.", _cached, ("cache_source",), of_engine=False
    ),
    _lengths("prompt_tokens_histogram", "Prompt tokens of a request.", "prompt"),
    _lengths("uncached_prompt_tokens_histogram", "Prompt tokens of a request that were computed.", "uncached"),
    _lengths("generation_tokens_histogram", "Output tokens of a request.", "generation"),
    _times("time_to_first_token", "Time from arrival to first token.", "ttft"),
    _times("request_time_per_output_token", "Mean time between the tokens of a request.", "tpot"),
    _times("e2e_request_latency", "Time from arrival to the end.", "e2e"),
    Family(
        "histogram",
        "sglang:inter_token_latency_seconds",
        "Time between deliveries, per token.",
        one(lambda e: e.counts.itl),
        of_engine=False,
    ),
)
SGLANG = Dialect(
    FAMILIES,
    labels,
    SglangCounts,
    bounds,
    stepped,
    lazy=True,
    counts_aborted=True,
    prefill_ttft=False,
    queue_at_admission=True,
    at_plan=True,
)
