"""Race of `servesim recommend`, on deployments whose limits are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from servesim.experiments.axes import Variant
from servesim.experiments.recommend.aims import PricePerRequest
from servesim.experiments.recommend.lengths import Length
from servesim.experiments.recommend.race import NEAR, Entrant, Race, climb, screen


class Known:
    """Study of deployments that carry every rate up to a known limit."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits = limits
        self.judged: dict[tuple[str, float], Any] = {}
        self.errors: dict[str, str] = {}
        self.measuring: Any = None

    def run_at(self, key: str, wanted: Sequence[tuple[Variant, float]]) -> None:
        for v, load in wanted:
            assert (v.label, load) not in self.judged, "a load is run only once"
            self.judged[v.label, load] = SimpleNamespace(
                carried=load <= self.limits[v.label],
                margin=self.limits[v.label] - load,
                margin_low=self.limits[v.label] * 0.9 - load,
            )


class Priced(PricePerRequest):
    """Aim whose deployments all cost a dollar per hour."""

    def cost(self, v: Variant) -> float:
        return 1.0


def entrant(label: str, bound: float = 0.0) -> Entrant:
    return Entrant({"name": label}, Variant(label, {}, {}), bound)


def race_of(limits: Mapping[str, float]) -> Race:
    return Race(Known(limits), Priced())  # type: ignore[arg-type]


LIMITS = st.lists(st.floats(0.5, 500.0), min_size=1, max_size=12)
SLACK = st.lists(st.floats(1.0, 4.0), min_size=12, max_size=12)


@given(LIMITS, SLACK)
@settings(max_examples=200)
def test_screening_keeps_the_best_and_all_that_are_near(limits: list[float], slack: list[float]) -> None:
    known = {str(i): limit for i, limit in enumerate(limits)}
    entrants = [entrant(name, 1 / (limit * times)) for (name, limit), times in zip(known.items(), slack, strict=False)]
    race = race_of(known)
    kept = screen(race, entrants, 4)
    best = max(known.values())
    labels = {e.variant.label for e in kept}
    tolerance = 1.1  # of the coarse search
    assert {name for name, limit in known.items() if limit * NEAR >= best * tolerance} <= labels
    assert all(known[e.variant.label] * NEAR * tolerance >= best for e in kept)
    prices = [race.prices[e.variant.label] for e in kept]
    assert prices == sorted(prices)


def test_a_deployment_whose_bound_is_too_high_never_runs() -> None:
    race = race_of({"good": 100.0, "bad": 10.0})
    screen(race, [entrant("good", 1 / 110), entrant("bad", 1 / 12)], 1)
    assert {label for label, _ in race.study.judged} == {"good"}


def test_a_challenger_that_loses_runs_once() -> None:
    race = race_of({"good": 100.0, "bad": 10.0})
    screen(race, [entrant("good", 1 / 200), entrant("bad", 1 / 190)], 1)
    assert sum(label == "bad" for label, _ in race.study.judged) == 1


def test_once_a_batch_carries_nothing_a_deployment_that_carries_next_to_nothing_runs_once() -> None:
    """The first two are measured at several rates each. Of the next two, one carries a thousandth of its
    bound of 100 requests/s and is measured, and one does not."""
    race = race_of({"a": 1e-9, "b": 1e-9, "c": 20.0, "d": 0.09})
    kept = screen(race, [entrant(name, 1 / (103 - i)) for i, name in enumerate("abcd")], 2)
    assert [e.variant.label for e in kept] == ["c"]
    runs = [label for label, _ in race.study.judged]
    assert runs.count("a") > 5
    assert runs.count("c") > 1
    assert runs.count("d") == 1


@given(st.floats(1.0, 1000.0), st.floats(0.2, 5.0))
def test_a_measured_price_is_within_its_tolerance(limit: float, off: float) -> None:
    race = race_of({"one": limit})
    race.measure([(entrant("one"), limit * off)], 0.02)
    assert 1 / limit <= race.prices["one"] * 1.001
    assert race.prices["one"] <= 1.0211 / limit


def test_a_deployment_that_carries_nothing_has_no_price() -> None:
    race = race_of({"one": 1e-9})
    race.measure([(entrant("one"), 1.0)], 0.02)
    assert race.prices["one"] == math.inf


class Parts(Known):
    """Study of first parts, of which each misses a known number of 2,400 requests."""

    def __init__(self, missed: Mapping[str, int]) -> None:
        super().__init__({})
        self.missed = missed
        self.requests: list[int] = []

    def run_at(self, key: str, wanted: Sequence[tuple[Variant, float]]) -> None:
        for v, load in wanted:
            self.requests.append(v.settings["requests"])
            self.judged[v.label, load] = SimpleNamespace(shares=[1 - self.missed[v.label] / 2_400])


def test_a_first_part_with_more_misses_than_the_whole_run_may_have_settles_it() -> None:
    """P99 of the 12,800 of 16,000 requests that count may miss 128. The first 4,000 leave out the same 1,600 at the
    start; of the other 2,400, `late` misses 130 and `close` 126."""
    whole, first = Known({"late": 10.0, "close": 10.0}), Parts({"late": 130, "close": 126})
    whole.measuring = SimpleNamespace(goals=[SimpleNamespace(share=0.99)], ends=(0.1, 0.1))
    race = Race(whole, Priced(), Length(least=16_000), early=first)  # type: ignore[arg-type]
    asked = [(entrant("late"), 9.0), (entrant("close"), 9.0)]
    assert race.carried(asked) == race.carried(asked) == [False, True]
    assert {label for label, _ in whole.judged} == {"close"}
    assert first.requests == [4_000, 4_000]


def test_a_load_of_runs_that_are_too_short_counts_only_if_their_queue_surely_stays_bounded() -> None:
    race = race_of({"one": 10.0})
    race.length = Length(least=1_000, seconds=2_500.0)
    assert race.carried([(entrant("one"), 9.5), (entrant("one"), 8.9)]) == [False, True]
    assert race.carried([(entrant("one"), 7.9)]) == [True]


def test_climbing_takes_each_change_that_pays() -> None:
    """Limits multiply: a is worth 1.5, b 1.3, c nothing."""
    worth = {"a": 1.5, "b": 1.3, "c": 1.0}
    names = [frozenset(one) for one in ("", "a", "b", "c", "ab", "ac", "bc", "abc")]
    known = {"".join(sorted(name)): 10 * math.prod(worth[x] for x in name) for name in names}
    race = race_of(known)
    start = entrant("")
    race.measure([(start, 10.0)], 0.01)

    def neighbors(head: Entrant, _: Race) -> list[Entrant]:
        own = {*head.variant.label}
        return [entrant("".join(sorted(own | {x}))) for x in worth if x not in own]

    [best] = climb(race, [start], neighbors, 0.01, 5)
    assert best.variant.label == "ab"


def test_climbing_stops_after_its_passes() -> None:
    known = {str(i): 10.0 * 2**i for i in range(6)}
    race = race_of(known)
    race.measure([(entrant("0"), 10.0)], 0.01)
    [best] = climb(race, [entrant("0")], lambda head, _: [entrant(str(int(head.variant.label) + 1))], 0.01, 3)
    assert best.variant.label == "3"


@given(st.lists(st.floats(1.05, 3.0), min_size=1, max_size=30))
def test_few_challengers_are_measured(worth: list[float]) -> None:
    known = {"": 10.0} | {str(i): 10 * times for i, times in enumerate(worth)}
    race = race_of(known)
    race.measure([(entrant(""), 10.0)], 0.01)
    [best] = climb(race, [entrant("")], lambda head, _: [entrant(str(i)) for i in range(len(worth))], 0.01, 1)
    assert known[best.variant.label] >= max(known.values()) * 0.975
    assert len(race.prices) <= 3


def test_runs_are_as_long_as_their_rate_asks_for() -> None:
    length = Length(least=1_000, seconds=30.0)
    assert length.at(10.0) == 1_000
    assert length.at(100.0) == 3_000
    assert length.at(101.0) == 3_500  # in steps
    assert length.at(1e6) == 20_000
    assert Length().at(100.0) is None  # a log is replayed whole
