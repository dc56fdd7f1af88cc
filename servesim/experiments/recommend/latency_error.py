"""Error of the model in a question for the least latency, from further runs with all server times stretched.

Measured servers tell the error of mean latencies, not that of a p99. So the p99 is that of a server all of whose times
are as much longer, or shorter, as such means were measured to be (servesim.run.stretched): propagated, not validated.
The first deployment is compared with the others by the spread of measured pairs, as prices are
(servesim.experiments.capacity_error).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servesim.experiments.capacity_error import SOUGHT, UNKNOWN, CapacityError, decided
from servesim.experiments.capacity_scaled import at_load
from servesim.experiments.capacity_study import Study, load_text
from servesim.experiments.compare_error import spreads_of
from servesim.experiments.metrics import METRICS, metric_label
from servesim.experiments.outcome import growing
from servesim.intervals.fitted import LEVEL
from servesim.intervals.pairs import WORDS
from servesim.metrics.request_figures import LATENCY_LABELS
from servesim.metrics.words import number
from servesim.run.stretched import SAYS, Stretch, latency_of

Row = Mapping[str, Any]
UNSTABLE = "its queue grows without bound"


class LatencyError:
    """Intervals of the latencies of rows, the fastest first."""

    def __init__(self, study: Study, rows: Sequence[Row], metric: str) -> None:
        self._study, self._rows, self._metric = study, rows[:SOUGHT], metric
        self._error = CapacityError(study, [], 0, True)
        self._variants = {v.label: v for v in study.variants}
        self._runs = 0

    def add(self) -> dict[str, Any]:
        """Set `model_error` in the latency of each row. Return `model_error` of the document, with whether the first
        row stays the fastest."""
        for row in self._rows:
            row["latency"]["model_error"] = {"level": LEVEL, **self._bars(row)}
        decisions = [self._decision(row) for row in self._rows[1:]]
        return {"level": LEVEL, "says": SAYS, "runs": self._runs, "decisions": decisions}

    def _bars(self, row: Row) -> dict[str, Any]:
        both = self._error.stretches_of(row)
        if isinstance(both, str):
            return {"low": None, "high": None, "says": both}
        ms, (fast, slow) = row["latency"]["ms"], self._stretched(row, both)
        return {"low": fast and min(fast, ms), "high": slow and max(slow, ms), "says": SAYS}

    def _stretched(self, row: Row, stretches: Sequence[Stretch]) -> list[float | None]:
        """Return the latency of a row in ms with each of these stretches, None if its queue grows or a run fails."""
        v, n = self._variants[row["label"]], row["replicas"]
        size = at_load(v.settings, "replicas", n)
        asked = [
            (v, {**size, "rate": row["rate"] * by.times}, f"{load_text('replicas', n)}, {by.words}") for by in stretches
        ]
        found = list[float | None]()
        for by, runs in zip(stretches, self._study.further(asked), strict=True):
            outcomes = [self._study.measuring.outcome(run) for run in runs or ()]
            self._runs += len(outcomes)
            if not outcomes or growing(outcomes):
                found.append(None)
                continue
            ms = float(np.mean([one.values[self._metric] for one in outcomes]))
            found.append(by.value(self._metric, METRICS[self._metric].becomes, ms))
        return found

    def _decision(self, row: Row) -> dict[str, Any]:
        """Return whether the first row stays faster than another one even if it is slower by the spread of measured
        pairs."""
        first, sides, two = self._rows[0], self._error.sides, row["label"]
        what, says = spreads_of(sides[first["label"]], sides[two]), first["latency"]["model_error"]["says"]
        if isinstance(what, str) or says != SAYS:
            return decided(first, row, what if isinstance(what, str) else says.removeprefix("none: "))
        slow = Stretch({key: spread.factor for key, spread in what.items()})
        (ms,), other, name = self._stretched(first, [slow]), row["latency"]["ms"], metric_label(self._metric)
        of = what[latency_of(self._metric)]
        more = f"{LATENCY_LABELS[latency_of(self._metric)]} is {100 * (of.factor - 1):.0f} % longer than simulated"
        if_so = f"its {more} relative to the other, as in one of ten measured pairs of {WORDS[of.kind]}"
        then = UNSTABLE if ms is None else f"{name} is {number(ms)} ms then, not {number(other)}"
        holds = ms is not None and ms <= other
        said = f"stays faster than {two} even if {if_so}: {then}"
        if not holds:
            said = f"may be slower than {two}: if {if_so}, {then}"
        return decided(first, row, of, holds, said)


def sure_words(rows: Sequence[Row]) -> list[str]:
    """Return how sure the latencies of rows are, beside their intervals over seeds."""
    known = [row for row in rows if "model_error" in row["latency"]]
    if not known:
        return ["The model's error is left out (--no-intervals): intervals of latencies, if any, are over seeds alone."]
    said = []
    for row in known:
        name, bars = row["label"] or "this", row["latency"]["model_error"]
        what = f"{name}: {metric_label(row['latency']['metric'])}"
        if bars["says"] != SAYS:
            said.append(f"{what}{UNKNOWN}{bars['says'].removeprefix('none: ')}")
            continue
        ends = ("unstable" if bars[end] is None else f"{number(bars[end])} ms" for end in ("low", "high"))
        how = f"{100 * bars['level']:.0f} % interval from the model's error, {SAYS}"
        said.append(f"{what} is {' to '.join(ends)} ({how})")
    return [*said, "Errors were measured of mean latencies, none of a p99: its interval is derived from theirs."]
