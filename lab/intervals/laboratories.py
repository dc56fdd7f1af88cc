"""Bars fitted without a laboratory, held against its results, and the widening for a laboratory that is unseen.

Results of one laboratory share hosts, clients and a way of tuning, so cells left out of its own results say nothing of
a server that somebody else runs. The terms are fitted to the laboratories of the score; whichever is left out, the
others' terms make its bars. A laboratory needs the least factors, in sum, by which the ends must lie farther from the
median for 80 % of its results to be inside. Loads above 128 requests in flight are widened separately. The
widening of an end is the largest need there, since laboratories are too few for a quantile: where one more is drawn
like K others, it needs no more than that with probability K / (K + 1).

How often bars hold is judged on laboratories that are left out of the widening as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from servesim.experiments.accuracy import scores
from servesim.intervals.case import CROWDS, METRICS
from servesim.intervals.fitted import LEVEL, Fitted
from servesim_lab.intervals.conformal import Floats
from servesim_lab.intervals.coverage import rounded
from servesim_lab.intervals.fit import FEWEST_DEPLOYMENTS, Data, statistics
from servesim_lab.intervals.residuals import Measured, deployment_weights

FILE = Path(__file__).with_name("laboratories.yaml")
TAIL = (1 - LEVEL) / 2
"""Share of a laboratory's results that may lie beyond an end."""
ENDS = ("low", "high")
UNNAMED = "yours"
"""Name of the laboratory of results that do not say who measured them."""
LEAST = 0.01
"""Least distance of an end from the median, as a logarithm: repeats of a measurement differ by as much."""


@cache
def described() -> Mapping[str, Mapping[str, str]]:
    """Read what is known of the laboratories."""
    found: Mapping[str, Mapping[str, str]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return found


def named(cells: Sequence[Measured], name: str) -> list[Measured]:
    """Return cells as results of a laboratory, with the engine's version that its recordings do not state."""
    version = str(described().get(name, {}).get("version", ""))
    return [
        replace(cell, laboratory=name, case=replace(cell.case, version=cell.case.version or version)) for cell in cells
    ]


class Ends(NamedTuple):
    """Factors by which the ends of an interval lie farther from its median, in logarithms."""

    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True)
class Beyond:
    """Results of a laboratory (n) and bars that were fitted without it."""

    weights: Floats
    """Weights (n), the same in sum for every deployment."""
    kinds: tuple[str, ...]
    """Kinds of distance (n)."""
    crowds: tuple[str, ...]
    """Values of `Case.crowd` (n). Ends are widened separately for each: bursts on untuned servers say little about few
    clients."""
    far: Mapping[str, tuple[Floats, Floats]]
    """Distances of results below and above the median (n) by metric, in units of the ends' distance from it; 0 on the
    other side."""

    def needs(self, metric: str, crowd: str) -> Ends | None:
        """Return the factors of the low and the high end with the least sum that hold LEVEL of the results of a crowd;
        None if there are none."""
        there = np.array(self.crowds) == crowd
        if not there.any():
            return None
        (low, high), weights = (one[there] for one in self.far[metric]), self.weights[there]
        most = LEVEL * weights.sum()
        found = []
        for least in np.unique(np.maximum(low, 1.0)).tolist():
            held = np.where(low <= least, weights, 0.0)
            if held.sum() >= most - 1e-9:
                found.append(Ends(_up(least), _up(max(_quantile(high, held, most), 1.0))))
        return min(found, key=lambda ends: (sum(ends), ends))

    def inside(self, metric: str, wider: Mapping[str, Ends] | None = None) -> float:
        """Return the share of results inside bars, by default without a widening (by crowd); every deployment weighs
        the same."""
        ends = np.array([(wider or {}).get(crowd, Ends()) for crowd in self.crowds])
        low, high = self.far[metric]
        held = (low <= ends[:, 0] + 1e-9) & (high <= ends[:, 1] + 1e-9)
        return float(np.average(held, weights=self.weights))


def _up(value: float) -> float:
    """Return a value rounded up as documents are, so that what is shipped holds as much."""
    return math.ceil(value * 1e3 - 1e-6) / 1e3


def _quantile(values: Floats, weights: Floats, weight: float) -> float:
    """Return the smallest value with at least a given weight at or below it."""
    order = np.argsort(values, kind="stable")
    return float(values[order[int(np.searchsorted(np.cumsum(weights[order]), weight - 1e-9))]])


@dataclass
class Laboratories:
    """Results by laboratory, some of which the terms are fitted to."""

    cells: Mapping[str, Sequence[Measured]]
    base: Collection[str]
    """Names of the laboratories that the terms are fitted to."""
    _fits: dict[frozenset[str], Fitted | None] = field(default_factory=dict)
    _beyond: dict[tuple[str, frozenset[str]], Beyond | None] = field(default_factory=dict)

    @classmethod
    def of(cls, fitted: Sequence[Measured], others: Sequence[Measured]) -> Laboratories:
        """Group the cells that the terms are fitted to, and others, by laboratory, in the order of `described`."""
        groups: dict[str, list[Measured]] = {name: [] for name in described()}
        for cell in (*fitted, *others):
            groups.setdefault(cell.laboratory or UNNAMED, []).append(cell)
        base = {cell.laboratory or UNNAMED for cell in fitted}
        return cls({name: cells for name, cells in groups.items() if cells}, base)

    def beyond(self, name: str, without: str = "") -> Beyond | None:
        """Return a laboratory's results and bars fitted without it and another one; None if no result has bars."""
        key = name, frozenset({name, without} & set(self.base))
        if key not in self._beyond:
            self._beyond[key] = self._found(*key)
        return self._beyond[key]

    def _found(self, name: str, without: frozenset[str]) -> Beyond | None:
        fitted = self._fit(without)
        if fitted is None:
            return None
        found = [(cell, kind) for cell in self.cells[name] if (kind := fitted.kind_of(cell.case)[0]) is not None]
        if not found:
            return None
        far = {}
        for metric in METRICS:
            y = np.array([cell.residuals[metric] for cell, _ in found])
            low, median, high = (
                np.log([fitted.factors(cell.case, kind, metric).at(share) for cell, kind in found])
                for share in (TAIL, 0.5, 1 - TAIL)
            )
            below, above = np.maximum(median - y, 0.0), np.maximum(y - median, 0.0)
            far[metric] = (below / np.maximum(median - low, LEAST), above / np.maximum(high - median, LEAST))
        kinds, crowds = zip(*((kind.name, cell.case.crowd) for cell, kind in found), strict=True)
        return Beyond(deployment_weights([cell for cell, _ in found]), kinds, crowds, far)

    def needs(self, metric: str, crowd: str, without: str = "") -> dict[str, Ends]:
        """Return the needs of the laboratories with bars in a crowd but one."""
        known = {name: self.beyond(name, without) for name in self.cells if name != without}
        needs = {name: one.needs(metric, crowd) for name, one in known.items() if one is not None}
        return {name: ends for name, ends in needs.items() if ends is not None}

    def wider(self, metric: str, without: str = "") -> dict[str, Ends]:
        """Return the widening of either end by crowd: the largest need of the laboratories but one."""
        found = {}
        for crowd in CROWDS:
            needs = self.needs(metric, crowd, without).values()
            found[crowd] = Ends(*(max((ends[i] for ends in needs), default=1.0) for i in range(len(ENDS))))
        return found

    def _fit(self, without: frozenset[str]) -> Fitted | None:
        """Return bars fitted to the laboratories of the base but these; None if they are too few."""
        if without not in self._fits:
            names = [name for name in self.cells if name in self.base and name not in without]
            cells = [cell for name in names for cell in self.cells[name]]
            enough = len({cell.case.deployment for cell in cells}) >= FEWEST_DEPLOYMENTS
            self._fits[without] = Fitted(statistics(Data.of(cells))) if enough else None
        return self._fits[without]


def laboratories(
    fitted: Sequence[Measured], others: Sequence[Measured], kept: Mapping[str, int], seed: int = 0
) -> dict[str, Any]:
    """Return the document of laboratories left out: `wider` by crowd, metric and end; `left_out`, by laboratory what
    its results are, the errors and how many bars held; `coverage`, over laboratories. Empty with a single laboratory.
    `kept`: results by laboratory, answered or not."""
    found = Laboratories.of(fitted, others)
    if len(found.cells) < 2:
        return {}
    wider = {metric: found.wider(metric) for metric in METRICS}
    rows = [{"kept": kept["" if name == UNNAMED else name], **_row(found, name, wider)} for name in found.cells]
    document = {
        "wider": {crowd: {metric: _widening(found, metric, crowd) for metric in METRICS} for crowd in CROWDS},
        "coverage": _coverage([row for row in rows if row["with_bars"]], seed),
        "left_out": rows,
    }
    return dict(rounded(document))


def _widening(found: Laboratories, metric: str, crowd: str) -> dict[str, Any]:
    """Return the widening of both ends, and the laboratories whose needs they are."""
    needs = found.needs(metric, crowd)
    largest: dict[str, tuple[float, str]] = {
        end: max(((ends[i], name) for name, ends in needs.items()), default=(1.0, "")) for i, end in enumerate(ENDS)
    }
    of = {end: name if need > 1 else "" for end, (need, name) in largest.items()}
    return {**{end: need for end, (need, _) in largest.items()}, "of": of}


def _coverage(rows: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any]:
    """Return by metric the mean share inside over laboratories, with the interval from resampled laboratories."""
    if not rows:
        return {}
    weights = scores.resampled(np.arange(len(rows)), seed, "intervals laboratory")
    inside = {metric: np.array([row[metric]["unseen"] for row in rows]) for metric in METRICS}
    return {metric: scores.estimate(scores.mean(one, weights)) for metric, one in inside.items()}


def _row(all_of_them: Laboratories, name: str, wider: Mapping[str, Mapping[str, Ends]]) -> dict[str, Any]:
    cells = all_of_them.cells[name]
    row: dict[str, Any] = {
        "laboratory": name,
        **{key: described().get(name, {}).get(key, "") for key in ("servers", "what", "load", "fitted")},
        "answered": len(cells),
        "deployments": len({cell.case.deployment for cell in cells}),
        "errors": {metric: _errors(cells, metric) for metric in METRICS},
        "with_bars": 0,
    }
    beyond = all_of_them.beyond(name)
    if beyond is None:
        return row
    row |= {"with_bars": len(beyond.kinds), "kinds": dict(sorted(Counter(beyond.kinds).items()))}
    for metric in METRICS:
        row[metric] = {
            "not_widened": beyond.inside(metric),
            "inside": beyond.inside(metric, wider[metric]),
            "unseen": beyond.inside(metric, all_of_them.wider(metric, name)),
        }
    return row


def _errors(cells: Sequence[Measured], metric: str) -> dict[str, float]:
    """Return figures of the logarithms of simulated over measured times: median, mean size of the error and the median
    of its logarithm; every result weighs the same."""
    logs = [-cell.residuals[metric] for cell in cells]
    return {
        "mape": float(np.mean([abs(math.expm1(one)) for one in logs])),
        "median": math.expm1(float(np.median(np.abs(logs)))),
        "log_median": float(np.median(logs)),
    }
