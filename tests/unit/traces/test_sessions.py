"""What `trace inspect` says of conversations, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from servesim.traces import load_preset, synthesize
from servesim.traces.inspect import inspect
from servesim.traces.sessions import sessions
from servesim.workload.trace import COMPLETION, DISPATCH, After, Content, Trace

SECOND = 1_000_000_000


def conversations(**more: object) -> Trace:
    """Sessions a (rows 0, 2, 3) and b (row 1); the prompts of a grow by 50 and 100 tokens over 100."""
    lengths = [100, 80, 150, 250]
    content = Content(
        np.array([0, 1, 2, 4, 7]), np.array([1, 2, 1, 3, 1, 3, 4]), np.array([100, 80, 100, 50, 100, 50, 100])
    )
    return Trace.from_lengths(
        "two", [0, 1 * SECOND, 4 * SECOND, 9 * SECOND], lengths, [10] * 4, content=content, **more  # type: ignore[arg-type]
    )  # fmt: skip


def test_turns_pauses_and_repeated_prompts_by_label() -> None:
    found = sessions(conversations(labels={"session": ("a", "b", "a", "a")}))
    assert found is not None
    assert (found.sessions, found.several_turns) == (2, 0.5)
    assert (found.turns.mean, found.turns.p50, found.turns.max) == (2.0, 2.0, 3.0)
    assert found.pauses == "between arrivals"
    assert found.pause_s is not None
    assert (found.pause_s.mean, found.pause_s.max) == (4.5, 5.0)
    assert found.later_shared == (100 + 150) / (150 + 250)
    assert found.first_shared == 0.0


def test_think_times_are_the_delays_after_answers() -> None:
    after = After.of([[], [], [(0, COMPLETION, 2 * SECOND, 0)], [(2, COMPLETION, 6 * SECOND, 0)]])
    found = sessions(conversations(after=after))
    assert found is not None
    assert found.pauses == "after answers"
    assert found.pause_s is not None
    assert (found.pause_s.p50, found.pause_s.max) == (4.0, 6.0)
    assert found.sessions == 2
    spawned = sessions(conversations(after=After.of([[], [], [(0, DISPATCH, 0, 1)], []])))
    assert spawned is not None
    assert spawned.pauses == "between arrivals"


def test_requests_without_a_label_stand_alone() -> None:
    found = sessions(conversations(labels={"session": ("", "", "a", "a")}))
    assert found is not None
    assert found.sessions == 3


def test_a_trace_of_single_requests_has_no_sessions() -> None:
    assert sessions(conversations()) is None
    assert sessions(conversations(labels={"session": ("a", "b", "c", "d")})) is None
    assert inspect(load_preset("azure-conv-2023", 50)).sessions is None


def test_a_synthetic_chat_has_the_turns_and_pauses_it_was_asked_for() -> None:
    found = inspect(synthesize("rate=2,prompt=300,output=30,turns=chat(turns=5,think=10)", 2000)).sessions
    assert found is not None
    assert found.turns.mean == pytest.approx(5, rel=0.1)
    assert found.pause_s is not None
    assert found.pause_s.mean == pytest.approx(10, rel=0.1)
    assert found.later_shared is not None
    assert found.first_shared is not None
    assert found.later_shared > 0.7 > found.first_shared
