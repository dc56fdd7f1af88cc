"""Figures of a trace, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.traces.inspect import NO_CONTENT, dispersion, inspect, window_counts
from servesim.traces.prefix import block_hits, shared_prefix_tokens
from servesim.workload.trace import Content, Trace


def content(*rows: list[tuple[int, int]]) -> Content:
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    flat = np.array([run for row in rows for run in row])
    return Content(offsets, flat[:, 0], flat[:, 1])


def test_shared_prefixes_follow_runs_and_stop_inside_one() -> None:
    rows = content(
        [(1, 100), (2, 50)],
        [(1, 100), (2, 80)],  # 100 + the first 50 of content 2
        [(1, 100), (2, 50), (3, 9)],  # the whole first row
        [(1, 40), (2, 50)],  # 40 of content 1; what follows is elsewhere
        [(1, 300)],  # the longest run of content 1 so far is 100
        [(2, 50)],  # content 2 has never begun a prompt
        [(1, 300)],
    )
    assert shared_prefix_tokens(rows).tolist() == [0, 150, 150, 40, 100, 0, 300]


def test_blocks_round_up_and_a_repeated_prompt_hits_its_partial_block() -> None:
    rows = content([(1, 100)], [(1, 100)], [(1, 90), (2, 10)])
    blocks, hit_blocks, hit_tokens = block_hits(rows, np.array([100, 100, 100]), 16)
    assert blocks.tolist() == [7, 7, 7]
    assert hit_blocks.tolist() == [0, 7, 5]
    assert hit_tokens.tolist() == [0, 100, 80]


def test_dispersion_counts_whole_windows_only() -> None:
    arrival = np.array([0.0, 0.1, 0.2, 1.5, 3.2, 3.3, 4.5]) * 1e9
    trace = Trace.from_lengths("t", arrival.astype(np.int64), [1] * 7, [1] * 7)
    assert window_counts(trace.arrival_ns, 1).tolist() == [3, 1, 0, 2]
    assert dispersion(trace.arrival_ns, 1) == pytest.approx(1.25 / 1.5)
    assert dispersion(trace.arrival_ns, 60) is None


def test_a_summary_by_hand() -> None:
    trace = Trace.from_lengths("t", [0, 10**9, 4 * 10**9], [10, 20, 60], [1, 2, 3])
    summary = inspect(trace)
    assert (summary.requests, summary.span_s, summary.mean_rate) == (3, 4.0, 0.5)
    assert summary.cv == pytest.approx(0.5)  # gaps 1 and 3: standard deviation 1, mean 2
    assert (summary.prompt.total, summary.prompt.mean, summary.prompt.p50, summary.prompt.max) == (90, 30.0, 20.0, 60)
    assert summary.peak_rate == {1: 1.0, 60: 3 / 60}
    assert summary.prefix is None
    assert summary.prefix_note == NO_CONTENT
    assert summary.to_dict()["output"]["p50"] == 2.0


def test_one_request_has_no_rate_and_a_bad_block_size_is_refused() -> None:
    trace = Trace.from_lengths("t", [5], [10], [1])
    assert (inspect(trace).mean_rate, inspect(trace).cv) == (None, None)
    with pytest.raises(UserError, match="block_size is 0"):
        inspect(trace, block_size=0)


def test_a_span_of_146_years_takes_no_memory_for_its_seconds() -> None:
    import tracemalloc

    trace = Trace.from_lengths("long", [0, 1, 1 << 62], [1, 1, 1], [1, 1, 1])
    tracemalloc.start()
    try:
        found = inspect(trace)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert found.span_s == pytest.approx(2**62 / 1e9)
