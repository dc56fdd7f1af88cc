"""The runs behind a capacity question, asked for round by round, and the rows they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servesim.experiments.axes import Variant
from servesim.experiments.limit_search import RateSearch, ReplicaSearch
from servesim.experiments.replicates import Replicates
from servesim.experiments.run_metrics import METRICS, Metric, measure
from servesim.experiments.runner import Runner
from servesim.experiments.statistics import interval
from servesim.experiments.sweep import PARETO, pareto_front
from servesim.hardware import Gpu
from servesim.run.scenario import Scenario

REPORTED = (*PARETO, "ttft_p99", "tpot_p99", "usd_per_million_output_tokens", "slo_attainment")
ENDS = 4
"""The ends of an interval are searched so much more coarsely than the rate itself."""


class Study:
    """Asks for runs round by round, all variants and replicates at once."""

    def __init__(
        self,
        runner: Runner,
        variants: Sequence[Variant],
        repeats: Replicates,
        attainment: float,
        warmup: float,
        cooldown: float,
    ) -> None:
        self._runner, self._variants, self.repeats = runner, variants, repeats
        self._attainment, self._window = attainment, (warmup, cooldown)
        self._metrics: list[Metric] = [METRICS[name] for name in REPORTED]
        self.points: list[dict[str, Any]] = []
        self._errors: dict[str, str] = {}

    def highest_rates(self, tolerance: float) -> list[dict[str, Any]]:
        """Run three searches per variant: where the mean attainment meets its target, and where the ends of its
        interval do."""
        searches = {v.label: [RateSearch(f * tolerance) for f in (1, ENDS, ENDS)] for v in self._variants}
        while True:
            wanted = []
            for v in self._variants:
                rates = [s.next() for s in searches[v.label]] if v.label not in self._errors else []
                wanted += [(v, rate) for rate in rates if rate is not None][:1]
            if not wanted:
                break
            points = self._run([(v, j, {"rate": rate}) for v, rate in wanted for j in range(len(self.repeats))])
            for v, rate in wanted:
                if v.label not in self._errors:
                    bounds = self._bounds([p for p in points if p["label"] == v.label])
                    for search, share in zip(searches[v.label], bounds, strict=True):
                        search.tell(rate, share >= self._attainment)
        return _marked([self._rate_row(v, *searches[v.label]) for v in self._variants])

    def _bounds(self, points: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
        """Return the mean attainment over the replicates, and its interval (t); 0 where half of them are unstable."""
        if 2 * sum(p["unstable"] for p in points) >= len(points):
            return 0.0, 0.0, 0.0
        shares = np.array([p["attainment"] for p in points])
        low, high = interval(shares, "t") if len(shares) > 1 else (shares[0], shares[0])
        return float(shares.mean()), float(low), float(high)

    def _rate_row(self, v: Variant, mean: RateSearch, lower: RateSearch, upper: RateSearch) -> dict[str, Any]:
        row = self._row(v, Scenario.of(v.settings).replicas if v.label not in self._errors else None)
        if row["verdict"] == "failed":
            return row
        if mean.high == np.inf or mean.low == 0:
            return row | {"verdict": "never" if mean.low == 0 else "no limit"}
        return row | {
            "verdict": "carries",
            "rate": mean.low,
            "rate_low": min(lower.low, mean.low),
            "rate_high": max(upper.high, mean.high),
            **self._means(v.label, "rate", mean.low),
        }

    def cheapest(self, rate: float, max_replicas: int) -> list[dict[str, Any]]:
        """Run one search per variant, over the number of replicas."""
        searches = {v.label: ReplicaSearch(max_replicas) for v in self._variants}
        while True:
            wanted = [
                (v, n)
                for v in self._variants
                if v.label not in self._errors and (n := searches[v.label].next()) is not None
            ]
            if not wanted:
                break
            points = self._run([(v, j, {"replicas": n}) for v, n in wanted for j in range(len(self.repeats))])
            for v, n in wanted:
                mine = [p for p in points if p["label"] == v.label]
                if v.label not in self._errors:
                    searches[v.label].tell(n, self._bounds(mine)[0] >= self._attainment)
        rows = []
        for v in self._variants:
            fewest = searches[v.label].fewest
            row = self._row(v, fewest)
            if row["verdict"] != "failed" and fewest is None:
                row["verdict"] = "never"
            elif fewest is not None:
                row |= {"verdict": "carries", "rate": rate, **self._means(v.label, "replicas", fewest)}
            rows.append(row)
        return _marked(rows)

    def _run(self, asked: Sequence[tuple[Variant, int, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Compute these runs; return the points of those that did not fail."""
        cells = []
        for v, j, change in asked:
            cells.append(self._runner.cell({**v.settings, **self.repeats.changes[j], **change}))
        self._runner.run(cells)
        found = []
        for (v, j, _), cell in zip(asked, cells, strict=True):
            if cell.address in self._runner.errors:
                self._errors.setdefault(v.label, self._runner.errors[cell.address])
                continue
            run = self._runner.load(cell)
            values = measure(run, self._metrics, *self._window)
            share = values["slo_attainment"]
            if np.isnan(share):
                self._errors.setdefault(v.label, "no request arrives in the steady window: give more --requests")
                continue
            point = {
                "label": v.label,
                "replicate": j,
                "rate": cell.settings["rate"],
                "replicas": run.summary["scenario"]["replicas"],
                "address": cell.address,
                "unstable": run.unstable,
                "attainment": share,
                "values": values,
            }
            found.append(point)
        self.points += found
        return found

    def _means(self, label: str, key: str, value: float) -> dict[str, Any]:
        """Return the means over all replicates at one rate or size."""
        points = [p for p in self.points if p["label"] == label and p[key] == value]
        values = {m.name: float(np.mean([p["values"][m.name] for p in points])) for m in self._metrics}
        share, low, high = self._bounds(points)
        return {"values": values, "attainment": share, "attainment_low": low, "attainment_high": min(high, 1.0)}

    def _row(self, v: Variant, replicas: int | None) -> dict[str, Any]:
        row: dict[str, Any] = {
            "label": v.label,
            "axes": v.axes,
            **dict.fromkeys(("gpu", "gpus", "replicas", "usd_per_hour", "rate", "rate_low", "rate_high")),
            **dict.fromkeys(("attainment", "attainment_low", "attainment_high")),
            "values": dict.fromkeys(REPORTED),
            "verdict": "failed" if v.label in self._errors else "",
            "error": self._errors.get(v.label),
        }
        if v.label in self._errors:
            return row
        scenario = Scenario.of(v.settings)
        price, each = scenario.usd_per_gpu_hour, scenario.tp * scenario.pp
        price = Gpu.load(scenario.gpu).usd_per_hour if price is None else price
        row |= {"gpu": scenario.gpu, "replicas": replicas}
        if replicas is not None:
            row |= {"gpus": each * replicas, "usd_per_hour": each * replicas * price}
        return row

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the notes a reader must know."""
        notes = [f"{row['label'] or 'the deployment'} failed: {row['error']}" for row in rows if row["error"]]
        if any(row["verdict"] == "no limit" for row in rows):
            notes.append("no limit was found: the trace ends before the deployment is full; give more --requests")
        if len(self.repeats) == 1:
            notes.append("one replicate: the interval is what bisection leaves open, not the chance of the trace")
        return notes

    def columns(self) -> dict[str, list[Any]]:
        """Return the points as columns."""
        names = [name for name in self.points[0] if name != "values"] if self.points else []
        table = {name: [p[name] for p in self.points] for name in names}
        return table | {m.name: [p["values"][m.name] for p in self.points] for m in self._metrics}


def _marked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark the Pareto front and the cheapest row."""
    carried = [row for row in rows if row["verdict"] == "carries"]
    front = pareto_front(carried)
    cheapest = min(carried, key=lambda row: float(row["usd_per_hour"] / row["rate"]), default=None)
    for row in rows:
        row["pareto"] = row["label"] in front
        row["cheapest"] = row is cheapest
    return rows
