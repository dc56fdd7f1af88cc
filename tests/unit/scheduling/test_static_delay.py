"""Static batches that wait until they are full or a delay is over, by the documented rules of Triton's dynamic batcher
(user guide, batchers: preferred batch sizes, delayed batching). Every step takes one microsecond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.errors import UserError
from servesim.run.simulate import simulate
from servesim.workload.trace import Trace
from tests.property.test_fast_equals_reference import compared
from tests.support.worlds import ToyCost, World, toy_trace

US = ToyCost(fixed=1000, token=0, context=0)


def begins(arrivals: list[int], outputs: list[int], **params: Any) -> list[int]:
    """Return when each request begins, in ns, the same in both modes."""
    trace = toy_trace(arrivals, [1] * len(arrivals), outputs)
    world = World(trace, scheduler="static", scheduler_params=params, cost=US)
    compared(world)
    return [int(ns) for ns in world.run(check=True).recorder.requests.column("scheduled_ns")]


def delayed(arrivals: list[int], outputs: list[int], size: int, delay_us: int, **params: Any) -> list[int]:
    return begins(arrivals, outputs, max_batch_size=size, max_queue_delay_microseconds=delay_us, **params)


def test_without_a_delay_who_comes_first_begins_alone() -> None:
    assert begins([0, 500], [2, 2], max_batch_size=2) == [0, 2000]


def test_a_batch_begins_when_it_is_full() -> None:
    assert delayed([0, 500], [2, 2], 2, 1) == [500, 500]


def test_one_that_is_not_full_begins_when_the_delay_of_its_first_request_is_over() -> None:
    assert delayed([300], [2], 2, 1) == [1300]
    assert delayed([300, 800], [2, 2], 3, 1) == [1300, 1300]


def test_who_comes_at_the_instant_at_which_the_delay_ends_is_part_of_it() -> None:
    assert delayed([0, 1000, 1001], [2, 2, 2], 3, 1) == [1000, 1000, 3000]


def test_the_delay_runs_while_another_batch_does() -> None:
    """The first batch runs from 0 to 5000. The third request's delay of 4 us is over at 6000, of 1 us before 5000."""
    assert delayed([0, 0, 2000], [5, 5, 1], 2, 4) == [0, 0, 6000]
    assert delayed([0, 0, 2000], [5, 5, 1], 2, 1) == [0, 0, 5000]


def test_the_first_batch_is_full_if_all_are_there_and_the_last_waits_for_the_delay() -> None:
    assert delayed([0] * 5, [1] * 5, 2, 10) == [0, 0, 1000, 1000, 10_000]


def test_the_largest_preferred_size_that_waits_begins_at_once() -> None:
    assert begins([0] * 7, [1] * 7, max_batch_size=8, preferred_batch_size=[4, 8]) == [0] * 4 + [1000] * 3
    assert delayed([0] * 3, [1] * 3, 8, 5, preferred_batch_size=[2, 4]) == [0, 0, 5000]


def test_once_the_delay_is_over_all_that_wait_begin_whatever_size_is_preferred() -> None:
    """Six come while the first batch of four runs from 0 to 5000; their delay of 1 us is over at 2000."""
    arrivals, outputs = [0] * 4 + [1000] * 6, [5] * 4 + [1] * 6
    assert delayed(arrivals, outputs, 8, 1, preferred_batch_size=4) == [0] * 4 + [5000] * 6
    assert delayed(arrivals, outputs, 8, 9, preferred_batch_size=4) == [0] * 4 + [5000] * 4 + [10_000] * 2


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"max_queue_delay_microseconds": -1}, "max_queue_delay_microseconds is -1 but must be at least 0"),
        (
            {"max_batch_size": 2, "preferred_batch_size": 3},
            "preferred_batch_size 3 must be from 1 to max_batch_size, 2",
        ),
        ({"preferred_batch_size": [4]}, "preferred_batch_size 4 must be from 1 to max_batch_size, which is not set"),
    ],
)
def test_bad_parameters_are_one_line(params: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        simulate(
            {"scheduler": {"name": "static", **params}},
            trace=toy_trace([0], [1], [1]),
            model="llama-3.1-8b",
            gpu="h200",
        )


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 6)), min_size=1, max_size=12).map(sorted),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(0, 4),
)
def test_no_request_waits_past_its_delay_while_nothing_runs(
    requests: list[tuple[int, int]], size: int, delay_us: int, preferred: int
) -> None:
    arrivals, outputs = [at for at, _ in requests], [n for _, n in requests]
    sizes = [preferred] if 0 < preferred <= size else []
    starts = delayed(arrivals, outputs, size, delay_us, preferred_batch_size=sizes)
    batches = {at: [i for i, each in enumerate(starts) if each == at] for at in starts}
    free = 0
    for at, rows in batches.items():
        assert at <= max(free, arrivals[rows[0]] + 1000 * delay_us)
        assert at >= free
        assert len(rows) == size or sizes == [len(rows)] or at >= arrivals[rows[0]] + 1000 * delay_us
        free = at + 1000 * max(outputs[i] for i in rows)


def test_when_the_first_request_leaves_the_delay_is_that_of_the_next() -> None:
    """A and B come at 0 and 500; A's client gives up at 700, and B begins at 1500 rather than at 1000."""
    trace = replace(toy_trace([0, 500], [1, 1], [2, 2]), cancel_ns=np.array([700, -1]))
    params = {"max_batch_size": 3, "max_queue_delay_microseconds": 1}
    world = World(trace, scheduler="static", scheduler_params=params, cost=US)
    compared(world)
    assert world.run(check=True).recorder.requests.column("scheduled_ns").max() == 1500


@pytest.mark.parametrize("host", ["default", "none"])
def test_the_textbook_batch_with_and_without_host_time(host: str) -> None:
    """A (500 tokens) and B (10) begin together, and C and D when A has ended."""
    trace = Trace.from_lengths("ABCD", [0] * 4, [100] * 4, [500, 10, 11, 101])
    scheduler = {"name": "static", "max_batch_size": 2, "max_queue_delay_microseconds": 100_000}
    settings = {} if host == "default" else {"host": host}
    result = simulate(trace=trace, model="llama-3.1-8b", gpu="h200", scheduler=scheduler, **settings)
    a, b, c, d = (result.requests.iloc[i] for i in range(4))
    assert a.scheduled_ns == b.scheduled_ns < a.finished_ns == b.finished_ns
    assert c.scheduled_ns == d.scheduled_ns >= a.finished_ns
    assert c.scheduled_ns - a.finished_ns < 100_000_000
