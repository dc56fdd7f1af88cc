"""Rows of a capacity document, and the answer in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servesim.contracts.warn import Warn
from servesim.experiments.axes import Variant
from servesim.experiments.busy_times import Window, minute_note, window_note
from servesim.experiments.capacity_error import price_of_row, rank
from servesim.experiments.capacity_scaled import SCALED, against_fixed, cost_of, hour_text
from servesim.experiments.capacity_study import REPORTED, Study
from servesim.experiments.goals import Goal
from servesim.experiments.limit_search import RateSearch
from servesim.experiments.named import failures, several
from servesim.experiments.outcome import growing
from servesim.experiments.ranking import PARETO, pareto_front
from servesim.experiments.replicates import Replicates
from servesim.experiments.variants import usd_of_gpus
from servesim.hardware import Gpu
from servesim.run.prices import GpuPrice
from servesim.run.scenario import Scenario

MANY = ("gpu", "gpus", "replicas", "usd_per_hour", "rate", "rate_low", "rate_high", *SCALED)
SHARES = ("attainment", "attainment_low", "attainment_high", "best_attainment", "best_at")
WORDS = ("goal", "window", "minute", "binds", "reason", "by", "enough_requests", "checked_requests", "low_end_needs")
REPLICATES = 5
"""Default number of replicates."""
QUEUE = "a queue that keeps growing"
"""Limiting factor of a deployment whose queue grows at the next load tried."""
TOO_SHORT = {
    "enough_requests": "the runs are too short to tell whether the queue stays bounded at the highest sustained rate",
    "low_end_needs": ("requests miss the SLO in bursts, and the runs are too short for the low end of the interval"),
}
"""Fields with a number of requests that would be enough, and what the runs are too short for."""


class Answer:
    """Findings of a study, one deployment at a time."""

    def __init__(self, study: Study, goals: Sequence[Goal]) -> None:
        self._study, self._goals = study, goals

    def by_rate(self, searches: Mapping[str, tuple[RateSearch, RateSearch, RateSearch]]) -> list[dict[str, Any]]:
        """Return a row for each deployment with the highest rate it carries."""
        rows = []
        for v in self._study.variants:
            row = self._row(v, None if v.label in self._study.errors else Scenario.of(v.settings).replicas)
            rows.append(row)
            if v.label not in searches or row["verdict"] == "failed":
                continue
            mean, lower, upper = searches[v.label]
            if mean.low and mean.high == np.inf:
                row |= {"verdict": "no limit", "reason": None}
            elif mean.low:
                row |= {
                    "verdict": "carries",
                    "rate": mean.low,
                    "rate_low": min(lower.low, mean.low),
                    "rate_high": max(upper.high, mean.high),
                    **self._at(v.label, mean.low, mean.high),
                }
        return _marked(rows, self._goals)

    def by_price(self, rate: float, fewest: Mapping[str, int | None]) -> list[dict[str, Any]]:
        """Return a row for each deployment with the smallest number of replicas that carries a rate."""
        rows = []
        for v in self._study.variants:
            replicas = fewest[v.label]
            row = self._row(v, replicas) | {"by": "replicas"}
            if replicas is not None and row["verdict"] != "failed":
                short = max((n for label, n in self._study.judged if label == v.label and n < replicas), default=None)
                row |= {"verdict": "carries", "rate": rate, **self._at(v.label, replicas, short)}
            rows.append(row)
        return _marked(rows, self._goals)

    def _row(self, v: Variant, replicas: int | None) -> dict[str, Any]:
        row: dict[str, Any] = {
            "label": v.label,
            "axes": v.axes,
            **dict.fromkeys((*MANY, *SHARES, *WORDS)),
            "values": dict.fromkeys(REPORTED),
            "model_error": None,
            "verdict": "failed" if v.label in self._study.errors else "never",
            "error": self._study.errors.get(v.label),
        }
        if v.label in self._study.errors:
            return row
        scenario = Scenario.of(v.settings)
        each = scenario.tp * scenario.pp * scenario.dp
        row |= {"gpu": scenario.gpu, "replicas": replicas, **self._best(v.label)}
        if replicas is not None:
            row |= {"gpus": each * replicas, "usd_per_hour": usd_of_gpus(scenario, each * replicas)}
        return row

    def _best(self, label: str) -> dict[str, Any]:
        """Return the best share of a deployment that misses a goal at every load, and the reason it is no better."""
        tried = {load: judged for (name, load), judged in self._study.judged.items() if name == label}
        if tried:
            best = max(judged.margin for judged in tried.values())
            load = min(load for load, judged in tried.items() if judged.margin >= best)
            judged, outcome = tried[load], self._study.outcomes[label, load][0]
            misses = outcome.misses[judged.binding]
            return {
                **self._scaled(label, load),
                "goal": judged.binding,
                **_short(judged.shares[judged.binding], judged.window),
                "best_at": load,
                "reason": misses and misses.sentence,
            }
        idle = self._study.idle.get(label)
        if idle is None:
            return {}
        at = int(np.argmin([share - goal.share for share, goal in zip(idle.least, self._goals, strict=True)]))
        misses = idle.misses[at]
        reason = misses and f"{misses.sentence} on an idle server"
        return {"goal": at, **_short(idle.shares[at], idle.worst[at]), "reason": reason}

    def _scaled(self, label: str, load: float) -> dict[str, Any]:
        """Return the cost of a deployment whose number of replicas varies, or an empty dict for any other."""
        if label not in self._study.scaled:
            return {}
        return cost_of(self._study.outcomes[label, load])

    def _at(self, label: str, load: float, beyond: float | None) -> dict[str, Any]:
        """Return the findings for a deployment at the load it carries. `beyond` is the nearest load that it does not
        carry, whose misses show the limiting metric."""
        judged, outcomes = self._study.judged[label, load], self._study.outcomes[label, load]
        values = {name: float(np.mean([outcome.values[name] for outcome in outcomes])) for name in REPORTED}
        goal = judged.binding
        after = self._study.outcomes.get((label, beyond)) if beyond is not None else None
        missed = self._study.judged[label, beyond].binding if after and beyond is not None else goal
        misses = (after or outcomes)[0].misses[missed]
        enough = [outcome.enough for outcome in outcomes if outcome.enough is not None]
        minute = outcomes[0].minute
        return {
            **self._scaled(label, load),
            "values": values,
            "goal": goal,
            "attainment": judged.shares[goal],
            "attainment_low": judged.low[goal],
            "attainment_high": judged.high[goal],
            "best_attainment": judged.shares[goal],
            "best_at": load,
            "window": judged.window and judged.window._asdict(),
            "minute": minute._asdict() if minute and minute.share < self._goals[goal].share else None,
            "binds": QUEUE if after and growing(after) else misses.which if misses is not None else None,
            "reason": None,
            "enough_requests": max(enough) if 2 * len(enough) > len(outcomes) else None,
        }


def _short(share: float, window: Window | None) -> dict[str, Any]:
    """Return the share that falls short: the share in the worst window, if lower than the overall one, else the
    overall share."""
    binds = window is not None and window.share < share
    return {"best_attainment": window.share if binds and window else share,
            "window": window._asdict() if binds and window else None}  # fmt: skip


def _marked(rows: list[dict[str, Any]], goals: Sequence[Goal]) -> list[dict[str, Any]]:
    """Mark the Pareto front and the cheapest row."""
    carried = [row for row in rows if row["verdict"] == "carries"]
    front = pareto_front(carried, front_metrics(rows, [goal.limits for goal in goals]))
    cheapest = min(carried, key=rank, default=None)
    for row in rows:
        row["pareto"] = row["label"] in front
        row["cheapest"] = row is cheapest
    return rows


def front_metrics(rows: Sequence[Mapping[str, Any]], limits: Sequence[Mapping[str, float]]) -> tuple[str, str, str]:
    """Return the metrics of the Pareto front: price, latency, throughput. The latency is that whose p99 comes closest
    to its limit in the rows that carry a load, given the limits in ms of each goal; E2E if none of them is reported."""
    price, latency, flow = PARETO
    carried = [row["values"] for row in rows if row["verdict"] == "carries"]
    used: dict[str, float] = {}
    for name, limit in ((f"{key}_p99", limit) for goal in limits for key, limit in goal.items()):
        values = [each[name] for each in carried] if name in REPORTED else []
        if values and all(value is not None and value == value for value in values):
            used[name] = max(sum(values) / limit, used.get(name, 0.0))
    return price, max(used, key=lambda name: used[name], default=latency), flow


def ordered(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that carry a load, lowest price per request first, then the others, best share first."""
    carried = sorted((row for row in rows if row["verdict"] == "carries"), key=rank)
    others = [row for row in rows if row["verdict"] != "carries"]
    return [*carried, *sorted(others, key=lambda row: -(row["best_attainment"] or 0.0))]


def sentence(rows: Sequence[Mapping[str, Any]], by_price: bool, goals: Sequence[Goal], rate: float | None) -> str:
    """Return the answer in one sentence."""
    ranked = sorted((row for row in rows if row["verdict"] == "carries"), key=rank)
    if not ranked:
        return _nothing(rows, goals, rate)
    best = ranked[0]
    name, hour = _deployment(best), hour_text(best)
    said = f"Take {name}: {hour}" if by_price else f"{name} sustains {best['rate']:.4g} requests/s at {hour}"
    if len(ranked) > 1:
        less = "less than the next" if by_price else "cheaper per request than the next"
        said += _saving(price_of_row(best), price_of_row(ranked[1]), less)
    said += f"; the limiting factor is {best['binds']}" if best["binds"] else ""
    return "; ".join([said, *against_fixed(rows)]) if by_price else said


def _deployment(row: Mapping[str, Any]) -> str:
    """Return the recommended deployment, such as "8 x H200 in fp8 (2 replicas of tp=4)"."""
    axes = row["axes"]
    dtype = f" in {axes['dtype']}" if "dtype" in axes else ""
    others = [str(value) if "name" in str(key) else f"{key}={value}" for key, value in axes.items()
              if key not in ("gpu", "dtype", "tp", "replicas", "scaler")]  # fmt: skip
    if row["usd_per_hour_low"] is not None:
        others.append(f"at most, by {axes['scaler']}" if "scaler" in axes else "at most")
    each = row["gpus"] // row["replicas"]
    many = row["replicas"] > 1 and each > 1
    details = [f"{row['replicas']} replicas of {each} GPUs"] if many else [f"tp={axes['tp']}"] if "tp" in axes else []
    inside = ", ".join([*details, *others])
    return f"{row['gpus']} x {str(row['gpu']).upper()}{dtype}" + (f" ({inside})" if inside else "")


def _saving(price: float, other: float, words: str) -> str:
    share = 1 - price / other if other else 0.0
    return f", {100 * share:.0f} % {words}" if share >= 0.005 else ", the same as the next"


def _nothing(rows: Sequence[Mapping[str, Any]], goals: Sequence[Goal], rate: float | None) -> str:
    known = [row for row in rows if row["verdict"] == "never" and row["best_attainment"] is not None]
    if any(row["verdict"] == "no limit" for row in rows):
        return "No limit was found: the trace ends before a deployment is full"
    what = f"{rate:.4g} requests/s" if rate is not None else "any rate"
    if failed := [row for row in rows if row["error"]]:
        said = f"{len(failed)} of {len(rows)} deployments" if len(rows) > 1 else "The deployment"
        return f"{said} failed ({failed[0]['error']}), and none is known to sustain {what}"
    if not known:
        return f"No deployment sustains {what}"
    best = max(known, key=lambda row: row["best_attainment"] - goals[row["goal"]].share)
    reason = f": {best['reason']}" if best["reason"] else ""
    name = best["label"] or "the deployment"
    most = f"{100 * best['best_attainment']:.4g} %"
    return f"No deployment sustains {what}; {name} comes closest, with at most {most}{reason}"


def never_text(row: Mapping[str, Any]) -> str:
    """Return the best share of a deployment that misses a goal at every load, the lowest load with that share, and the
    reason that it is no better."""
    share, load = f"{100 * row['best_attainment']:.4g} % at best", row["best_at"]
    if load is not None and row["by"] == "replicas":
        share += f", with {load:g} or more replicas"
    elif load is not None:
        share += f", at {load:.4g} requests/s"
    if (window := row["window"]) is not None:
        share += f" in the {window['minutes']:g} minutes starting at minute {window['minute']:.0f}"
    return share + (f": {row['reason']}" if row["reason"] else "")


def notes(
    rows: Sequence[Mapping[str, Any]], repeats: Replicates, goals: Sequence[Goal], prices: Mapping[str, GpuPrice]
) -> list[str]:
    """Return notes for the reader."""
    found = failures([(row["label"] or "the deployment", row["error"]) for row in rows if row["error"]])
    found += repeats.notes
    for row in rows:
        if row["verdict"] != "carries":
            continue
        name, goal = row["label"] or "the deployment", goals[row["goal"]]
        if (worst := row["window"]) is not None and worst["share"] < 1:
            found.append(window_note(name, worst, goal.share))
        if (worst := row["minute"]) is not None:
            found.append(minute_note(name, worst))
    gpus = dict.fromkeys(str(row["gpu"]) for row in rows if row["gpu"] is not None)
    missing = [gpu for gpu in gpus if prices and Gpu.load(gpu).name not in prices]
    if missing:
        given = f"no price is specified for {', '.join(missing)} (only for {', '.join(prices)})"
        found.append(Warn(f"{given}, so data-sheet prices are used; add them with --price"))
    for key, said in TOO_SHORT.items():
        if short := [row for row in rows if row[key]]:
            where = f" ({several([row['label'] for row in short])})" if len(rows) > 1 else ""
            enough = max(row[key] for row in short)
            longer = f"a log of about {enough:,} requests (or this one with --shape repeat:times=N)"
            would = longer if repeats.recorded else f"--requests {enough}"  # a log's low ends need no longer runs
            found.append(Warn(f"{said}{where}; {would} would be enough"))
    if any(row["verdict"] == "no limit" for row in rows):
        found.append(Warn("no limit was found: the trace ends before the deployment is full; increase --requests"))
    if len(repeats) == 1:
        what = "the interval is the resolution of the bisection and does not include variation between traces"
        if any(row["by"] == "replicas" for row in rows):
            what = "how the answer varies between traces is not known"
        short_log = repeats.recorded and repeats.changes[0]["requests"] < REPLICATES
        instead = "a longer log" if short_log else f"--replicates {REPLICATES}"
        found.append(Warn(f"one replicate: {what}. Use {instead}."))
    return found
