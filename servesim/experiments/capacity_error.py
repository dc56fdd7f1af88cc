"""Error of the model in a capacity question, from additional searches with all server times stretched.

The ends of an interval come from two more searches that start where the first one ended. Each simulates the equivalent
of a stretched server (servesim.run.stretched: a different rate, and limits and windows scaled accordingly). Two
deployments are compared using the spread of their ratio: does the cheapest stay the cheapest if it is slower by that
much?

The error is propagated, not validated. It is computed only for the few cheapest deployments, since no others would be
chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servesim.contracts.section import Settings
from servesim.experiments.axes import Variant
from servesim.experiments.capacity_scaled import at_load
from servesim.experiments.capacity_study import Study, load_text
from servesim.experiments.goals import Goal
from servesim.experiments.limit_search import LimitSearch, RateSearch
from servesim.experiments.outcome import judge
from servesim.experiments.run_metrics import Run
from servesim.experiments.variants import usd_of_gpus
from servesim.intervals.case import Case
from servesim.intervals.fitted import LEVEL, Fitted, shipped
from servesim.intervals.pairs import WORDS, Spread
from servesim.run.error_bars import side_of
from servesim.run.replica_search import ReplicaSearch
from servesim.run.scenario import Scenario
from servesim.run.stretched import SAYS, Stretch, ratio_spread, stretches

UNKNOWN = ": the model's error is not known: "
"""Words between what is not known and the reason why."""
SOUGHT = 3
"""Number of deployments, cheapest first, for which an interval is determined."""
TOLERANCE = 0.1
"""Ratio at which bisection of an interval's end stops. Ends are given with at most two digits."""
ROUNDS = 5
"""Maximum number of loads tried per end of an interval."""
STEP = 1.25
"""Factor of the first step away from the answer. Each later factor is the square of the one before."""
NEAR = 2.0
"""Ratio to the answer within which results of rates that were already tried are reused for an end."""
MORE = 2
"""Multiple of the guess up to which replica counts are tried. If that many are too few, more probably are as well."""
Row = Mapping[str, Any]


@dataclass
class End:
    """Search with stretched times for one deployment and one end of its interval."""

    variant: Variant
    stretch: Stretch
    fast: bool
    """Whether this is the end with shorter times."""
    rate: float | None
    """Requests/s for which replicas are searched, or None if the search is for the rate."""
    search: LimitSearch
    hopeless: bool = False
    """Whether even requests served alone miss a goal."""
    tried: int = 0

    def next(self) -> float | None:
        """Return the next load to try, or None if done."""
        return self.search.next() if self.tried < ROUNDS and not self.hopeless else None

    def settings(self, load: float) -> Settings:
        """Return the settings simulated in place of a load."""
        return {"rate": load} if self.rate is None else {"rate": self.rate * self.stretch.times, "replicas": int(load)}

    def tell(self, load: float, carried: bool) -> None:
        """Record whether a load was carried."""
        self.tried += 1
        self.search.tell(load, carried)

    def found(self) -> float | None:
        """Return the smallest number of replicas, or the rate at the outer end of the remaining bracket. Return None if
        not found."""
        if not isinstance(self.search, RateSearch):
            return self.search.found
        rate = (self.search.high if self.fast else self.search.low) / self.stretch.times
        return rate if 0 < rate < math.inf else None

    def price(self, row: Row) -> float | None:
        """Return the hourly price per request/s of the row's deployment at this end, or None if it was not found."""
        load = self.found()
        if load is None:
            return None
        if self.rate is None:
            return float(row["usd_per_hour"] / load)
        gpus = int(load) * (row["gpus"] // row["replicas"])
        return float(usd_of_gpus(Scenario.of(self.variant.settings), gpus) / row["rate"])


class CapacityError:
    """Intervals of the rows of a capacity question."""

    def __init__(self, study: Study, rows: Sequence[dict[str, Any]], max_replicas: int, by_price: bool) -> None:
        self._study, self._by_price, self._most = study, by_price, max_replicas
        self._fitted: Fitted = shipped()
        self._variants = {v.label: v for v in study.variants}
        self._rows = sorted((row for row in rows if row["verdict"] == "carries"), key=rank)
        self.sides: dict[str, Case | str] = {}
        """Cases of deployments whose stretches were determined, by label, or the reason that one has none."""
        self._stretches: dict[str, tuple[Stretch, Stretch] | str] = {}
        self.runs = 0
        """Number of requested runs, including those that already existed."""

    def add(self) -> dict[str, Any]:
        """Set `model_error` in each row. Return the part of the document on whether decisions hold."""
        ends: dict[str, list[End]] = {}
        for i, row in enumerate(self._rows):
            both = self.stretches_of(row) if i < SOUGHT else f"not computed: {SOUGHT} deployments are cheaper"
            row["model_error"] = {"low": None, "high": None, "says": both if isinstance(both, str) else SAYS}
            if not isinstance(both, str):
                ends[row["label"]] = [self._end(row, *one) for one in zip(both, (True, False), strict=True)]
        slower = [self._pair(self._rows[0], row, False) for row in self._rows[1:SOUGHT]]
        self._run([end for each in (*ends.values(), *(pair for _, pair in slower)) for end in each])
        for row in self._rows:
            if row["label"] in ends:
                row["model_error"] |= self._interval(row, *(end.found() for end in ends[row["label"]]))
        decisions = [self._decision(row, *pair) for row, pair in zip(self._rows[1:SOUGHT], slower, strict=True)]
        return {"level": LEVEL, "says": SAYS, "runs": self.runs, "decisions": decisions}

    def stretches_of(self, row: Row) -> tuple[Stretch, Stretch] | str:
        """Return the stretches at the ends of a row's interval, or the reason there are none. Store the row's case."""
        label = row["label"]
        if label not in self._stretches:
            variant, key = self._variants[label], "replicas" if self._by_price else "rate"
            runs = self._study.further([(variant, at_load(variant.settings, key, row[key]), "as it is")])[0]
            assert runs is not None  # it was carried
            self.sides[label] = side_of(runs[0].summary)
            waits = self._study.trace(variant).after is not None
            found = stretches(self._fitted, self.sides[label], Scenario.of(variant.settings), waits)
            self._stretches[label] = f"none: {found}" if isinstance(found, str) else found
        return self._stretches[label]

    def _end(self, row: Row, stretch: Stretch, fast: bool) -> End:
        variant = self._variants[row["label"]]
        hopeless = not self._study.may_reach(variant, self._goals(stretch))
        if self._by_price:
            return End(variant, stretch, fast, row["rate"], self._near(row["replicas"], stretch.times), hopeless)
        return End(variant, stretch, fast, None, self._begun(variant, stretch, row["rate"]), hopeless)

    def _near(self, replicas: int, times: float) -> ReplicaSearch:
        """Return a search around `replicas`, the smallest number that suffices at the simulated times. With longer
        times, at least as many are needed; with shorter times, that many suffice."""
        guess = math.ceil(replicas * times)
        if times > 1:
            return ReplicaSearch(min(self._most, MORE * guess), max(replicas, guess - 1), too_few=replicas - 1)
        return ReplicaSearch(replicas, guess, fewest=replicas)

    def _begun(self, variant: Variant, stretch: Stretch, rate: float) -> RateSearch:
        """Return a search that starts with the results of existing runs."""
        search = RateSearch(TOLERANCE, rate, STEP)
        tried = [load for label, load in self._study.judged if label == variant.label]
        known = sorted(load for load in tried if rate / NEAR <= load <= rate * NEAR)
        asked: list[tuple[Variant, Settings, str]] = [(variant, {"rate": load}, "as it is") for load in known]
        for load, runs in zip(known, self._study.further(asked), strict=True):
            search.tell(load, self._carried(runs, stretch))
        return search

    def _carried(self, runs: Sequence[Run] | None, stretch: Stretch) -> bool:
        """Return whether the goals are reached with stretched times, given the runs simulated in their place."""
        measuring, goals = self._study.measuring, self._goals(stretch)
        own = replace(measuring, metrics=(), goals=goals, minutes=measuring.minutes / stretch.times)
        outcomes = own.outcomes(runs)
        return bool(outcomes) and judge(outcomes, goals).carried

    def _goals(self, stretch: Stretch) -> list[Goal]:
        goals = self._study.measuring.goals
        return [replace(g, limits=stretch.limits(g.limits), classes=stretch.classes(g.classes)) for g in goals]

    def _run(self, ends: Sequence[End]) -> None:
        """Run the searches for all ends, round by round."""
        key = "replicas" if self._by_price else "rate"
        while asked := [(end, load) for end in ends if (load := end.next()) is not None]:
            wanted = [
                (end.variant, end.settings(load), f"{load_text(key, load)}, {end.stretch.words}") for end, load in asked
            ]
            for (end, load), runs in zip(asked, self._study.further(wanted), strict=True):
                self.runs += len(runs or ())
                end.tell(load, self._carried(runs, end.stretch))

    def _interval(self, row: Row, fast: float | None, slow: float | None) -> dict[str, float | None]:
        """Return the interval of GPUs or of the rate, with null for an end that was not found."""
        if not self._by_price:
            return {"low": slow and min(slow, row["rate"]), "high": fast and max(fast, row["rate"])}
        each = row["gpus"] // row["replicas"]
        few, many = (None if n is None else int(n) * each for n in (fast, slow))
        return {"low": few, "high": many}

    def _pair(self, one: Row, other: Row, *fast: bool) -> tuple[Spread | str, list[End]]:
        """Return the spread of the ratio of two rows' mean E2E, or the reason it is not known. Also return searches for
        the first row with times shorter (`fast`) or longer by that spread."""
        both, _ = self.stretches_of(one), self.stretches_of(other)
        what = ratio_spread(self._fitted, self.sides[one["label"]], self.sides[other["label"]], "e2e")
        if isinstance(what, str):
            return what, []
        if isinstance(both, str):
            return both.removeprefix("none: "), []
        return what, [self._end(one, Stretch.even(1 / what.factor if f else what.factor), f) for f in fast]

    def _decision(self, row: Row, what: Spread | str, ends: Sequence[End]) -> dict[str, Any]:
        """Return whether the cheapest row stays cheaper than another one even if it is slower by the spread of the
        pair."""
        best = self._rows[0]
        if isinstance(what, str):
            return decided(best, row, what)
        found, other = ends[0].price(best), price_of_row(row)
        price = math.inf if found is None else found
        slower = f"it is {100 * (what.factor - 1):.0f} % slower than simulated relative to the other"
        paired = f"as in one of ten measured pairs of {WORDS[what.kind]}"
        cost = f"it costs {_more(price, other)} per request"
        if found is None:
            cost = "it sustains none of the rates that were tried"
        said = f"stays cheaper than {row['label']} even if {slower}, {paired}: {cost} then"
        if price > other:
            said = f"may be more expensive than {row['label']}: if {slower}, {paired}, {cost}"
        return decided(best, row, what, price <= other, said)

    def price_ratios(self, pairs: Sequence[tuple[Row, Row]]) -> list[dict[str, Any]]:
        """Return the error of the ratio of the first row's price to the second's, for each pair of rows that carry a
        load. `low` and `high` are the ratios if the first is faster or slower by the spread of the pair (null if not
        known or not found). `says` gives the basis."""
        asked = [self._pair(one, other, True, False) for one, other in pairs]
        self._run([end for _, ends in asked for end in ends])
        found = []
        for (one, other), (what, ends) in zip(pairs, asked, strict=True):
            bars: dict[str, Any] = {"low": None, "high": None, "level": LEVEL, "says": what}
            if isinstance(what, Spread):
                own, (low, high) = price_of_row(one), (end.price(one) for end in ends)
                bars |= {
                    "low": low and min(low, own) / price_of_row(other),
                    "high": high and max(high, own) / price_of_row(other),
                    "says": what.says,
                }
            found.append(bars)
        return found


def decided(best: Row, row: Row, what: Spread | str, holds: bool | None = None, said: str = "") -> dict[str, Any]:
    """Return the entry of a decision for the best row and against another one: whether it `holds` (null if not known),
    and an explanation. `what`: spread of the pair, or the reason it is not known; `said`: what the best row does."""
    one, two = best["label"], row["label"]
    told = {"cheapest": one, "against": two, "holds": holds}
    if isinstance(what, str):
        return told | {"factor": None, "says": f"{one} against {two}{UNKNOWN}{what}"}
    return told | {"factor": what.factor, "says": f"{one} {said}"}


def _more(price: float, other: float) -> str:
    """Return a price in words, compared with another."""
    ratio = price / other if other else 1.0 if not price else math.inf
    share = 100 * abs(ratio - 1)
    if share < 0.05:
        return "the same"
    return f"{share:.{'0' if share >= 1 else '1'}f} % {'more' if ratio > 1 else 'less'}"


def price_of_row(row: Row) -> float:
    """Return the hourly price per request/s."""
    return float(row["usd_per_hour"] / row["rate"])


def rank(row: Row) -> tuple[float, float]:
    """Return the sort key of a row: the price and, among rows with the same price, the share of good requests."""
    return price_of_row(row), -float(row["attainment"])
