"""Explorer's view of several runs: figures, a table, and the means to repeat the run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from servesim.reports.explore.controls import Control, State, changed, changes, command
from servesim.reports.figures.overlay import PANELS, overlay
from servesim.reports.figures.together import together
from servesim.reports.ink import SERIES
from servesim.reports.page import Table, rendered
from servesim.reports.run import Run
from servesim.reports.run_page import alerts, tiles
from servesim.reports.words import count, number, percent, time_ms
from servesim.run.setup import Setup
from servesim.run.simulate import simulate

KEPT = 24
"""Maximum number of runs kept in memory; the most recently requested ones are kept."""
MOST = len(SERIES)
"""Maximum number of runs in one picture: one color each."""
DRAWING = Lock()  # matplotlib's settings are process-wide


class Overtaken(Exception):
    """Exception for a run whose result is no longer needed because a newer value has arrived."""


@dataclass(frozen=True)
class Explored:
    """Run of the explorer."""

    run: Run
    yaml: str
    command: str
    notes: Sequence[str]


class Explorer:
    """Runs of one scenario with changes, with the latest ones cached."""

    def __init__(self, settings: Mapping[str, Any], controls: Sequence[Control], words: Sequence[str]) -> None:
        """Build an explorer. `words` is the scenario as command-line arguments."""
        self.controls = controls
        self._settings, self._words = dict(settings), words
        self._runs: OrderedDict[tuple[tuple[str, str], ...], Explored] = OrderedDict()
        self._lock = Lock()

    def picture(self, states: Sequence[State], overtaken: Callable[[], bool], narrow: bool = False) -> str:
        """Return the HTML of several overlaid runs, the page's own run first. `overtaken` is called periodically. Raise
        UserError for a value that no run can have, and Overtaken if a newer value has arrived."""
        found = [self._explored(state, overtaken) for state in states[:MOST]]
        if overtaken():
            raise Overtaken
        labels = self._labels(states[:MOST])
        with DRAWING:
            return _html(dict(zip(labels, found, strict=True)), narrow)

    def _explored(self, state: State, overtaken: Callable[[], bool]) -> Explored:
        found = changes(self.controls, state)
        key = tuple(sorted((name, str(value)) for name, value in found.items()))
        with self._lock:
            if key in self._runs:
                self._runs.move_to_end(key)
                return self._runs[key]

        def ask(now_ns: int, left: int) -> None:
            if overtaken():
                raise Overtaken

        def begin(setup: Setup) -> Callable[[int, int], None]:
            ask(0, 0)
            return ask

        ask(0, 0)
        settings = changed(self._settings, found)
        result = simulate(settings, on_ready=begin, conclude=False)
        notes = result.summary["notes"]
        explored = Explored(Run(result), result.scenario.to_yaml(), command(self._words, found, settings), notes)
        with self._lock:
            self._runs[key] = explored
            while len(self._runs) > KEPT:
                self._runs.popitem(last=False)
        return explored

    def _labels(self, states: Sequence[State]) -> list[str]:
        """Return a name for each run: the values of the controls that differ between runs."""
        values = [{c.key: state.get(c.key, c.value) for c in self.controls} for state in states]
        differ = [c for c in self.controls if len({own[c.key] for own in values}) > 1]
        if not differ:
            return ["this run"]
        return [", ".join(_said(c, own[c.key]) for c in differ) for own in values]


def _said(control: Control, value: str) -> str:
    if control.choices and control.key != "tp":
        return value if value != "none" else f"no {control.words.lower()}"
    return f"{control.words} {value or 'unset'} {control.unit}".strip()


def _html(explored: Mapping[str, Explored], narrow: bool) -> str:
    runs = {label: one.run for label, one in explored.items()}
    palette = dict(zip(runs, SERIES, strict=False))
    first = next(iter(explored.values()))
    slo = first.run.scenario.slo
    caption = "All completed requests." + (" Dashed lines show the limits of the run on this page." if slo else "")
    values = {
        label: {key: _latencies(run, f"{key}_ns") for key, _ in PANELS} for label, run in runs.items() if run.done.any()
    }
    figures = [overlay(values, palette, slo, caption, narrow), together(runs, palette, narrow)]
    return rendered(
        "picture",
        tiles=tiles(first.run),
        alerts=alerts(first.run),
        figures=[drawing for drawing in figures if drawing is not None],
        table=_table(runs) if len(runs) > 1 else None,
        command=first.command,
        scenario_yaml=first.yaml,
        notes=first.notes,
    )


def _latencies(run: Run, column: str) -> Any:
    values = run.finished(column)
    return np.sort(values[np.isfinite(values)]) / 1e6


def _table(runs: Mapping[str, Run]) -> Table:
    columns = ("run", "TTFT p99", "TPOT p99", "E2E p99", "within limits", "output tokens/s", "KV peak", "preemptions",
               "$ per M output tokens")  # fmt: skip
    return Table("Runs side by side", columns, [(label, *_cells(run.summary)) for label, run in runs.items()])


def _cells(s: Mapping[str, Any]) -> list[str]:
    latencies = [time_ms(stats["p99"]) if (stats := s["latency_ms"][key]) else "–" for key, _ in PANELS]
    return [
        *latencies,
        percent(s["goodput"]["slo_attainment"]) if s["goodput"] else "–",
        number(s["throughput"]["output_throughput"]),
        percent(s["kv"]["peak_share"]),
        count(s["engine"]["preemptions"]),
        number(s["price"]["usd_per_million_output_tokens"]),
    ]
