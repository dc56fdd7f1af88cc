"""First number of replicas that `servesim capacity` tries: by the cost model's bound, fewer do not carry the rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts.warn import Warn
from servesim.experiments import capacity_study
from servesim.experiments.bounds import first_replicas
from servesim.experiments.capacity import capacity
from servesim.experiments.runner import Runner
from servesim.experiments.store import Cell
from servesim.run.replica_search import ReplicaSearch

QUESTION: dict[str, Any] = {
    "trace": "synth:rate=1,prompt=600,output=20",
    "requests": 400,
    "model": "llama-3.2-1b",
    "gpu": "l40s",
    "slo": "ttft:40",
    "replicates": 1,
    "jobs": 1,
    "intervals": False,
}


@pytest.mark.parametrize(
    ("rate", "each", "most", "first"),
    [
        (10.0, 10.0, 64, 1),  # one may be enough
        (10.1, 10.0, 64, 1),  # two may be: the search would end with one
        (20.0, 10.0, 64, 1),
        (20.1, 10.0, 64, 4),  # three are needed: one and two are ruled out
        (40.0, 10.0, 64, 4),
        (40.1, 10.0, 64, 8),
        (900.0, 10.0, 64, 64),  # even the maximum is ruled out, and runs once
        (900.0, 10.0, 63, 32),  # tried before 63 by a search from one, too
        (900.0, 10.0, 3, 1),
        (10.0, math.inf, 64, 1),  # no bound
        (10.0, 0.0, 64, 1),
    ],
)
def test_a_search_starts_at_the_power_of_two_that_the_bound_leaves(
    rate: float, each: float, most: int, first: int
) -> None:
    assert first_replicas(rate, each, most) == first


def _tried(most: int, first: int, needed: int) -> list[int]:
    search, tried = ReplicaSearch(most, first, step=first), list[int]()
    while (n := search.next()) is not None:
        tried.append(n)
        search.tell(n, n >= needed)
    return tried


@given(st.integers(1, 80), st.integers(1, 80), st.floats(0.01, 1.0))
def test_a_search_that_starts_at_a_bound_ends_as_one_from_1_does(needed: int, most: int, share: float) -> None:
    """The bound is below what is needed by a factor. What is tried last gives the warnings, and what is tried just
    below the answer gives the reason that fewer are too few."""
    first = first_replicas(share * needed, 1.0, most)
    whole, short = _tried(most, 1, needed), _tried(most, first, needed)
    assert set(short) <= set(whole)
    assert len(short) <= len(whole)
    assert short[-1] == whole[-1]
    if needed <= most:
        assert {n for n in whole if n >= needed - 1} == {n for n in short if n >= needed - 1}


def _asked(monkeypatch: pytest.MonkeyPatch, from_one: bool, **more: Any) -> tuple[list[int], dict[str, Any]]:
    """Return the numbers of replicas tried, and the document without them."""
    with monkeypatch.context() as patch:
        if from_one:
            patch.setattr(capacity_study, "first_replicas", lambda rate, each, most: 1)
        document = dict(capacity(**{**QUESTION, **more}).attrs["document"])
    return [point["replicas"] for point in document.pop("points")], document


@pytest.mark.parametrize(
    ("more", "tried", "from_one"),
    [
        ({"rate": 300, "max_replicas": 8}, [4, 1, 2, 3], [1, 2, 4, 3]),
        ({"rate": 400, "max_replicas": 4}, [4], [1, 2, 4]),
        ({"rate": 2000, "max_replicas": 4}, [4, 1], [1, 2, 4]),  # growing at four: one is reported
    ],
    ids=["carries", "never", "grows"],
)
def test_numbers_that_the_bound_rules_out_do_not_run_and_the_answer_is_the_same(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], tried: list[int], from_one: list[int]
) -> None:
    found, plain = _asked(monkeypatch, False, **more), _asked(monkeypatch, True, **more)
    assert (found[0], plain[0]) == (tried, from_one)
    assert found[1] == plain[1]


def test_the_warnings_are_those_of_the_search_s_last_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """One replica, which runs only to be reported, is not near the loads of the answer."""
    last = list[int]()

    def warnings(runner: Runner, cells: Mapping[str, Cell]) -> list[Warn]:
        last.extend(cell.settings["replicas"] for cell in cells.values())
        return []

    monkeypatch.setattr(capacity_study, "run_warnings", warnings)
    tried, _ = _asked(monkeypatch, False, rate=2000, max_replicas=4)
    assert (tried, last) == ([4, 1], [4])


def test_a_workload_whose_requests_cannot_be_served_alone_starts_at_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that share content may be found in a cache, so the bound does not hold."""
    tried, _ = _asked(monkeypatch, False, rate=400, max_replicas=4, requests=60, shape=["share:tokens=300,groups=2"])
    assert tried[0] == 1
