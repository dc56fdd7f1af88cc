"""The metrics of a live run are those of the offline run of what it recorded, by the names of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import servesim
from servesim.contracts.request import State
from servesim.live.driver import Driver
from servesim.live.recording import Recording
from servesim.live.virtual_clock import VirtualLoop
from servesim.live.watcher import Visit
from servesim.run.scenario import Scenario
from tests.unit.live.test_driver import APART, BEHIND_ROUTER, ONE, Clients, Seen, crowd

pytest.importorskip("prometheus_client", reason="the extra serve is not installed")
from prometheus_client.parser import text_string_to_metric_families as families_of

from servesim.live.metrics.dialects import dialect_of
from servesim.live.metrics.watcher import Metrics

FEW_BLOCKS = {**ONE, "engine": {"max_model_len": 2048, "num_gpu_blocks": 300}}
DRAFTS = {**ONE, "speculation": {"name": "eagle3", "k": 3}}
SGLANG = {**ONE, "preset": "sglang"}
TRTLLM = {**ONE, "preset": "tensorrt-llm"}
Labels = Mapping[str, str]


class Scrape:
    """A parsed page."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in families_of(text)}
        self.samples: dict[str, list[tuple[Labels, float]]] = {}
        for family in self.families.values():
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def of(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all samples that have these labels."""
        found = [value for own, value in self.samples[name] if labels.items() <= own.items()]
        assert found, (name, labels)
        return sum(found)

    def buckets(self, name: str, **labels: str) -> dict[str, float]:
        """Return the buckets of a histogram, in order, added up over engines."""
        found: dict[str, float] = {}
        for own, value in self.samples[f"{name}_bucket"]:
            if labels.items() <= own.items():
                found[own["le"]] = found.get(own["le"], 0) + value
        return found

    def holds_quantile(self, name: str, quantile: float, value: float) -> bool:
        """Return whether a value lies in the bucket that holds a quantile."""
        below, counts = float("-inf"), self.buckets(name)
        for bound, count in counts.items():
            if count >= quantile * counts["+Inf"]:
                return below <= value <= float(bound)
            below = float(bound)
        return False


class Run:
    """A live run with metrics, and the offline run of its recording."""

    def __init__(self, settings: dict[str, Any], clients: Clients, accept: str = "") -> None:
        loop, recording, scenario = VirtualLoop(), Recording(), Scenario.of(settings)
        drivers: list[Driver] = []
        self.metrics = Metrics("m", dialect_of(scenario))
        drivers.append(Driver(scenario, recording=recording, watchers=[self.metrics]))
        self.driver, self.seen = drivers[0], Seen(drivers[0])

        async def main() -> str:
            self.driver.start()
            await clients(self.driver, self.seen)
            await asyncio.sleep(1)
            return text_of(self.metrics, accept)

        try:
            self.text = loop.run_until_complete(main())
        finally:
            loop.close()
        assert not self.driver.failure
        self.page = Scrape(self.text) if not accept else None
        self.result = servesim.simulate({**settings}, trace=recording.trace(), intervals=False)

    @property
    def rows(self) -> Any:
        return self.result.requests

    @property
    def finished(self) -> Any:
        return self.rows[self.rows.state == State.FINISHED]


def text_of(metrics: Metrics, accept: str = "") -> str:
    page: Any = metrics.pages()["GET", "/metrics"](Visit({}, {"accept": accept}))
    return str(page.body.decode())


def same_sums(page: Scrape, expected: Mapping[str, Any]) -> None:
    """Assert that histograms have the counts and sums of these columns, of times in ns or of numbers."""
    for name, column in expected.items():
        assert page.of(f"{name}_count") == len(column), name
        scale = 1e9 if name.endswith("seconds") else 1
        assert page.of(f"{name}_sum") == pytest.approx(float(column.sum()) / scale, rel=1e-12), name


@pytest.mark.parametrize("settings", [ONE, BEHIND_ROUTER, FEW_BLOCKS, DRAFTS], ids=["one", "two", "few", "drafts"])
def test_vllms_counters_and_histograms_are_those_of_the_offline_run(settings: dict[str, Any]) -> None:
    run = Run(settings, crowd(60, 300, 0.2))
    page, rows, finished = run.page, run.rows, run.finished
    assert page is not None
    out, steps = run.driver.setup.out_ns, run.result.steps
    started = rows[rows.first_token_ns >= 0]
    admitted = rows[rows.scheduled_ns >= 0]
    assert 10 < len(rows) - len(finished) < 100
    assert page.of("vllm:prompt_tokens_total") == started.prompt_len.sum()
    assert page.of("vllm:prompt_tokens_cached_total") == started.hit_tokens.sum()
    assert page.of("vllm:generation_tokens_total") == rows.output_len.sum()
    assert page.of("vllm:prefix_cache_queries_total") == admitted.prompt_len.sum()
    assert page.of("vllm:prefix_cache_hits_total") == admitted.hit_tokens.sum() > 0
    assert page.of("vllm:num_preemptions_total") == rows.num_preemptions.sum() == steps.preempted.sum()
    assert (rows.num_preemptions.sum() > 0) == (settings is FEW_BLOCKS)
    for reason in ("stop", "length"):
        assert page.of("vllm:request_success_total", finished_reason=reason) == (finished.reason == reason).sum()
    assert page.of("vllm:request_success_total", finished_reason="abort") == 0
    decode_ns = finished.last_token_ns - finished.first_token_ns
    more = finished[finished.output_len > 1]
    same_sums(
        page,
        {
            "vllm:time_to_first_token_seconds": started.first_token_ns - started.arrival_ns,
            "vllm:e2e_request_latency_seconds": finished.finished_ns - finished.arrival_ns,
            "vllm:request_prefill_time_seconds": finished.first_token_ns - out - finished.scheduled_ns,
            "vllm:request_decode_time_seconds": decode_ns,
            "vllm:request_inference_time_seconds": finished.last_token_ns - out - finished.scheduled_ns,
            "vllm:request_prompt_tokens": finished.prompt_len,
            "vllm:request_generation_tokens": finished.output_len,
            "vllm:request_max_num_generation_tokens": finished.output_len,
            "vllm:request_params_max_tokens": finished.max_tokens,
            "vllm:request_prefill_kv_computed_tokens": finished.prompt_len - finished.hit_tokens,
            "vllm:request_num_preemptions": finished.num_preemptions,
            "vllm:request_params_n": finished.prompt_len * 0 + 1,
        },
    )
    tpot_ns = (more.last_token_ns - more.first_token_ns) / (more.output_len - 1)
    assert page.of("vllm:request_time_per_output_token_seconds_count") == len(finished)
    assert page.of("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(tpot_ns.sum() / 1e9, rel=1e-12)
    all_decode_ns = (started.last_token_ns - started.first_token_ns).sum()
    assert page.of("vllm:inter_token_latency_seconds_sum") == pytest.approx(all_decode_ns / 1e9, rel=1e-12)
    assert page.of("vllm:iteration_tokens_total_sum") == (
        started.prompt_len.sum() - started.hit_tokens.sum() + rows.output_len.sum()
    )
    front_s = len(finished) * run.driver.setup.front.request_ns / 1e9  # at least, before the queue
    queue_s, before_s = page.of("vllm:request_queue_time_seconds_sum"), finished.scheduled_ns - finished.arrival_ns
    assert 0 < queue_s <= before_s.sum() / 1e9 - front_s
    assert page.of("vllm:num_requests_running") == page.of("vllm:num_requests_waiting") == 0
    assert page.of("vllm:kv_cache_usage_perc") == 0


def test_percentiles_of_the_summary_lie_in_the_buckets_that_hold_them() -> None:
    run = Run(ONE, crowd(60, 400, 0.0))
    assert run.page is not None
    names = {
        "ttft": "vllm:time_to_first_token_seconds",
        "tpot": "vllm:request_time_per_output_token_seconds",
        "e2el": "vllm:e2e_request_latency_seconds",
        "itl": "vllm:inter_token_latency_seconds",
    }
    for figure, name in names.items():
        for percentile in ("p50", "p90", "p99"):
            value = run.result.summary["latency_ms"][figure][percentile] / 1e3
            assert run.page.holds_quantile(name, int(percentile[1:]) / 100, value), (figure, percentile, value)


def test_drafts_are_counted_by_position() -> None:
    run = Run(DRAFTS, crowd(40, 100, 0.0))
    page, steps = run.page, run.result.steps
    assert page is not None
    drafts, tokens = page.of("vllm:spec_decode_num_drafts_total"), page.of("vllm:spec_decode_num_draft_tokens_total")
    accepted = page.of("vllm:spec_decode_num_accepted_tokens_total")
    at = [page.of("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(3)]
    assert tokens == 3 * drafts <= steps.drafts.mul(steps.k).sum()
    assert sum(at) == accepted >= steps.accepted.sum()
    assert drafts > at[0] > at[1] > at[2] > 0
    assert page.of("vllm:inter_token_latency_seconds_count") < page.of("vllm:generation_tokens_total") / 1.5


@pytest.mark.feature("handoff")
def test_prefill_and_decode_engines_count_what_each_of_them_does() -> None:
    run = Run(APART, crowd(40, 200, 0.0))
    page, rows = run.page, run.rows
    assert page is not None
    prompt_len, hits = rows.prompt_len.sum(), rows.hit_tokens.sum()
    assert page.of("vllm:prompt_tokens_total", engine="0") == prompt_len
    assert page.of("vllm:prompt_tokens_by_source_total", engine="0", source="local_compute") == prompt_len - hits
    assert page.of("vllm:generation_tokens_total", engine="0") == len(rows)
    assert page.of("vllm:request_success_total", engine="0", finished_reason="length") == len(rows)
    decode = {
        name: page.of(name, engine="1") + page.of(name, engine="2")
        for name in (
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            "vllm:external_prefix_cache_hits_total",
        )
    }
    assert decode["vllm:prompt_tokens_total"] == prompt_len
    assert decode["vllm:generation_tokens_total"] == rows.output_len.sum()
    external = page.of("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
    assert decode["vllm:external_prefix_cache_hits_total"] == external > 0
    assert page.of("vllm:prompt_tokens_by_source_total", engine="1", source="local_compute") == 0
    prefill_s = page.of("vllm:e2e_request_latency_seconds_sum", engine="0")
    whole_s = (rows.finished_ns - rows.arrival_ns).sum() / 1e9
    decode_s = page.of("vllm:e2e_request_latency_seconds_sum") - prefill_s
    assert whole_s - 0.01 * len(rows) < prefill_s + decode_s < whole_s + 0.01 * len(rows)
    computed = page.of("vllm:request_prefill_kv_computed_tokens_sum")
    assert computed == 2 * (prompt_len - hits)  # the decode engine repeats what the prefill engine says
    assert page.of("vllm:num_requests_kv_fetch_by_stage", engine="1") == 0


@pytest.mark.feature("offload")
def test_what_host_memory_gives_back_is_external_and_of_the_host() -> None:
    run = Run({**FEW_BLOCKS, "offload": "cpu=64GiB"}, crowd(60, 300, 0.0))
    page, rows = run.page, run.rows
    assert page is not None
    found, hits = page.of("vllm:external_prefix_cache_hits_total"), rows.hit_tokens.sum()
    assert page.of("vllm:external_prefix_cache_queries_total") == rows.prompt_len.sum() - hits
    assert page.of("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == found > 0
    assert page.of("vllm:prompt_tokens_cached_by_source_total", source="host") == found
    assert page.of("vllm:request_prefill_kv_computed_tokens_sum") == rows.prompt_len.sum() - hits - found
    share = run.result.summary["offload"]["hit_rate"]["cpu"]  # of prompts, without what preempted requests loaded again
    assert found == pytest.approx(share * rows.prompt_len.sum())


def test_sglangs_counters_and_histograms_are_those_of_the_offline_run() -> None:
    run = Run(SGLANG, crowd(60, 300, 0.2))
    page, rows, finished = run.page, run.rows, run.finished
    assert page is not None
    ended, started = rows[rows.scheduled_ns >= 0], rows[rows.first_token_ns >= 0]
    assert page.of("sglang:num_requests_total") == len(ended)
    assert page.of("sglang:num_aborted_requests_total") == len(rows) - len(finished) > 0
    assert page.of("sglang:prompt_tokens_total") == ended.prompt_len.sum()
    assert page.of("sglang:generation_tokens_total") == ended.output_len.sum()
    assert page.of("sglang:cached_tokens_total", cache_source="device") == ended.hit_tokens.sum()
    more = finished[finished.output_len > 1]
    tpot_ns = (more.last_token_ns - more.first_token_ns) / (more.output_len - 1)
    same_sums(
        page,
        {
            "sglang:time_to_first_token_seconds": started.first_token_ns - started.arrival_ns,
            "sglang:e2e_request_latency_seconds": ended.finished_ns - ended.arrival_ns,
            "sglang:request_time_per_output_token_seconds": tpot_ns,
            "sglang:prompt_tokens_histogram": ended.prompt_len,
            "sglang:uncached_prompt_tokens_histogram": ended.prompt_len - ended.hit_tokens,
        },
    )
    assert page.of("sglang:inter_token_latency_seconds_count") == rows.output_len.sum() - len(started)
    assert page.of("sglang:queue_time_seconds_count") == len(ended)
    steps = run.result.steps
    assert page.of("sglang:realtime_tokens_total", mode="prefill_compute") == steps.prefill_tokens.mul(steps.k).sum()


def answers(count: int, prompt: int, tokens: int, after: float, then: Callable[[Driver], None]) -> Clients:
    """Return clients that ask at once; `then` is called after some seconds."""

    async def clients(driver: Driver, seen: Seen) -> None:
        streams = [driver.submit([row] * prompt, tokens, tokens) for row in range(count)]
        asyncio.get_running_loop().call_later(after, then, driver)
        await asyncio.gather(*map(seen.read, streams))

    return clients


@pytest.mark.parametrize(
    ("settings", "running", "waiting", "usage"),
    [
        (ONE, "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
        (SGLANG, "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:full_token_usage"),
        (TRTLLM, "trtllm_num_requests_running", "trtllm_num_requests_waiting", "trtllm_kv_cache_utilization"),
    ],
    ids=["vllm", "sglang", "tensorrt-llm"],
)
def test_gauges_show_what_runs_waits_and_is_held(
    settings: dict[str, Any], running: str, waiting: str, usage: str
) -> None:
    scheduler = {
        "sglang": {"name": "sglang", "max_running_requests": 2},
        "tensorrt-llm": {"name": "selective", "max_bs": 2},
    }
    mine = scheduler.get(str(settings.get("preset")), {"name": "vllm", "max_num_seqs": 2})
    seen: list[Scrape] = []
    settings = {**settings, "scheduler": mine}

    def look(driver: Driver) -> None:
        seen.append(Scrape(text_of(runs[0])))
        core = driver.cluster.replicas[0].core
        held = sum(core.kv.slots(request) for request in core.scheduler.running)
        assert held >= 2 * 1000
        assert seen[0].of(usage) == pytest.approx(held / core.kv.capacity_tokens, rel=0.02)

    runs: list[Metrics] = []
    found = _watched(settings, answers(5, 1000, 300, 1.2, look), runs)
    assert seen[0].of(running) == 2
    assert seen[0].of(waiting) == 3
    assert found.of(running) == found.of(waiting) == found.of(usage) == 0


def _watched(settings: dict[str, Any], clients: Clients, runs: list[Metrics]) -> Scrape:
    """Run clients and return the last scrape; `runs` receives the metrics before the first request."""

    async def both(driver: Driver, seen: Seen) -> None:
        runs.append(driver.cluster.part(Metrics))
        await clients(driver, seen)

    page = Run(settings, both).page
    assert page is not None
    return page


def test_gauges_are_as_the_last_step_left_them() -> None:
    """During the first step of an idle engine, vLLM still shows what was before. The prompt reaches the queue after
    16 ms, and its step takes far longer than until this looks, after 30 ms."""
    seen: list[Scrape] = []
    runs: list[Metrics] = []
    look = answers(1, 8000, 2, 0.03, lambda driver: seen.append(Scrape(text_of(runs[0]))))
    _watched({**ONE, "engine": {"max_model_len": 16384}}, look, runs)
    assert seen[0].of("vllm:num_requests_running") == 0
    assert seen[0].of("vllm:time_to_first_token_seconds_count") == 0
