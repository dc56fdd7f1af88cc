"""The figures of the public traces, and their fitted twins against the originals."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from servesim.traces import load_preset, load_trace, preset_names, trace_digest
from servesim.traces.inspect import dispersion, inspect, prefix_hits
from servesim.workload.trace import Trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"
FILES = {
    "azure-conv-2023": "azure/AzureLLMInferenceTrace_conv.csv",
    "azure-code-2023": "azure/AzureLLMInferenceTrace_code.csv",
    "mooncake-conversation": "mooncake/conversation_trace.jsonl",
}
TWINS = [(name, seed) for name in FILES for seed in (0, 1, 2, 3, 7, 42)]

pytestmark = pytest.mark.skipif(
    not TRACES.parent.is_dir(), reason="the original traces (../shared) are not beside this checkout"
)


@cache
def original(name: str) -> Trace:
    """The original; Mooncake's clock ticks are an artefact of its recording and spread."""
    options = {"spread_ticks": "uniform"} if name.startswith("mooncake") else {}
    return load_trace(TRACES / FILES[name], **options)


@cache
def twin(name: str, seed: int) -> Trace:
    return load_preset(name, seed=seed)


def ks_distance(a: np.ndarray, b: np.ndarray) -> float:  # type: ignore[type-arg]
    """Largest difference of the two distribution functions."""
    at = np.union1d(a, b)
    ranks = [np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (a, b)]
    return float(np.abs(ranks[0] - ranks[1]).max())


def rank_correlation(trace: Trace) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(trace.prompt_len, trace.output_len).statistic)


def test_azure_conversation_has_its_published_figures() -> None:
    summary = inspect(original("azure-conv-2023"))
    assert (summary.requests, round(summary.span_s, 1), round(summary.cv or 0, 2)) == (19_366, 3501.7, 1.09)
    assert [round(v or 0, 2) for v in summary.dispersion.values()] == [1.39, 3.86, 16.13]
    assert (summary.peak_rate[1], round(summary.peak_rate[60], 2)) == (16, 8.45)
    p, o = summary.prompt, summary.output
    assert [round(v) for v in (p.p50, p.p95, p.p99, p.max)] == [1020, 4083, 4142, 14050]
    assert [round(v) for v in (o.p50, o.p95, o.p99, o.max)] == [129, 451, 601, 1000]
    assert (p.total, o.total) == (22_361_870, 4_088_665)


def test_azure_code_has_its_published_figures() -> None:
    summary = inspect(original("azure-code-2023"))
    assert (summary.requests, round(summary.span_s, 1), round(summary.cv or 0, 2)) == (8_819, 3435.9, 13.15)
    assert [round(v or 0, 1) for v in summary.dispersion.values()] == [13.2, 71.6, 164.0]
    p, o = summary.prompt, summary.output
    assert [round(v) for v in (p.p50, p.p95, p.p99, p.max)] == [1469, 7303, 7436, 7437]
    assert [round(v) for v in (o.p50, o.p95, o.p99, o.max)] == [13, 90, 251, 1899]


def test_mooncake_conversation_has_its_published_figures() -> None:
    raw = load_trace(TRACES / FILES["mooncake-conversation"])
    summary = inspect(raw, block_size=512)
    assert (summary.requests, round(summary.span_s), round(summary.cv or 0, 2)) == (12_031, 3537, 3.03)
    assert [round(v or 0, 1) for v in summary.dispersion.values()] == [7.9, 2.1, 2.9]
    assert round(inspect(original("mooncake-conversation")).cv or 0, 1) == 1.0
    hits = summary.prefix
    assert hits is not None
    assert (hits.blocks, round(hits.block_hit_rate, 3), round(hits.token_hit_rate, 3)) == (288_500, 0.366, 0.374)
    assert round(hits.requests_with_hit, 4) == 0.9999


def test_vidurs_copy_of_the_azure_trace_is_the_azure_trace() -> None:
    copy = load_trace(TRACES / "vidur/splitwise_conv.csv")
    azure = original("azure-conv-2023")
    assert np.array_equal(copy.prompt_len, azure.prompt_len)
    assert np.abs(copy.arrival_ns - azure.arrival_ns).max() <= 1000


def test_there_is_a_test_for_every_preset() -> None:
    assert preset_names() == sorted([*FILES, "servegen-m-large"])  # the last has its own: test_servegen_twin


@pytest.mark.parametrize(("name", "seed"), TWINS)
def test_a_twins_lengths_are_distributed_as_the_originals(name: str, seed: int) -> None:
    have, want = twin(name, seed), original(name)
    assert len(have) == len(want)
    assert ks_distance(have.prompt_len, want.prompt_len) <= 0.05
    assert ks_distance(have.output_len, want.output_len) <= 0.05
    assert rank_correlation(have) == pytest.approx(rank_correlation(want), abs=0.05)
    assert have.prompt_len.mean() == pytest.approx(want.prompt_len.mean(), rel=0.02)
    assert have.output_len.mean() == pytest.approx(want.output_len.mean(), rel=0.05)


@pytest.mark.parametrize(("name", "seed"), TWINS)
def test_a_twins_arrivals_are_as_bursty_as_the_originals(name: str, seed: int) -> None:
    have, want = twin(name, seed).arrival_ns, original(name).arrival_ns
    assert have[-1] == pytest.approx(want[-1], rel=0.01)
    for window_s in (1, 10, 60):
        assert dispersion(have, window_s) == pytest.approx(dispersion(want, window_s), rel=0.25), window_s


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 7, 42])
@pytest.mark.parametrize("block_size", [16, 512])
def test_the_mooncake_twin_shares_as_much_as_the_original(seed: int, block_size: int) -> None:
    have = prefix_hits(twin("mooncake-conversation", seed), block_size)
    want = prefix_hits(original("mooncake-conversation"), block_size)
    assert have is not None
    assert want is not None
    assert have.block_hit_rate == pytest.approx(want.block_hit_rate, abs=0.02)
    assert have.token_hit_rate == pytest.approx(want.token_hit_rate, abs=0.02)
    assert have.requests_with_hit == pytest.approx(want.requests_with_hit, abs=0.001)


@pytest.mark.slow
def test_the_mooncake_twin_reuses_as_recently_as_the_original() -> None:
    """Token hit rate of an LRU cache of so many blocks of 512: it depends on how old what is reused is."""
    published = {3_000: 0.067, 10_000: 0.216, 30_000: 0.332}
    for capacity, rate in published.items():
        assert lru_hit_rate(original("mooncake-conversation"), capacity) == pytest.approx(rate, abs=0.003)
        assert lru_hit_rate(twin("mooncake-conversation", 0), capacity) == pytest.approx(rate, abs=0.03)


def lru_hit_rate(trace: Trace, capacity: int) -> float:
    from servesim.traces.prefix import block_ids

    assert trace.content is not None
    cached: OrderedDict[int, None] = OrderedDict()  # oldest first
    hit_tokens = 0
    for length, blocks in zip(trace.prompt_len.tolist(), block_ids(trace.content, 512), strict=True):
        hits = next((i for i, block in enumerate(blocks) if block not in cached), len(blocks))
        hit_tokens += min(hits * 512, length)
        for block in reversed(blocks):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > capacity:
            cached.popitem(last=False)
    return hit_tokens / int(trace.prompt_len.sum())


@pytest.mark.parametrize("name", sorted(FILES))
def test_seeds_give_different_twins_and_none_repeats_the_originals_rows(name: str) -> None:
    first, second, want = twin(name, 0), twin(name, 1), original(name)
    assert len({trace_digest(first), trace_digest(second), trace_digest(load_preset(name))}) == 2
    for other in (second, want):
        same = (first.prompt_len == other.prompt_len) & (first.output_len == other.output_len)
        assert np.mean(same) < 0.02


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_shorter_twin_is_the_start_of_a_longer_one(name: str) -> None:
    short, whole, long = (load_preset(name, n, seed=5) for n in (100, None, 25_000))
    for column in ("arrival_ns", "prompt_len", "output_len"):
        assert np.array_equal(getattr(short, column), getattr(whole, column)[:100])
        assert np.array_equal(getattr(whole, column), getattr(long, column)[: len(whole)])
    rate = (len(whole) - 1) / whole.arrival_ns[-1]
    assert (len(long) - 1) / long.arrival_ns[-1] == pytest.approx(rate, rel=0.12)
