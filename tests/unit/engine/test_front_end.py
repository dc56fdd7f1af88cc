"""A front end tokenizes prompts one after the other, each token alike."""

from __future__ import annotations

from typing import Any

import numpy as np

import servesim
from servesim.contracts.request import State
from servesim.workload.trace import Trace
from servesim.workload.workload import Clients, FrontEnd, TraceWorkload


def reached(front: FrontEnd) -> list[tuple[int, int]]:
    """(row, when it reaches the queue) of every request."""
    found = []
    while (now := front.next_ns()) is not None:
        if (popped := front.pop()) is not None:
            found.append((popped[0].row, now))
    return found


def burst(*arrivals: int) -> TraceWorkload:
    lengths = np.array([100 * (i + 1) for i in range(len(arrivals))])
    return TraceWorkload(Trace.from_lengths("burst", np.array(arrivals), lengths, np.ones_like(lengths)))


def test_prompts_that_come_together_wait_for_each_other() -> None:
    assert reached(FrontEnd(burst(0, 0, 0), 7, 0, 10.0)) == [(0, 1007), (1, 3007), (2, 6007)]


def test_a_prompt_that_comes_later_starts_when_it_comes() -> None:
    assert reached(FrontEnd(burst(0, 5000), 7, 0, 10.0)) == [(0, 1007), (1, 7007)]


def test_a_prompt_reaches_the_queue_while_the_next_is_tokenized() -> None:
    assert reached(FrontEnd(burst(0, 500, 90_000), 400, 0, 10.0)) == [(0, 1400), (1, 3400), (2, 93_400)]


def test_without_tokenizing_only_the_fixed_latency_counts() -> None:
    assert reached(FrontEnd(burst(0, 0, 3), 7, 0)) == [(0, 7), (1, 7), (2, 10)]


def test_prompts_being_tokenized_are_still_to_come() -> None:
    front = FrontEnd(burst(0, 0), 7, 0, 10.0)
    assert front.next_ns() == 1007
    assert front.remaining() == 2


def test_what_depends_on_answers_is_not_asked_for_ahead() -> None:
    trace = Trace.from_lengths("two", [0, 0], [100, 100], [1, 1])
    front = FrontEnd(TraceWorkload(trace, clients=Clients(max_concurrency=1)), 7, 20, 10.0)
    assert not front.open_loop
    assert front.next_ns() == 0
    assert front.pop() is None
    assert front.next_ns() == 1007
    popped = front.pop()
    assert popped is not None
    assert front.next_ns() is None  # until the first has been answered
    popped[0].state = State.FINISHED
    front.on_finish(popped[0], 5000)
    assert front.next_ns() == 5020
    assert front.pop() is None
    assert front.next_ns() == 6027


def test_a_run_behind_a_front_end_is_the_same_step_by_step() -> None:
    settings: dict[str, Any] = {
        "trace": "synth:rate=30,output=uniform(1,80)",
        "requests": 120,
        "model": "llama-3.1-8b",
        "gpu": "h200",
    }
    fast, steps = (servesim.simulate(**settings, replicas=2, mode=mode) for mode in ("fast", "reference"))
    assert fast.requests.equals(steps.requests)
    assert fast.summary["latency_ms"] == steps.summary["latency_ms"]
    assert fast.steps["k"].sum() == steps.steps["k"].sum() == len(steps.steps) > len(fast.steps)
