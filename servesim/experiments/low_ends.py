"""Low ends of capacity's intervals, checked by longer runs where requests miss the SLO together.

A busy period makes tens of requests late at once. Runs that are short beside the time between two such periods often
show none of them, and then agree with each other about a rate that longer runs do not carry. How far misses come
together is seen at the rates just beyond: their design effect is the factor by which the share of good requests varies
more between runs than that of independent requests would (Kish 1965). All runs at one rate together must be long enough
for `TOGETHER` times as many misses within the SLO. If they are not, the low end is the highest rate tried that runs of
that length surely carry, and that a further one would carry with a probability of `FURTHER`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from servesim.experiments.axes import Variant
from servesim.experiments.capacity_study import ENDS, Study, load_text
from servesim.experiments.goals import Goal
from servesim.experiments.limit_search import RateSearch
from servesim.experiments.outcome import Outcome, judge
from servesim.experiments.run_lengths import MOST
from servesim.experiments.statistics import t_quantile

TOGETHER = 5
"""Minimum number of design effects by which all runs at a rate may miss the SLO: about as many independent groups of
misses."""
FURTHER = 0.9
"""Share of further runs of the longer length that must carry the low end."""
STEP = 1.1
"""First factor by which a low end that longer runs do not carry is lowered."""
LONGER = 16
"""Maximum factor by which the runs that check are longer."""
TRIES = 6
"""Maximum number of rates at which longer runs check a low end; if they carry none, it is 0."""

Searches = tuple[RateSearch, RateSearch, RateSearch]


def design_effect(outcomes: Sequence[Outcome], goal: int) -> float:
    """Return the factor by which the share of requests that are good for a goal varies more between runs than that of
    independent requests would; at least 1, and 1 for a single run or if all or none of the requests are good."""
    shares = np.array([outcome.shares[goal] for outcome in outcomes])
    share = float(shares.mean())
    if len(shares) < 2 or not 0 < share < 1:
        return 1.0
    alone = share * (1 - share) / float(np.mean([outcome.counted[goal] for outcome in outcomes]))
    return max(float(shares.var(ddof=1)) / alone, 1.0)


def times_longer(beyond: Sequence[Sequence[Outcome]], goals: Sequence[Goal]) -> float:
    """Return the factor by which runs must be longer, given the outcomes at rates just beyond the highest one carried.
    It is at most 1 if they are long enough, or if the SLO allows no miss."""
    longest = 0.0
    for i, goal in enumerate(goals):
        counted = [sum(outcome.counted[i] for outcome in outcomes) for outcomes in beyond]
        if goal.share < 1 and any(counted):
            effect = float(np.mean([design_effect(outcomes, i) for outcomes in beyond]))
            longest = max(longest, TOGETHER * effect / ((1 - goal.share) * float(np.mean(counted))))
    return longest


def low_ends(study: Study, searches: Mapping[str, Searches], tolerance: float) -> dict[str, dict[str, Any]]:
    """Check the low end of each deployment's interval whose runs are too short for it. Return, by label: `rate_low` (in
    requests/s, 0 if no rate tried is surely carried) and `checked_requests`, the length of the longer runs, if there
    were any; `low_end_needs`, the length that would be enough, if those that were run are shorter. A recorded trace is
    never made longer, and a single run has no interval."""
    found, asked = dict[str, dict[str, Any]](), dict[str, tuple[Variant, RateSearch]]()
    repeats = study.measuring.repeats
    for v in study.variants if not repeats.recorded and len(repeats) > 1 else ():
        if v.label not in searches or v.label in study.errors:
            continue
        mean, lower, upper = searches[v.label]
        low = min(lower.low, mean.low)
        loads = [load for label, load in study.judged if label == v.label and mean.high <= load < upper.high]
        beyond = [study.outcomes[v.label, load] for load in {mean.high, *loads} - {math.inf}]
        times = times_longer(beyond, study.measuring.goals)
        if not low or times <= 1:
            continue
        longer = _longer(study, v, times)
        length, now = len(study.trace(v)), len(study.trace(longer))
        if now > length:
            asked[v.label] = longer, RateSearch(ENDS * tolerance, low, STEP)
            found[v.label] = {"checked_requests": now}
        if now < length * times:
            found.setdefault(v.label, {})["low_end_needs"] = 100 * math.ceil(length * times / 100)
    for label, rate in _carried(study, asked).items():
        if rate is None:
            found[label] = {"checked_requests": None, "low_end_needs": found[label]["checked_requests"]}
        else:
            found[label]["rate_low"] = rate
    return found


def _longer(study: Study, v: Variant, times: float) -> Variant:
    """Return a deployment with runs that are longer by a factor, as far as `LONGER` and `MOST` let them be."""
    asked = v.settings.get("requests") or len(study.trace(v))
    requests = max(min(100 * math.ceil(asked * min(times, LONGER) / 100), MOST), asked)
    return replace(v, settings={**v.settings, "requests": requests})


def _carried(study: Study, asked: Mapping[str, tuple[Variant, RateSearch]]) -> dict[str, float | None]:
    """Return the highest rate that longer runs surely carry, of those that each search tries: 0 if they carry none,
    None if a run fails. Their seeds are fresh, since luck with the study's own may have chosen the rate."""
    failed = set[str]()
    for _ in range(TRIES):
        wanted = [
            (v, search, rate)
            for label, (v, search) in asked.items()
            if label not in failed and (rate := None if search.low and search.high == math.inf else search.next())
        ]
        if not wanted:
            break
        words = [f"{load_text('rate', rate)}, {v.settings['requests']:,} requests" for v, _, rate in wanted]
        asked_now = [(v, {"rate": rate}, said) for (v, _, rate), said in zip(wanted, words, strict=True)]
        runs = study.further(asked_now, study.measuring.repeats.fresh())
        for (v, search, rate), each in zip(wanted, runs, strict=True):
            if outcomes := study.measuring.outcomes(each):
                search.tell(rate, carry(outcomes, study.measuring.goals))
            else:
                failed.add(v.label)
    return {label: None if label in failed else search.low for label, (_, search) in asked.items()}


def carry(outcomes: Sequence[Outcome], goals: Sequence[Goal]) -> bool:
    """Return whether runs surely carry their rate and a further one would with a probability of `FURTHER`, by the t
    prediction interval."""
    judged, n = judge(outcomes, goals), len(outcomes)
    shares = np.array([outcome.shares for outcome in outcomes])
    reach = t_quantile(FURTHER, n - 1) * math.sqrt(1 + 1 / n) * shares.std(axis=0, ddof=1)
    return judged.margin_low >= 0 and bool((shares.mean(axis=0) - reach >= [goal.share for goal in goals]).all())
