"""Requests counted together: what they leave behind is what each would alone."""

from __future__ import annotations

from servesim.engine.lockstep import Lockstep
from tests.property.test_fast_equals_reference import compared
from tests.support.worlds import World, toy_trace


def test_a_retired_request_gives_its_blocks_back_before_those_behind_it_in_the_batch() -> None:
    """The first decodes, its last step being the second's prompt, with which that ends too."""
    fast, plain = compared(World(toy_trace([0, 10], [5, 5], [3, 1]), depth=2, asynchronous=True))
    assert fast.replicas[0].core.kv.free_order()[:2] == [2, 1]  # type: ignore[attr-defined]
    assert fast.recorder.requests.column("row").tolist() == plain.recorder.requests.column("row").tolist() == [0, 1]


def test_with_three_steps_in_flight_nothing_is_planned_beyond_the_end_of_the_context() -> None:
    world = World(toy_trace([0], [8], [4]), max_model_len=12, depth=3, asynchronous=True)
    fast, plain = compared(world)
    assert fast.now_ns == plain.now_ns
    assert int(fast.recorder.steps.column("k").sum()) == len(plain.recorder.steps.array()) == 4


def test_requests_that_ended_long_before_their_cap_are_forgotten() -> None:
    """Of two that are always there one has a cap near its end, the other one far away."""
    n = 1000
    caps = [40 if row % 2 else 100_000 for row in range(n)]
    cluster = World(
        toy_trace([12_000 * row for row in range(n)], [8] * n, [40] * n, caps=caps),
        num_blocks=10_000,
        depth=2,
        asynchronous=True,
    ).run()
    lockstep = cluster.replicas[0].core.lockstep
    assert isinstance(lockstep, Lockstep)
    assert lockstep._joined == n
    assert max(len(heap) for heap in (lockstep._ends, lockstep._caps, lockstep._longest)) < 100


def test_who_ends_behind_one_that_waits_for_its_last_token_ends_after_it() -> None:
    """Three steps in flight. The first decodes; the second's prompt takes two steps, the last of them with the third's.
    Both end with it, the third by a stop token, so that two more steps of it are planned by then."""
    trace = toy_trace([0, 0, 0], [50, 15, 1], [3, 1, 1], caps=[3, 1, 2])
    fast, plain = compared(World(trace, max_num_batched_tokens=64, depth=3, asynchronous=True))
    assert fast.recorder.requests.column("row").tolist() == plain.recorder.requests.column("row").tolist()


def test_the_same_behind_one_that_the_end_of_the_context_stops() -> None:
    trace = toy_trace([0, 2003, 2003], [1, 38, 1], [6, 1, 1], caps=[12, 3, 2])
    fast, plain = compared(World(trace, max_model_len=41, depth=4, asynchronous=True))
    assert fast.recorder.requests.column("row").tolist() == plain.recorder.requests.column("row").tolist()
