"""Figures of records that went by in pieces are those of the records kept, or within the stated error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts.request import State
from servesim.metrics.distribution import describe, describe_counted
from servesim.metrics.load import load_of
from servesim.metrics.requests import LATENCIES, TOTALS, RequestColumns, most_at_once
from servesim.metrics.sketch import RELATIVE_ERROR, Sketch
from servesim.metrics.stability import judge
from servesim.metrics.streamed import NEVER, LoadGrid, Overlap, StreamedRequests
from servesim.records.columns import REQUEST_COLUMNS

EXACT = ("count", "min", "max")
SLO = {"ttft": 60.0, "e2el": 500.0}


def check(found: dict[str, float] | None, exact: dict[str, float] | None) -> None:
    assert (found is None) == (exact is None)
    for name in exact or {}:
        assert found is not None
        assert exact is not None
        if name in EXACT:
            assert found[name] == exact[name]
        elif name in ("mean", "std"):
            assert found[name] == pytest.approx(exact[name], rel=1e-9, abs=1e-9 * exact["max"])
        else:
            assert found[name] == pytest.approx(exact[name], rel=RELATIVE_ERROR * (1 + 1e-9), abs=0), name


@given(st.lists(st.integers(0, 2**50), max_size=60), st.integers(1, 9))
def test_percentiles_are_within_the_stated_error(values: list[int], pieces: int) -> None:
    sketch, column = Sketch(), np.array(values, dtype=np.int64)
    for piece in np.array_split(column, pieces):
        sketch.add(piece)
    check(sketch.describe(), describe(column))


@given(st.dictionaries(st.integers(0, 10**9), st.integers(0, 1000), max_size=30))
def test_counted_values_weigh_as_often_as_they_occur(counted: dict[int, int]) -> None:
    values, counts = (np.array(list(part), dtype=np.int64) for part in (counted.keys(), counted.values()))
    sketch = Sketch()
    sketch.add(values, counts)
    check(sketch.describe(), describe_counted(values, counts))


def test_a_sketch_of_known_values() -> None:
    sketch = Sketch()
    sketch.add(np.array([0, 0, 1_000_000, 2_000_000]))
    found = sketch.describe(1e6)
    assert found is not None
    assert (found["count"], found["mean"], found["min"], found["max"], found["p25"]) == (4, 0.75, 0.0, 2.0, 0.0)
    assert found["p50"] == pytest.approx(0.5, rel=RELATIVE_ERROR)  # halfway from 0 to 1


def records(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.integers(0, 3 * 10**7, count))
    rows = np.zeros((count, len(REQUEST_COLUMNS)), dtype=np.int64)
    state = rng.choice([State.FINISHED] * 8 + [State.REJECTED, State.ABORTED], count)
    scheduled = arrival + rng.integers(0, 10**8, count)
    first = scheduled + rng.integers(1, 10**8, count)
    last = first + rng.integers(0, 10**9, count)
    values = {
        "row": np.arange(count),
        "state": state,
        "prompt_len": rng.integers(1, 999, count),
        "output_len": rng.integers(1, 5, count),
        "max_tokens": 9,
        "arrival_ns": arrival,
        "scheduled_ns": np.where(state == State.REJECTED, -1, scheduled),
        "first_token_ns": first,
        "last_token_ns": last,
        "finished_ns": last,
        "hit_tokens": rng.integers(0, 2, count),
        "num_preemptions": rng.integers(0, 2, count),
        "recomputed_tokens": rng.integers(0, 9, count),
    }
    for name, column in values.items():
        rows[:, REQUEST_COLUMNS.index(name)] = column
    return rows[np.argsort(last, kind="stable")]  # in the order in which they leave


@pytest.mark.parametrize("seed", range(3))
def test_records_in_pieces_add_up_to_those_of_all(seed: int) -> None:
    rows = records(3000, seed)
    reasons = {row: f"reason {row % 3}" for row in range(3000)}
    whole, streamed = RequestColumns.of(rows, reasons), StreamedRequests(0)
    arrival = rows[:, REQUEST_COLUMNS.index("arrival_ns")]
    for end in range(250, 3001, 250):
        waiting = arrival[end:].min(initial=NEVER)
        streamed.take(RequestColumns.of(rows[end - 250 : end], reasons), SLO, int(waiting))
    assert {name: streamed.total(name) for name in TOTALS} == {name: whole.total(name) for name in TOTALS}
    assert streamed.met(SLO) == whole.met(SLO)
    assert streamed.duration_ns == whole.duration_ns
    assert streamed.max_concurrency() == whole.max_concurrency()
    assert streamed.lookups(1000) == whole.lookups(1000)
    for state in (State.FINISHED, State.REJECTED, State.ABORTED):
        assert streamed.why(state) == whole.why(state)
    assert streamed.service(3000) == pytest.approx(whole.service(3000))
    for name in LATENCIES:
        check(streamed.latency_ms(name), whole.latency_ms(name))
    ours, exact = streamed.load(), whole.load()
    assert ours is not None
    assert exact is not None
    assert ours.span_ns == exact.span_ns
    assert ours.service_ns == pytest.approx(exact.service_ns, rel=0.01)
    assert ours.service_cv2 == pytest.approx(exact.service_cv2)
    assert ours.waiting == pytest.approx(exact.waiting, rel=0.01)
    assert ours.in_system == pytest.approx(exact.in_system, rel=0.01)
    assert ours.explained == pytest.approx(exact.explained, rel=0.05)
    assert np.abs(ours.arrived - exact.arrived).max() <= 2


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=40), st.integers(1, 7))
def test_the_most_at_once_is_exact_in_pieces_of_any_size(stays: list[tuple[int, int]], size: int) -> None:
    pairs = sorted(((a, a + n) for a, n in stays), key=lambda stay: stay[1])
    enter, leave = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    overlap = Overlap()
    for end in range(size, len(pairs) + size, size):
        settled = int(enter[end:].min(initial=NEVER))
        overlap.add(enter[end - size : end], leave[end - size : end], settled)
    assert overlap.most == most_at_once(enter, leave)


def test_bins_that_doubled_tell_what_narrow_ones_would_have() -> None:
    arrival = np.arange(0, 40 * 2**33, 2**33)  # 340 s: the bins of 1 ms have doubled often
    waits, leaves = arrival + 2**32, arrival + 2**34
    grid = LoadGrid(0)
    for i in range(40):
        grid.add(arrival[i : i + 1], waits[i : i + 1], leaves[i : i + 1])
    found, exact = grid.load(), load_of(arrival, waits, leaves)
    assert found is not None
    assert exact is not None
    assert found.waiting == pytest.approx(exact.waiting, rel=0.01)
    assert found.in_system == pytest.approx(exact.in_system, rel=0.01)
    assert found.explained == pytest.approx(exact.explained, rel=0.01)
    assert found.service_ns == pytest.approx(exact.service_ns)
    assert found.service_cv2 == pytest.approx(exact.service_cv2, abs=1e-9)


def test_arrivals_within_one_bin_and_times_beyond_64_bits_are_judged_all_the_same() -> None:
    grid = LoadGrid(0)
    arrival = np.arange(3, dtype=np.int64) * 10_000
    grid.add(arrival, arrival + 1, arrival + 36_000 * 10**9)
    found = grid.load()
    assert found is not None
    assert found.arrived[-1] == 3
    grid = LoadGrid(0)
    arrival = np.arange(1_000_000, dtype=np.int64) * 10**8  # 95 of 100 are left when arrivals end
    grid.add(arrival, arrival * 20, arrival * 20 + 10**9)
    found = grid.load()
    assert found is not None
    assert (np.diff(found.in_system) > 0).all()
    assert judge(found).says == "unstable"
