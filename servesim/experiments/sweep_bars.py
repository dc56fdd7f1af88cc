"""Error bars of a sweep, for the mean latencies of each combination, the Pareto fronts, and the best. They take no
extra runs, because a case's error relative to measured servers follows from its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from servesim.experiments.front_error import Candidate, best_error, front_errors, tail_of
from servesim.experiments.ranking import PARETO
from servesim.experiments.variants import price_of
from servesim.intervals.case import Case
from servesim.intervals.fitted import LEVEL
from servesim.run.error_bars import LATENCY_KEYS, intervals, side_of
from servesim.run.stretched import SAYS

Variants = Sequence[Mapping[str, Any]]


class First(NamedTuple):
    """Error of a combination, from its first run."""

    side: Case | str
    tail: float | None
    """Tail share, as defined in Candidate."""
    bars: Mapping[str, Any]

    @classmethod
    def of(cls, settings: Mapping[str, Any], summary: Mapping[str, Any]) -> First:
        """Return the error, given the settings of a combination and the summary of its first run."""
        return cls(side_of(summary), tail_of(summary, price_of(settings)["open_loop"]), intervals(summary))


def judged_errors(
    variants: Sequence[dict[str, Any]],
    groups: Mapping[float | None, Variants],
    best: Sequence[dict[str, Any]],
    goal: str,
    same: Mapping[str, str],
    known: Mapping[str, First],
) -> dict[str, Any]:
    """Set the `bars` of each variant and the confidence in each best variant. Return the document's `model_error`.
    `groups` holds the ranked variants by rate, `same` maps the label of a variant to that of an identical earlier
    one, and `known` holds the errors of the variants by label."""
    for variant in variants:
        first = known.get(variant["label"])
        variant["bars"] = None if first is None else _of_means(variant["values"], first.bars)
    front = []
    for group in groups.values():
        firsts = [(v, known[v["label"]]) for v in group if v["label"] in known]
        candidates = [Candidate(v["label"], v["values"], first.side, first.tail) for v, first in firsts]
        for entry in best:
            if any(v["label"] == entry["label"] for v in group):
                entry |= _of_best(entry["label"], candidates, goal, same)
        front += _of_front(group, candidates, same)
    return {"level": LEVEL, "says": SAYS, "front": front}


def _of_front(group: Variants, candidates: Sequence[Candidate], same: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the front's entries at one rate, or none unless it has several candidates."""
    late = {v["label"] for v in group if v["meets_slo"] is False}  # never on a front
    whole = [c for c in candidates if c.label not in late and all(c.values.get(name) is not None for name in PARETO)]
    if len(whole) <= 1:
        return []
    members = {v["label"] for v in group if v["pareto"]}
    return [{"rate": group[0]["axes"].get("rate"), **entry} for entry in front_errors(whole, members, same)]


def _of_best(label: str, candidates: Sequence[Candidate], goal: str, same: Mapping[str, str]) -> dict[str, Any]:
    known = [c for c in candidates if c.values.get(goal) is not None]
    mine = next(c for c in known if c.label == label)
    first = same.get(label, label)
    return best_error(mine, [c for c in known if same.get(c.label, c.label) != first], goal)


def _of_means(values: Mapping[str, float | None], bars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the interval of each mean latency among the values."""
    found: dict[str, Any] = {"says": bars["says"] if bars["kind"] is not None else f"none: {bars['says']}"}
    for key in LATENCY_KEYS.values():
        value, ends = values.get(f"{key}_mean"), bars[key]
        if value is not None and ends is not None:
            found[f"{key}_mean"] = {end: value * ends[end] / ends["mean"] for end in ("low", "high")}
    return found
