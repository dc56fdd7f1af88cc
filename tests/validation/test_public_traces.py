"""Every public trace at hand reads with the counts and statistics that were computed from it independently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from servesim.traces import load_trace, save_trace, trace_digest
from servesim.traces.inspect import inspect, prefix_hits
from servesim.traces.prefix import block_hits
from servesim.workload.trace import Trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces (../shared) are not here")

CONV, CODE = "azure/AzureLLMInferenceTrace_conv.csv", "azure/AzureLLMInferenceTrace_code.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl"
AGENTS = "agentic/kv-cache-tester_710_compact_rle.jsonl.gz"
SHAREGPT = "sharegpt/llmservingsim_sharegpt-llama-3.1-8b-300-sps10.jsonl"

# file: requests, span s, CV, (p50, p95, p99, max) of prompts and of outputs
TIMED = {
    CONV: (19_366, 3501.7, 1.09, (1020, 4083, 4142, 14050), (129, 451, 601, 1000)),
    CODE: (8_819, 3435.9, 13.15, (1469, 7303, 7436, 7437), (13, 90, 251, 1899)),
    "vidur/splitwise_conv.csv": (19_366, 3501.7, 1.09, (1020, 4083, 4142, 14050), (129, 451, 601, 1000)),
    "vidur/splitwise_code.csv": (8_819, 3435.9, 13.15, (1469, 7303, 7436, 7437), (13, 90, 251, 1899)),
    MOONCAKE: (12_031, 3537.0, 3.03, (6909, 39551, 85400, 126195), (350, 698, 1119, 2000)),
    SHAREGPT: (300, 29.1, 0.94, (732, 1749, 2765, 3998), (633, 773, 784, 1021)),
}
# file: rows, (mean, p50, p95, p99, max) of prompts and of outputs
LENGTHS = {
    "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv":
        (28_257, (2588, 2730, 3813, 3933, 4054), (291, 167, 736, 3271, 4056)),
    "sharegpt/sharegpt_8k_filtered_stats_llama2_tokenizer.csv":
        (30_731, (2340, 1730, 6563, 7434, 8141), (439, 415, 920, 998, 1024)),
    "sharegpt/sharegpt_val_10k_llama2.csv": (10_000, (246, 35, 1423, 2862, 3973), (326, 286, 839, 1000, 1734)),
}  # fmt: skip
FIXTURES = {  # requests, tokens in, tokens out, dependencies, by hand
    "dynamo__agentic-mooncake.jsonl": (3, 12, 6, 3),
    "dynamo__applied-compute-agentic.jsonl": (3, 16 + 28 + 40, 12, 2),
    "dynamo__dynamo-agentic.jsonl": (4, 16, 8, 4),
    "dynamo__dynamo-standard.jsonl": (2, 8, 4, 0),
    "dynamo__mooncake-delta.jsonl": (2, 16 + 28, 8, 1),
    "dynamo__mooncake.jsonl": (2, 56, 7, 0),
    "inference-perf__otel_prefix_sharing_example.json": (7, 50 + 45 + 100 + 180 + 270 + 380 + 40, 280, 3),
}


def quantiles(column: np.ndarray) -> list[float]:
    return [*np.percentile(column, [50, 95, 99]).tolist(), float(column.max())]


@pytest.mark.parametrize("name", TIMED)
def test_timed_traces_have_their_known_statistics(name: str) -> None:
    requests, span, cv, prompts, outputs = TIMED[name]
    trace = load_trace(TRACES / name)
    got = inspect(trace)
    assert got.requests == requests
    assert got.span_s == pytest.approx(span, abs=0.06)
    assert got.cv == pytest.approx(cv, abs=0.006)
    assert quantiles(trace.prompt_len) == pytest.approx(prompts, abs=1)
    assert quantiles(trace.output_len) == pytest.approx(outputs, abs=1)


@pytest.mark.parametrize("name", LENGTHS)
def test_length_files_have_their_known_statistics(name: str) -> None:
    rows, prompts, outputs = LENGTHS[name]
    trace = load_trace(TRACES / name)
    assert len(trace) == rows
    for column, known in ((trace.prompt_len, prompts), (trace.output_len, outputs)):
        assert [column.mean(), *quantiles(column)] == pytest.approx(known, abs=1)


@pytest.mark.parametrize("name", FIXTURES)
def test_format_fixtures_read_whole(name: str) -> None:
    trace = load_trace(TRACES / "formats" / name)
    edges = len(trace.after.rows) if trace.after is not None else 0
    assert (len(trace), trace.prompt_len.sum(), trace.output_len.sum(), edges) == FIXTURES[name]


def test_sharing_is_what_was_computed_from_the_hashes_and_token_ids() -> None:
    mooncake = prefix_hits(load_trace(TRACES / MOONCAKE), 512)
    sharegpt = prefix_hits(load_trace(TRACES / SHAREGPT), 16)
    assert mooncake is not None
    assert sharegpt is not None
    assert (mooncake.blocks, mooncake.blocks - mooncake.hit_blocks) == (288_500, 182_790)
    assert mooncake.token_hit_rate == pytest.approx(0.374, abs=0.0006)
    assert sharegpt.token_hit_rate == pytest.approx(0.076, abs=0.0006)


@pytest.mark.slow
def test_agent_sessions_have_their_calls_lengths_and_sharing() -> None:
    trace = load_trace(TRACES / AGENTS)
    assert len(trace) == 49_334
    assert len(set(trace.labels["play"])) == 710
    assert quantiles(trace.prompt_len) == pytest.approx((103_659, 300_666, 498_519, 894_371), abs=1)
    assert quantiles(trace.output_len) == pytest.approx((216, 1554, 3686, 18195), abs=1)
    assert trace.prompt_len.sum() == pytest.approx(6.04e9, rel=0.001)
    assert trace.output_len.sum() == pytest.approx(21.7e6, rel=0.001)
    assert hit_rate(trace) == pytest.approx(0.963, abs=0.0006)
    first = np.unique(trace.plays(), return_index=True)[1]
    assert hit_rate(trace, without=first) == pytest.approx(0.974, abs=0.0006)
    distinct = load_trace(TRACES / AGENTS, duplicates="drop")
    assert (len(distinct), len(set(distinct.labels["play"]))) == (46_218, 692)


def hit_rate(trace: Trace, without: np.ndarray | None = None) -> float:
    assert trace.content is not None
    hits = block_hits(trace.content, trace.prompt_len, 64)[2]
    kept = np.ones(len(trace), dtype=np.bool_)
    if without is not None:
        kept[without] = False
    return float(hits[kept].sum() / trace.prompt_len[kept].sum())


@pytest.mark.parametrize(("name", "form"), [(MOONCAKE, "mooncake"), (MOONCAKE, "parquet"), (AGENTS, "parquet")])
def test_originals_survive_a_round_trip(name: str, form: str, tmp_path: Path) -> None:
    trace = load_trace(TRACES / name)
    save_trace(trace, tmp_path / "again", form)
    assert trace_digest(load_trace(tmp_path / "again")) == trace_digest(trace)


@pytest.mark.slow
def test_agents_without_their_outputs_survive_agentic_mooncake(tmp_path: Path) -> None:
    trace = load_trace(TRACES / AGENTS, content="prompts")
    trace = trace.take(np.flatnonzero(trace.plays() < 4))
    save_trace(trace, tmp_path / "one", "agentic-mooncake")
    one = load_trace(tmp_path / "one")
    assert hit_rate(one) == pytest.approx(hit_rate(trace), abs=1e-3)  # block hits of 16 tokens, partial ones apart
    assert (one.after is not None) == (trace.after is not None)
    save_trace(one, tmp_path / "two", "agentic-mooncake")
    assert trace_digest(load_trace(tmp_path / "two")) == trace_digest(one)
