"""The page of metrics: names, labels and buckets of the engine, and what those who read it need."""

from __future__ import annotations

import asyncio
import csv
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from servesim.live.app import App
from servesim.live.driver import Driver
from servesim.live.virtual_clock import VirtualLoop
from servesim.run.scenario import Scenario
from tests.unit.live.test_app import COMPLETIONS, POLICY, Client
from tests.unit.live.test_driver import APART, BEHIND_ROUTER, ONE, crowd

pytest.importorskip("prometheus_client", reason="the extra serve is not installed")

from servesim.live.metrics.dialects import dialect_of
from servesim.live.metrics.watcher import Metrics
from tests.unit.live.test_metrics import DRAFTS, SGLANG, TRTLLM, Run, Scrape, text_of

SHARED = Path(__file__).parents[4] / "shared"
FACTS = pytest.mark.skipif(not SHARED.is_dir(), reason="the facts of the engines (../shared) are not here")


def listed(engine: str) -> dict[str, dict[str, str]]:
    """Return the rows of an engine's list of metrics by name, without `_total`."""
    with (SHARED / f"live/{engine}_metrics.tsv").open() as file:
        rows = csv.DictReader(file, delimiter="\t")
        return {row["name"].removesuffix("_total"): row for row in rows if row["kind"] != "info"}


def own_labels(row: dict[str, str]) -> set[str]:
    """Return the labels that a row names, in addition to those of all metrics."""
    position = {"position"} if row["labels"] == "pos_labelnames" else set()
    return position | set(re.findall(r"'(\w+)'", row["labels"]))


@FACTS
@pytest.mark.parametrize(
    ("engine", "settings", "common"),
    [
        ("vllm", BEHIND_ROUTER, {"model_name", "engine"}),
        pytest.param("vllm", APART, {"model_name", "engine"}, marks=pytest.mark.feature("handoff")),
        ("vllm", DRAFTS, {"model_name", "engine"}),
        ("sglang", SGLANG, {"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"}),
        (
            "sglang",
            {**SGLANG, "replicas": 2},
            {"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank", "dp_rank"},
        ),
    ],
    ids=["vllm", "vllm-apart", "vllm-drafts", "sglang", "sglang-ranks"],
)
def test_names_kinds_and_labels_are_the_engines(engine: str, settings: dict[str, Any], common: set[str]) -> None:
    page, rows = Run(settings, crowd(40, 100, 0.2)).page, listed(engine)
    assert page is not None
    for family in page.families.values():
        name = family.name.removesuffix("_total")
        if name.startswith("servesim_") or name == "vllm:cache_config_info":
            continue
        if name.startswith("vllm:spec_decode_num_") and name not in rows:
            assert settings is DRAFTS or not family.samples  # made in a loop, so not in the list
            continue
        row = rows[name]
        assert family.type == row["kind"], name
        server = engine == "sglang" and int(row["source"].rsplit(":", 1)[1]) > 1800  # of the tokenizer manager
        expected = {"model_name", "engine_type"} if server else common
        expected = {"model_name"} if row["labels"].startswith("['model_name'") else expected
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == expected | own_labels(row), name


@FACTS
def test_vllms_buckets_are_those_of_its_source() -> None:
    page = Run(ONE, crowd(40, 20, 0.0)).page
    assert page is not None
    text = re.sub(r"\s+", " ", (SHARED / "live.md").read_text())
    text = text[text.index("histograms by family") :]
    seconds = ("e2e_request_latency", "request_queue_time", "request_inference_time", "request_prefill_time")
    for name, said in (
        ("time_to_first_token_seconds", "time_to_first_token_seconds"),
        ("inter_token_latency_seconds", "request_time_per_output_token_seconds"),
        ("request_time_per_output_token_seconds", "request_time_per_output_token_seconds"),
        *((f"{each}_seconds", r"request_decode_time \(_seconds\)") for each in (*seconds, "request_decode_time")),
        ("request_params_n", "request_params_n"),
        ("request_num_preemptions", "request_num_preemptions"),
    ):
        found = re.search(rf"{said} ([\d. ]+);", text)
        assert found is not None, said
        bounds = [float(bound) for bound in page.buckets(f"vllm:{name}")]
        assert bounds == [*map(float, found[1].split()), float("inf")], name
    lengths = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
    assert [float(bound) for bound in page.buckets("vllm:request_prompt_tokens")] == [*lengths, float("inf")]
    powers = [1, *(2**power for power in range(3, 15))]
    assert [float(bound) for bound in page.buckets("vllm:iteration_tokens_total")] == [*powers, float("inf")]


@FACTS
def test_sglangs_time_in_the_queue_has_its_buckets() -> None:
    page = Run(SGLANG, crowd(40, 20, 0.0)).page
    assert page is not None
    *said, _ = re.findall(r"[\d.]+", listed("sglang")["sglang:queue_time_seconds"]["buckets"])  # the last is cut off
    assert [float(bound) for bound in page.buckets("sglang:queue_time_seconds")][: len(said)] == [*map(float, said)]


DASHBOARDS = """
cache_config_info e2e_request_latency_seconds engine_sleep_state external_prefix_cache_hits_total
external_prefix_cache_queries_total generation_tokens_total inter_token_latency_seconds iteration_tokens_total
kv_cache_usage_perc mm_cache_hits_total mm_cache_queries_total num_preemptions_total num_requests_kv_fetch_by_stage
num_requests_running num_requests_waiting num_requests_waiting_by_reason prefix_cache_hits_total
prefix_cache_queries_total prompt_tokens_by_source_total prompt_tokens_cached_by_source_total prompt_tokens_cached_total
prompt_tokens_total request_decode_time_seconds request_generation_tokens request_max_num_generation_tokens
request_prefill_kv_computed_tokens request_prefill_time_seconds request_prompt_tokens request_queue_time_seconds
request_success_total request_time_per_output_token_seconds spec_decode_num_accepted_tokens_per_pos_total
spec_decode_num_accepted_tokens_total spec_decode_num_draft_tokens_total spec_decode_num_drafts_total
time_to_first_token_seconds
"""
"""Names, without `vllm:`, in the expressions of vLLM's dashboards (examples/observability/dashboards/grafana: overview,
instances, KV cache, speculative decoding; and prometheus_grafana/grafana.json). Left out, because nothing simulated has
them: vllm:lora_requests_info (no LoRA), kv_block_* (--kv-cache-metrics), estimated_*_per_gpu (--enable-mfu-metrics),
sleep_mode_* and rl_weight_update_* (no such calls), nixl_*, kv_offload_* and simple_kv_offload_* (of one connector
each); and what is not the engine's: http_requests_total, http_request_duration_seconds, process_*, up."""


@pytest.mark.feature("handoff")
def test_what_vllms_dashboards_ask_for_is_there() -> None:
    pages = [Run(settings, crowd(40, 100, 0.0)).page for settings in (APART, DRAFTS)]
    for name in DASHBOARDS.split():
        full, suffixes = f"vllm:{name}", ("", "_bucket")
        found = [page.samples.get(full + suffix) for page in pages if page is not None for suffix in suffixes]
        assert any(found), name
    labels = pages[0].samples["vllm:cache_config_info"][0][0]  # type: ignore[union-attr]
    assert {"num_gpu_blocks", "block_size", "cache_dtype", "gpu_memory_utilization", "enable_prefix_caching"} <= set(
        labels
    )


def test_tensorrt_llm_has_its_own_names() -> None:
    run = Run(TRTLLM, crowd(40, 100, 0.2))
    page = run.page
    assert page is not None
    assert {name.split("_")[0] for name in page.families} == {"trtllm", "servesim"}
    assert (
        page.of("trtllm_request_success_total") == page.of("trtllm_num_requests_completed_total") == len(run.finished)
    )
    assert page.of("trtllm_prompt_tokens_total") == run.finished.prompt_len.sum()
    assert page.of("trtllm_kv_cache_tokens_per_block") == 32
    assert {path for _, path in run.metrics.pages()} == {"/metrics", "/prometheus/metrics"}


def test_names_keep_their_colons_whatever_formats_prometheus_offers_to_read() -> None:
    offers = "application/openmetrics-text;version=1.0.0;escaping=underscores,text/plain;version=0.0.4"
    run = Run(ONE, crowd(40, 20, 0.0), accept=offers)
    assert "\nvllm:request_success_total{" in run.text


def served(clients: Callable[[Client], Coroutine[Any, Any, Any]], settings: dict[str, Any]) -> Any:
    """Run clients against a server with metrics in virtual time."""
    loop, scenario = VirtualLoop(), Scenario.of(settings)
    drivers: list[Driver] = []
    watchers = [Metrics("m", dialect_of(scenario))]

    def make() -> Driver:
        drivers.append(Driver(scenario, watchers=watchers))
        return drivers[-1]

    app = App(make, lambda row: 30, "m", watchers)

    async def main() -> Any:
        app.driver.start()
        found = await clients(Client(app))
        app.driver.close()
        return found

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def test_counters_go_on_when_the_engine_starts_again(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(POLICY)

    async def clients(client: Client) -> list[Scrape]:
        body, pages = {"prompt": "a b", "max_tokens": 10, "ignore_eos": True}, []
        for wait in (0.25, 0.0, 0.0):  # the policy fails after 0.2 s
            assert (await client.document(COMPLETIONS, body))[0] in (200, 500)
            pages.append(Scrape((await client.ask("/metrics"))[1].decode()))
            await asyncio.sleep(wait)
        return pages

    first, failed, last = served(clients, {**ONE, "scheduler": f"{tmp_path / 'fails.py'}:Fails"})
    success, usage = "vllm:request_success_total", "vllm:kv_cache_usage_perc"
    assert [page.of(success) for page in (first, failed, last)] == [1, 1, 2]
    assert last.of("vllm:generation_tokens_total") == 20
    assert last.of("vllm:num_requests_running") == last.of(usage) == 0
    assert last.of("servesim_simulated_seconds") < failed.of("servesim_simulated_seconds")


def test_sglang_tells_streamed_answers_from_others_and_the_page_is_text() -> None:
    async def clients(client: Client) -> Scrape:
        body = {"prompt": "a b", "max_tokens": 10, "ignore_eos": True}
        await client.events(COMPLETIONS, body)
        for _ in range(2):
            await client.document(COMPLETIONS, body)
        status, text, _ = await client.ask("/metrics")
        assert status == 200
        return Scrape(text.decode())

    page = served(clients, SGLANG)
    for name in ("num_requests_total", "time_to_first_token_seconds_count", "e2e_request_latency_seconds_count"):
        assert page.of(f"sglang:{name}", is_streaming="true") == 1
        assert page.of(f"sglang:{name}", is_streaming="false") == 2
    assert "sglang:num_aborted_requests" not in page.samples  # it appears when it counts


def test_a_full_queue_counts_refusals() -> None:
    async def clients(client: Client) -> Scrape:
        body = {"prompt": "a b", "max_tokens": 200, "ignore_eos": True}
        await asyncio.gather(*(client.ask(COMPLETIONS, body) for _ in range(5)))
        return Scrape((await client.ask("/metrics"))[1].decode())

    settings = {**ONE, "scheduler": {"name": "vllm", "max_num_seqs": 1}, "engine": {"max_queued_requests": 1}}
    page = served(clients, settings)
    refused = page.of("vllm:admission_rejections_total", reason="max_num_queued_reqs")
    assert refused == 5 - page.of("vllm:request_success_total") > 0


def test_lateness_speed_and_simulated_time_are_shown() -> None:
    async def clients(client: Client) -> Scrape:
        loop: Any = asyncio.get_running_loop()
        asking = asyncio.create_task(client.ask(COMPLETIONS, {"prompt": "a", "max_tokens": 50, "ignore_eos": True}))
        await asyncio.sleep(0.1)
        loop._jump.ahead += 0.15
        await asking
        client.app.driver.late.lately_ns = 0  # a minute later
        return Scrape((await client.ask("/metrics"))[1].decode())

    page = served(clients, ONE)
    assert 0.1 < page.of("servesim_late_seconds", window="run") <= 0.15
    assert page.of("servesim_late_seconds", window="minute") == 0
    assert page.of("servesim_speed") == 1
    assert page.of("servesim_simulated_seconds") > 0.25
    assert 0 <= page.of("servesim_extrapolated_share") < 1


def test_what_an_endpoint_picker_reads_is_there_before_the_first_request() -> None:
    for settings, names in (
        (ONE, ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc")),
        (SGLANG, ("sglang:num_queue_reqs", "sglang:num_running_reqs", "sglang:token_usage")),
    ):
        loop = VirtualLoop()
        drivers: list[Driver] = []
        scenario = Scenario.of(settings)
        metrics = Metrics("m", dialect_of(scenario))
        drivers.append(Driver(scenario, watchers=[metrics]))

        async def scraped(driver: Driver = drivers[0], metrics: Metrics = metrics) -> str:
            driver.start()
            text = text_of(metrics)
            driver.close()
            return text

        page = Scrape(loop.run_until_complete(scraped()))
        loop.close()
        assert [page.of(name) for name in names] == [0, 0, 0]
        kv = drivers[0].cluster.replicas[0].core.kv
        if settings is ONE:
            ((labels, value),) = page.samples["vllm:cache_config_info"]
            assert (labels["block_size"], labels["num_gpu_blocks"], value) == ("16", str(kv.num_blocks), 1)
            assert kv.capacity_tokens == 16 * (kv.num_blocks - 1)  # the null block counts
        else:
            assert page.of("sglang:page_size") == 1
            assert page.of("sglang:num_pages") == page.of("sglang:max_total_num_tokens") == kv.capacity_tokens


@pytest.mark.feature("failures")
def test_counters_of_a_replica_that_crashes_begin_again() -> None:
    seen: list[Scrape] = []

    async def clients(driver: Driver, all_of_them: Any) -> None:
        metrics = driver.cluster.part(Metrics)
        assert metrics is not None
        asyncio.get_running_loop().call_later(1.9, lambda: seen.append(Scrape(text_of(metrics))))
        await crowd(40, 200, 0.0)(driver, all_of_them)

    run = Run({**BEHIND_ROUTER, "cluster": {"failures": ["crash:replica=0,at=2,restart=1"]}}, clients)
    assert run.page is not None
    before, after = (page.of("vllm:generation_tokens_total", engine="0") for page in (seen[0], run.page))
    whole = run.rows[run.rows.replica == 0].output_len.sum()
    assert before > 0 < after
    assert 0.8 * whole < before + after < whole  # those between the look and the crash are lost
    assert run.page.of("vllm:generation_tokens_total", engine="1") == run.rows[run.rows.replica == 1].output_len.sum()
