"""Progress of experiments in a pipe: plain lines, now and then, with names and an estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servesim.cli.progress import EVERY_S, FIRST_S, Bar
from servesim.experiments.runner import Progress
from servesim.experiments.store import Cell

ONE = Progress(1, 4, Cell("a", {}), None, True, "h200 / tp=4, 8 replicas")


class Clock:
    """Seconds as the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_pipe_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Bar("capacity", clock=clock) as bar:
        bar(ONE)
        clock.now = FIRST_S + 5
        bar(replace(ONE, done=2, best="best so far"))
        clock.now += EVERY_S / 2
        bar(replace(ONE, done=3))
        clock.now += 60
        bar(replace(ONE, done=4))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "capacity: 2 of 4 runs: h200 / tp=4, 8 replicas, about 10 s left, best so far",
        "capacity: 4 of 4 runs: h200 / tp=4, 8 replicas",
        "capacity: 4 runs in 1 min 18 s",
    ]


def test_rounds_of_a_search_add_up_and_what_is_guessed_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Bar("capacity", clock=clock) as bar:
        bar(replace(ONE, total=2, left=6))
        bar(replace(ONE, done=2, total=2, left=6))
        clock.now = 30.0
        bar(replace(ONE, done=1, total=2, left=3))
    first, last = capsys.readouterr().err.splitlines()
    assert first == (
        "capacity: 3 of about 7 runs: h200 / tp=4, 8 replicas, about 40 s left if the search goes as expected"
    )
    assert last == "capacity: 3 runs in 30 s"


def test_the_last_run_of_a_search_is_not_one_of_about_as_many(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Bar("capacity", clock=clock) as bar:
        clock.now = 30.0
        bar(replace(ONE, done=6, total=6, left=0))
    assert capsys.readouterr().err.startswith("capacity: 6 of 6 runs: ")


def test_what_ends_at_once_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("sweep", clock=Clock()) as bar:
        bar(ONE)
    assert capsys.readouterr().err == ""
