"""Short measurement of a server: one client, and bursts of requests at once, beside the same loads simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from servesim.errors import UserError
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.reading import cells_in
from servesim.experiments.accuracy.recipes import recipe
from servesim.experiments.measure.answers import Answer
from servesim.experiments.measure.files import CELLS, table
from servesim.experiments.measure.loops import Point, means
from servesim.experiments.measure.startup import Facts
from servesim.experiments.measure.study import Measured, Measurement, Plan
from servesim.experiments.named import grouped
from servesim.run.error_bars import intervals
from servesim.run.simulate import simulate

SHORT = Plan(
    idle=(256, 2048),
    clients=(),
    saturated=0,
    output=256,
    idle_requests=6,
    repeats=1,
    minutes=5.0,
    bursts=((64, 128, 4), (64, 256, 128), (512, 128, 4), (512, 256, 128)),
    whole=True,
)
"""Loads of the short measurement. Bursts of short answers show the API server, the others steps."""
SHORT_ANSWER = 16
"""Length in tokens of answers that are too short to show steps of decodes."""
UNKNOWN_BAR = 0.25
"""Relative error within which a time is taken for the simulated one if the simulated one has no error bar."""
METRICS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Times:
    """Mean times of a load in ms."""

    ttft: float
    tpot: float
    e2el: float
    last: float
    """Time from the first request to the last first token."""


@dataclass(frozen=True)
class Load:
    """Measured load, and the same load simulated."""

    run: Measured
    measured: Times
    simulated: Times
    bars: Mapping[str, tuple[float, float]]
    """Ends in ms of the error bars of the simulated means."""
    host: str
    """Name of the host terms that were used."""

    def side(self, metric: str) -> int:
        """Return 1 if a measured time is above its error bar, -1 if it is below, or 0 if it is within it."""
        low, high = self.bars[metric]
        value = getattr(self.measured, metric)
        return int(value > high) - int(value < low)

    @property
    def judged(self) -> Sequence[str]:
        """Metrics of this load that say something about the host. Answers that come in one piece have no TPOT."""
        return METRICS if self.run.point.output >= SHORT_ANSWER and self.measured.tpot > 0 else ("ttft", "e2el")


def cells_of(measurement: Measurement, labels: Mapping[str, Any], date: str) -> list[Cell]:
    """Return the cells that `servesim accuracy` would read from the measurement's table."""
    return cells_in(table(measurement, labels, date), Path(CELLS))


def check(points: Sequence[Point], facts: Facts, labels: Mapping[str, Any]) -> None:
    """Raise UserError if the loads cannot be simulated: to be known before they are measured."""
    runs = [Measured(p, 1, [Answer(0, 1, 2, p.prompt, p.output, p.output, p.output)] * p.requests) for p in points]
    nominal = Measurement(runs, facts)
    beside(nominal, cells_of(nominal, labels, ""))


def beside(measurement: Measurement, cells: Sequence[Cell], host: Path | None = None) -> list[Load]:
    """Return every load with its simulation, with the host terms of a file or the default ones. Raise UserError if a
    load cannot be simulated."""
    return [_load(run, cell, host) for run, cell in zip(measurement.runs, cells, strict=True)]


def _load(run: Measured, cell: Cell, host: Path | None) -> Load:
    settings = recipe(cell, {} if host is None else {"host": str(host)}).settings
    result = simulate(settings)
    table, latency = result.requests, result.summary["latency_ms"]
    if lost := settings["requests"] - int((table.last_token_ns > 0).sum()):
        raise UserError(f"{cell.id}: {lost} of {settings['requests']} simulated requests were rejected")
    ours = {metric: float((latency[metric] or {}).get("mean") or 0.0) for metric in METRICS}
    simulated = Times(**ours, last=float(table.first_token_ns.max() - table.arrival_ns.min()) / 1e6)
    last = max(a.first_ns for a in run.answers) - run.answers[0].sent_ns
    measured = Times(*means(run.answers), fmean(a.last_ns - a.sent_ns for a in run.answers) / 1e6, last / 1e6)
    found = intervals(result.summary, own=True)
    bars = {
        metric: (found[metric]["low"], found[metric]["high"])
        if found[metric]
        else (ours[metric] * (1 - UNKNOWN_BAR), ours[metric] * (1 + UNKNOWN_BAR))
        for metric in METRICS
    }
    return Load(run, measured, simulated, bars, str(result.summary["scenario"]["host"]))


def _short_bursts(loads: Sequence[Load]) -> list[Load]:
    return [load for load in loads if load.run.point.kind == "burst" and load.run.point.output < SHORT_ANSWER]


def per_request_ms(loads: Sequence[Load]) -> tuple[float, float] | None:
    """Return measured and simulated ms per request of a burst: the growth of the time to the last first token from the
    smallest to the largest burst of short answers. None if there are fewer than two such bursts."""
    bursts = _short_bursts(loads)
    if len(bursts) < 2:
        return None
    small, large = bursts[0], bursts[-1]
    more = large.run.point.clients - small.run.point.clients
    return (large.measured.last - small.measured.last) / more, (large.simulated.last - small.simulated.last) / more


def kind_of_host(loads: Sequence[Load]) -> str:
    """Return in words whether the server is like those that the default host terms were fitted to, within the error
    bars, and if not, where it is slower or faster."""
    short = min((load.run.point.prompt for load in loads if load.run.point.kind == "idle"), default=0)
    shown = [(where, load.side(metric)) for load in loads for where, metric in _shown(load, short)]
    sides = grouped([*shown, ("at the API server", _api_side(loads))])
    words = {(1,): "slower", (-1,): "faster", (-1, 1): "both slower and faster"}
    found = [
        f"{words[tuple(off)]} {where}" for where, ours in sides.items() if (off := [s for s in (-1, 1) if s in ours])
    ]
    if found:
        return f"not like the hosts servesim was fitted to: {', '.join(found)}"
    within = [load.side(metric) == 0 for load in loads for metric in load.judged]
    if all(within):
        return "like the hosts servesim was fitted to: all times are within the error bars"
    return f"near the hosts servesim was fitted to: {sum(within)} of {len(within)} times are within the error bars"


def _shown(load: Load, short: int) -> list[tuple[str, str]]:
    """Return what a load shows of a host, and the metric that shows it."""
    point = load.run.point
    if point.kind == "idle":
        prompt = "with one short request" if point.prompt == short else "with one long prompt"
        return [(prompt, "ttft"), *([("in steps of one request", "tpot")] if "tpot" in load.judged else [])]
    return [("in steps of many", "tpot")] if "tpot" in load.judged else []


def _api_side(loads: Sequence[Load]) -> int:
    """Return 1 if requests of a burst take longer than simulated, beyond the error bar of the smallest burst's TTFT, -1
    if they take less time, or else 0. Bars of large bursts are too wide to tell."""
    per_request = per_request_ms(loads)
    if per_request is None:
        return 0
    small = _short_bursts(loads)[0]
    low, high = (end / small.simulated.ttft for end in small.bars["ttft"])
    measured, simulated = per_request
    return int(measured > high * simulated) - int(measured < low * simulated)
