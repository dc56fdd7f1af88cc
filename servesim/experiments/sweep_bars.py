"""Error bars of a sweep: of the mean latencies of each combination, of the Pareto fronts, of the best. They take no
run: what measured servers say of a case follows from its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.experiments.front_error import Candidate, best_error, front_errors, tail_of
from servesim.experiments.ranking import PARETO
from servesim.experiments.variants import price_of
from servesim.intervals.case import Case
from servesim.intervals.fitted import LEVEL
from servesim.run.error_bars import LATENCY_KEYS, intervals, side_of
from servesim.run.stretched import SAYS

Variants = Sequence[Mapping[str, Any]]
Side = tuple[Case | str, float | None]
"""A case, or in words why there is none; the seconds after the last arrival."""


class SweepBars:
    """What the first run of each combination says of its error."""

    def __init__(self) -> None:
        self._added: dict[str, tuple[Side, Mapping[str, Any]]] = {}  # by address
        self._sides: dict[str, Side] = {}  # by label, as the others below
        self._bars: dict[str, Mapping[str, Any]] = {}

    def add(self, address: str, settings: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Take in the first run of a combination, or of several that are the same run."""
        side = side_of(summary), tail_of(summary, price_of(settings)["open_loop"])
        self._added[address] = side, intervals(summary)

    def judge(
        self,
        variants: Sequence[dict[str, Any]],
        groups: Mapping[float | None, Variants],
        best: Sequence[dict[str, Any]],
        goal: str,
        same: Mapping[str, str],
        addresses: Mapping[str, str],
    ) -> dict[str, Any]:
        """Give each variant its `bars` and each best one how sure it is; return the document's `model_error`. `groups`:
        variants by rate that are ranked; `same`: labels of those that are others under another name; `addresses`: of
        first runs, by label."""
        for label, address in addresses.items():
            if address in self._added:
                self._sides[label], self._bars[label] = self._added[address]
        for variant in variants:
            variant["bars"] = self._of_means(variant) if variant["label"] in self._bars else None
        front = []
        for group in groups.values():
            candidates = [self._candidate(v) for v in group if v["label"] in self._sides]
            for entry in best:
                if any(v["label"] == entry["label"] for v in group):
                    entry |= self._of_best(entry, candidates, goal, same)
            late = {v["label"] for v in group if v["meets_slo"] is False}  # never on a front
            whole = [
                c for c in candidates if c.label not in late and all(c.values.get(name) is not None for name in PARETO)
            ]
            members = {v["label"] for v in group if v["pareto"]}
            if len(whole) > 1:
                front += [
                    {"rate": group[0]["axes"].get("rate"), **entry} for entry in front_errors(whole, members, same)
                ]
        return {"level": LEVEL, "says": SAYS, "front": front}

    def _candidate(self, variant: Mapping[str, Any]) -> Candidate:
        return Candidate(variant["label"], variant["values"], *self._sides[variant["label"]])

    def _of_best(
        self, entry: Mapping[str, Any], candidates: Sequence[Candidate], goal: str, same: Mapping[str, str]
    ) -> dict[str, Any]:
        known = [c for c in candidates if c.values.get(goal) is not None]
        mine = next(c for c in known if c.label == entry["label"])
        first = same.get(mine.label, mine.label)
        return best_error(mine, [c for c in known if same.get(c.label, c.label) != first], goal)

    def _of_means(self, variant: Mapping[str, Any]) -> dict[str, Any]:
        """Return the interval of each mean latency that is among the values."""
        bars = self._bars[variant["label"]]
        found: dict[str, Any] = {"says": bars["says"] if bars["kind"] is not None else f"none: {bars['says']}"}
        for key in LATENCY_KEYS.values():
            value, ends = variant["values"].get(f"{key}_mean"), bars[key]
            if value is not None and ends is not None:
                found[f"{key}_mean"] = {end: value * ends[end] / ends["mean"] for end in ("low", "high")}
        return found
