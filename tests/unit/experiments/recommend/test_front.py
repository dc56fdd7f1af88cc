"""Pareto front of price, latency and headroom, from runs that a question makes anyway."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servesim.experiments.axes import Variant
from servesim.experiments.ranking import undominated
from servesim.experiments.recommend.front import front, front_words, shown

SERVER = {"trace": "synth:rate=1", "model": "llama-3.2-1b", "gpu": "h100", "price": "h100=3"}
TOKENS = {"usd_per_million_tokens": 0.1}
LIMITS = [{"ttft": 200.0}]
Runs = dict[float, tuple[float, bool]]
"""TTFT p99 in ms and whether the SLO is met, by load."""


def row(label: str, replicas: int, rate: float, by: str | None = None, each: int = 1) -> dict[str, Any]:
    values = {"ttft_p99": 90.0}
    size = {"gpu": "h100", "replicas": replicas, "gpus": replicas * each, "usd_per_hour": 3.0 * replicas * each}
    return {"label": label, "verdict": "carries", "rate": rate, "by": by, "values": values, **size}


def found(rows: list[dict[str, Any]], runs: dict[str, Runs], scaled: tuple[str, ...] = ()) -> Any:
    each = {(label, load): one for label, loads in runs.items() for load, one in loads.items()}
    study = SimpleNamespace(
        variants=[Variant(label, {}, SERVER) for label in runs],
        judged={at: SimpleNamespace(carried=carried) for at, (_, carried) in each.items()},
        outcomes={
            at: [
                SimpleNamespace(values={"ttft_p99": ms, "usd_per_million_tokens": 0.1}, usd_per_hour=4.5, usd_parts=())
            ]
            for at, (ms, _) in each.items()
        },
        scaled=frozenset(scaled),
    )
    return SimpleNamespace(study=study, rows=rows)


def figures(points: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(p["label"], p["gpus"], p["rate"], p["usd_per_hour"], p["ms"], p["headroom"], p["on"]) for p in points]


def replicas_for_four() -> Any:
    """At 4 requests/s, one replica of a has 170 ms and two have 90; one of b, on two GPUs, has 100 ms."""
    rows = [row("a", 2, 4.0, "replicas"), row("b", 1, 4.0, "replicas", each=2)]
    return found(rows, {"a": {1: (170.0, True), 2: (90.0, True)}, "b": {1: (100.0, True)}})


def test_replicas_that_were_tried_for_a_rate_are_points_and_halve_the_load_of_each() -> None:
    """One replica is known to carry 4 requests/s; of two, each has 2, so it has at least as much again. b costs as much
    as these and is slower."""
    told = replicas_for_four()
    answer = front(told, LIMITS, "", {})
    assert answer["latency"] == "ttft_p99"
    assert figures(answer["points"]) == [
        ("a", 1, 4.0, 3.0, 170.0, 0.0, True),
        ("a", 2, 4.0, 6.0, 90.0, 1.0, True),
        ("b", 2, 4.0, 6.0, 100.0, 0.0, False),
    ]
    assert [r["pareto"] for r in told.rows] == [True, False]
    assert front_words(answer) == "Pareto front of price, TTFT p99 and headroom: 2 of 3 measured"


def test_a_highest_rate_that_the_search_has_found_is_headroom() -> None:
    """A replica of b carries 10 requests/s, 2.5 times its load; with that it is on the front. One of a carries 3."""
    told = replicas_for_four()
    points = front(told, LIMITS, "", {"a": 3.0, "b": 10.0})["points"]
    assert [(p["label"], p["headroom"], p["on"]) for p in points] == [
        ("a", 0.0, True),
        ("a", 1.0, True),
        ("b", 1.5, True),
    ]


def test_lower_rates_that_were_tried_cost_more_and_have_headroom() -> None:
    """At 8 of the 10 requests/s that are carried, 25 % more are; 12 are carried by chance, above 11, which are not. y
    costs more per request at 4 than x at 5, and is as slow."""
    rows = [row("x", 1, 10.0), row("y", 1, 4.0)]
    runs: dict[str, Runs] = {
        "x": {5.0: (20.0, True), 8.0: (60.0, True), 10.0: (150.0, True), 11.0: (300.0, False), 12.0: (190.0, True)},
        "y": {4.0: (20.0, True)},
    }
    points = front(found(rows, runs), LIMITS, "ttft_p99", {})["points"]
    assert figures(points) == [
        ("x", 1, 10.0, 3.0, 150.0, 0.0, True),
        ("x", 1, 8.0, 3.0, 60.0, 0.25, True),
        ("x", 1, 5.0, 3.0, 20.0, 1.0, True),
        ("y", 1, 4.0, 3.0, 20.0, 0.0, False),
    ]


def test_an_autoscaler_costs_what_was_up_and_has_no_headroom_per_replica() -> None:
    told = found([row("s", 4, 4.0, "replicas")], {"s": {4: (90.0, True)}}, scaled=("s",))
    assert figures(front(told, LIMITS, "", {})["points"]) == [("s", 4, 4.0, 4.5, 90.0, None, True)]


def test_a_deployment_that_misses_the_slo_is_no_point() -> None:
    told = found([row("a", 1, 4.0, "replicas"), row("b", 1, 4.0) | {"verdict": "never"}],
                 {"a": {1: (90.0, True)}, "b": {1: (10.0, False)}})  # fmt: skip
    assert [p["label"] for p in front(told, LIMITS, "", {})["points"]] == ["a"]
    assert [r["pareto"] for r in told.rows] == [True, False]


def test_a_table_leaves_out_points_that_cost_about_the_same() -> None:
    """$1.04 is within 5 % of $1, $1.08 is not; b at $1.04 is another deployment; what is off the front is not shown."""
    each = [("a", 1.0, True), ("b", 1.04, True), ("a", 1.04, True), ("a", 1.08, True), ("a", 2.0, False)]
    points = [{"label": label, "usd_per_hour": usd, "rate": 1.0, "on": on} for label, usd, on in each]
    assert [(p["label"], p["usd_per_hour"]) for p in shown(points)] == [("a", 1.0), ("b", 1.04), ("a", 1.08)]
    assert len(shown(points, 1.0)) == 4


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=12))
def test_each_point_is_on_the_front_or_is_no_better_than_one_that_is(each: list[tuple[int, int, int]]) -> None:
    points = np.array(each, dtype=float)
    on = undominated(points)
    assert on.any()
    for p, kept in zip(points, on, strict=True):
        better = (points <= p).all(axis=1) & (points < p).any(axis=1)
        assert kept == (not better.any())
        assert kept or (better & on).any()


def test_no_points_have_no_front() -> None:
    assert undominated(np.zeros((0, 3))).tolist() == []
    assert front(found([], {}), LIMITS, "", {})["points"] == []
