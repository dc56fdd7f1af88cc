"""The model's error in a capacity question: searched again with all times of the servers stretched.

A server whose times are all longer by f, at rate r, is the simulated one at rate f r with limits (and windows) shorter
by f: servesim.run.error_bars says why. So the ends of the interval are two more searches, which begin where
the first one ended. Two deployments are compared by the spread of their ratio, which pairs of measured servers give,
never by the difference of two intervals: does the cheapest stay so where it is slower by that much?

Propagated, not validated; the cheapest few alone have it, since no other is chosen by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servesim.contracts.section import Settings
from servesim.experiments.axes import Variant
from servesim.experiments.capacity_scaled import at_load
from servesim.experiments.capacity_study import Study, load_text
from servesim.experiments.goals import Goal
from servesim.experiments.limit_search import NearSearch, RateSearch
from servesim.experiments.outcome import judge
from servesim.experiments.run_metrics import Run
from servesim.intervals.case import METRICS, Case
from servesim.intervals.fitted import LEVEL, Fitted, shipped
from servesim.intervals.pairs import WORDS, Spread, spread
from servesim.run.error_bars import ENDS, LATENCY_KEYS, SAYS, case_of, unlike, unscaled
from servesim.run.scenario import Scenario

SOUGHT = 3
"""Deployments whose interval is sought: the cheapest ones."""
TOLERANCE = 0.1
"""Where bisection of an end stops, as a ratio: ends are two digits at most."""
ROUNDS = 5
"""Loads tried for one end."""
STEP = 1.25
"""Factor of the first step from the answer; each next one is its square."""
NEAR = 2.0
"""Rates tried before count for an end where they are within this ratio of the answer."""
MORE = 2
"""Times the guess beyond which replicas are not sought: where that number is too few, probably all are."""
Factors = Mapping[str, float]
"""By latency as SLOs name it: how much longer it is than simulated."""


@dataclass
class End:
    """A search of one deployment whose times are stretched."""

    variant: Variant
    by: Factors
    rate: float | None
    """Requests/s that replicas are sought for; None: the rate is sought."""
    search: RateSearch | NearSearch
    hopeless: bool = False
    """Whether not even requests alone are fast enough."""
    tried: int = 0

    @property
    def stretched(self) -> float:
        """The factor of durations."""
        return self.by["e2el"]

    def next(self) -> float | None:
        """Return the load to try."""
        return self.search.next() if self.tried < ROUNDS and not self.hopeless else None

    def settings(self, load: float) -> Settings:
        """Return what is simulated in place of a load."""
        return {"rate": load} if self.rate is None else {"rate": self.rate * self.stretched, "replicas": int(load)}

    def found(self) -> tuple[float | None, float | None]:
        """Return the highest load known to be carried (of replicas the fewest), and the lowest rate that is not."""
        if isinstance(self.search, NearSearch):
            return self.search.fewest, None
        high = self.search.high / self.stretched
        return self.search.low / self.stretched or None, high if high < math.inf else None


class CapacityError:
    """Intervals of the rows of a capacity question."""

    def __init__(self, study: Study, rows: Sequence[dict[str, Any]], max_replicas: int, by_price: bool) -> None:
        self._study, self._by_price, self._most = study, by_price, max_replicas
        self._fitted: Fitted = shipped()
        self._variants = {v.label: v for v in study.variants}
        carried = [row for row in rows if row["verdict"] == "carries"]
        self._rows = sorted(carried, key=rank)
        self._cases: dict[str, Case | str] = {}
        self.runs = 0
        """Runs asked for, those that were there before among them."""

    def add(self) -> dict[str, Any]:
        """Give each row its `model_error`; return the part of the document that says how decisions stand."""
        ends: dict[str, list[End]] = {}
        for i, row in enumerate(self._rows):
            label = row["label"]
            words = f"not sought: {SOUGHT} deployments are cheaper" if i >= SOUGHT else self._unlike(row)
            row["model_error"] = {"low": None, "high": None, "says": words or SAYS}
            if not words:
                ends[label] = [self._end(row, by) for by in self._factors(label)]
        pairs = self._pairs()
        self._run([*(end for both in ends.values() for end in both), *(end for end in pairs.values() if end)])
        for row in self._rows:
            if row["label"] in ends:
                row["model_error"] |= self._interval(row, ends[row["label"]])
        decisions = [self._decision(row, pairs.get(row["label"])) for row in self._rows[1:SOUGHT]]
        return {"level": LEVEL, "says": SAYS, "runs": self.runs, "decisions": decisions}

    def _unlike(self, row: Mapping[str, Any]) -> str:
        """Return in words why a row has no interval; empty where it has one. Its case is kept."""
        variant = self._variants[row["label"]]
        key = "replicas" if self._by_price else "rate"
        settings = at_load(variant.settings, key, row[key])
        runs = self._study.further([(variant, settings, "as it is")])[0]
        assert runs is not None  # it carried its load
        summary = runs[0].summary
        case = unlike(summary) or case_of(summary) or "no request of two tokens or more completed"
        self._cases[row["label"]] = case
        if isinstance(case, str):
            return f"none: {case}"
        kind, why = self._fitted.kind_of(case)
        scenario = Scenario.of(variant.settings)
        waits = self._study.trace(variant).after is not None
        why = why if kind is None else unscaled(scenario, waits)
        return f"none: {why}" if why else ""

    def _factors(self, label: str) -> Iterable[Factors]:
        case = self._cases[label]
        assert isinstance(case, Case)
        kind, _ = self._fitted.kind_of(case)
        assert kind is not None
        for share in ENDS:
            yield {LATENCY_KEYS[m]: self._fitted.factors(case, kind, m).at(share) for m in METRICS}

    def _end(self, row: Mapping[str, Any], by: Factors) -> End:
        variant, times = self._variants[row["label"]], by["e2el"]
        hopeless = not self._study.may_reach(variant, self._goals(by))
        if self._by_price:
            return End(variant, by, row["rate"], self._near(row["replicas"], times), hopeless)
        return End(variant, by, None, self._begun(variant, by, row["rate"]), hopeless)

    def _near(self, replicas: int, times: float) -> NearSearch:
        """Return a search of replicas where `replicas` are the fewest at the times simulated: no fewer do where times
        are longer, and as many do where they are shorter."""
        guess = math.ceil(replicas * times)
        if times > 1:
            return NearSearch(max(replicas, guess - 1), min(self._most, MORE * guess), too_few=replicas - 1)
        return NearSearch(guess, replicas, fewest=replicas)

    def _begun(self, variant: Variant, by: Factors, rate: float) -> RateSearch:
        """Return a search that knows what the runs at hand say."""
        search = RateSearch(TOLERANCE, rate, STEP)
        tried = [load for label, load in self._study.judged if label == variant.label]
        known = sorted(load for load in tried if rate / NEAR <= load <= rate * NEAR)
        asked: list[tuple[Variant, Settings, str]] = [(variant, {"rate": load}, "as it is") for load in known]
        for load, runs in zip(known, self._study.further(asked), strict=True):
            search.tell(load, self._carried(runs, by))
        return search

    def _carried(self, runs: Sequence[Run] | None, by: Factors) -> bool:
        """Whether the goals are reached where times are longer by these factors."""
        if runs is None:
            return False
        measuring, goals = self._study.measuring, self._goals(by)
        own = replace(measuring, metrics=(), goals=goals, minutes=measuring.minutes / by["e2el"])
        outcomes = [own.outcome(run) for run in runs]
        if any(math.isnan(share) for outcome in outcomes for share in outcome.shares):
            return False
        return judge(outcomes, goals).carried

    def _goals(self, by: Factors) -> list[Goal]:
        """Return the goals with limits shorter by these factors."""
        return [
            replace(
                goal,
                limits=_shorter(goal.limits, by),
                classes={name: _shorter(limits, by) for name, limits in goal.classes.items()},
            )
            for goal in self._study.measuring.goals
        ]

    def _run(self, ends: Sequence[End]) -> None:
        """Search all ends, round by round."""
        while asked := [(end, load) for end in ends if (load := end.next()) is not None]:
            key = "replicas" if self._by_price else "rate"
            wanted = [
                (end.variant, end.settings(load), f"{load_text(key, load)}, times x {end.stretched:.2f}")
                for end, load in asked
            ]
            for (end, load), runs in zip(asked, self._study.further(wanted), strict=True):
                self.runs += len(runs or ())
                end.tried += 1
                carried = self._carried(runs, end.by)
                if isinstance(end.search, NearSearch):
                    end.search.tell(int(load), carried)
                else:
                    end.search.tell(load, carried)

    def _interval(self, row: Mapping[str, Any], ends: Sequence[End]) -> dict[str, float | None]:
        """Return the interval of GPUs, or of the rate: the outer sides of what is left open. Null: not found."""
        fast, slow = (end.found() for end in ends)
        if not self._by_price:
            low, high = slow[0], fast[1]
            return {"low": low and min(low, row["rate"]), "high": high and max(high, row["rate"])}
        each = row["gpus"] // row["replicas"]
        few, many = (None if n is None else int(n) * each for n in (fast[0], slow[0]))
        return {"low": few, "high": many}

    def _pairs(self) -> dict[str, End | None]:
        """Return for each of the next cheapest the cheapest with its times longer by the spread of the pair; None
        where no spread is known."""
        found: dict[str, End | None] = {}
        for row in self._rows[1:SOUGHT]:
            what = self._spread(self._rows[0], row)
            if isinstance(what, Spread) and self._rows[0]["model_error"]["says"] == SAYS:
                by = dict.fromkeys(LATENCY_KEYS.values(), what.factor)
                found[row["label"]] = self._end(self._rows[0], by)
        return found

    def price_ratios(self, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Return for each pair of rows that carry something how far the price of the first over that of the second may
        be off: its `low` and `high` where the first is faster and slower by the spread of the pair, null where that is
        not known or not found, and in words by what."""
        asked: list[tuple[Spread | str, list[End]]] = []
        for pair in pairs:
            why = [self._unlike(row) for row in pair if row["label"] not in self._cases]
            what = next(filter(None, why), "") or self._spread(*pair)
            factors = (1 / what.factor, what.factor) if isinstance(what, Spread) else ()
            ends = [self._end(pair[0], dict.fromkeys(LATENCY_KEYS.values(), factor)) for factor in factors]
            asked.append((what, ends))
        self._run([end for _, ends in asked for end in ends])
        found = []
        for (a, b), (what, ends) in zip(pairs, asked, strict=True):
            bars: dict[str, Any] = {"low": None, "high": None, "level": LEVEL, "says": what}
            if isinstance(what, Spread):
                ratio = price_of_row(a) / price_of_row(b)
                low, high = (self._times(a, end, fast) for end, fast in zip(ends, (True, False), strict=True))
                bars |= {"low": low and ratio * min(low, 1), "high": high and ratio * max(high, 1), "says": what.says}
            found.append(bars)
        return found

    def _times(self, row: Mapping[str, Any], end: End, fast: bool) -> float | None:
        """Return how many times the price of a row an end has; None where it was not found."""
        carried, not_carried = end.found()
        if self._by_price:
            return None if carried is None else carried / row["replicas"]
        rate = not_carried if fast else carried
        return None if rate is None else float(row["rate"] / rate)

    def _spread(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> Spread | str:
        """Return the spread of the ratio of mean E2E of two rows, or in words why none is known."""
        a, b = self._cases[one["label"]], self._cases[other["label"]]
        if isinstance(a, str):
            return a
        return b if isinstance(b, str) else spread(self._fitted, a, b, "e2e")

    def _decision(self, row: Mapping[str, Any], end: End | None) -> dict[str, Any]:
        """Return whether the cheapest stays cheaper than another where it is slower by the spread of the pair: `holds`
        (null: not known) and in words why."""
        best, what = self._rows[0], self._spread(self._rows[0], row)
        told = {"cheapest": best["label"], "against": row["label"], "holds": None, "factor": None}
        names = f"{best['label']} against {row['label']}"
        if end is None or isinstance(what, str):
            return told | {"says": f"{names}: how far the model's error goes is not known: {what}"}
        found = end.found()[0]
        price = math.inf
        if found is not None:
            price = price_of_row(best) * (found / best["replicas"] if self._by_price else best["rate"] / found)
        holds = price <= price_of_row(row)
        could = "stays cheaper" if holds else "could be the dearer one"
        return told | {
            "holds": holds,
            "factor": what.factor,
            "says": f"{names}: {could}: where it is {100 * (what.factor - 1):.0f} % slower than simulated against the "
            f"other (as one in ten measured pairs of {WORDS[what.kind]} is) its price is {_ratio(price, row)} the "
            "other's",
        }


def _ratio(price: float, row: Mapping[str, Any]) -> str:
    return "beyond" if price == math.inf else f"{100 * price / price_of_row(row):.0f} % of"


def price_of_row(row: Mapping[str, Any]) -> float:
    """Return the price of an hour per request/s."""
    return float(row["usd_per_hour"] / row["rate"])


def rank(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return what rows are ranked by: the price, and among equals the share of good requests."""
    return price_of_row(row), -float(row["attainment"])


def _shorter(limits: Mapping[str, float], by: Factors) -> dict[str, float]:
    return {name: limit / by.get(name, by["e2el"]) for name, limit in limits.items()}


def gpu_bars(row: Mapping[str, Any]) -> str:
    """Return the interval of a row's number of GPUs to stand behind it, " (1-3)"; empty where it has none."""
    bars = row.get("model_error")
    if bars is None or bars["says"] != SAYS or row["rate_high"] is not None:
        return ""
    low, high = bars["low"], bars["high"]
    if low == high:
        return f" ({low})" if low is not None else ""
    return f" ({'?' if low is None else low}-{'?' if high is None else high})"


def rate_bars(row: Mapping[str, Any]) -> str:
    """Return the interval of a row's highest rate to stand behind it, " (6.1-9.8)"; empty where it has none."""
    bars = row.get("model_error")
    if bars is None or bars["says"] != SAYS or row["rate_high"] is None:
        return ""
    low, high = (f"{bars[end]:.2g}" if bars[end] is not None else "?" for end in ("low", "high"))
    return f" ({low}-{high})"


def error_sentences(document: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know of the model's error: what brackets are, how decisions stand, what has none."""
    error = document.get("model_error")
    if error is None:
        return []
    bars = [row for row in document["rows"] if row.get("model_error") is not None]
    found = []
    if any(row["model_error"]["says"] == SAYS for row in bars):
        found.append(
            f"in brackets: where {100 * error['level']:.0f} % of servers would lie by the model's error "
            f"({SAYS}; {error['runs']} more runs)"
        )
    found += [one["says"] for one in error["decisions"]]
    found += [one["says_error"] for one in document.get("worth", ())]
    without = {
        row["label"]: row["model_error"]["says"] for row in bars if row["model_error"]["says"].startswith("none")
    }
    found += [f"{label or 'this'}: error bars {says}" for label, says in without.items()]
    later = [row["label"] for row in bars if row["model_error"]["says"].startswith("not sought")]
    if later:
        found.append(
            f"no brackets are sought of the {len(later)} behind the {SOUGHT} cheapest; the Pareto front has none"
        )
    if bars:
        found.append("TTFT p99 and $/M tokens are as simulated at the rate shown, and move with it")
    return found
