"""Figures of a run under other versions of its engine, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from servesim.contracts.figures import Figure, Group, Rows, Summary
from servesim.metrics.request_figures import LATENCY_LABELS
from servesim.metrics.slo import SLO_METRICS
from servesim.metrics.words import number
from servesim.schemas import COUNT, NUMBER, TEXT, a_list, an_object

LIKE = 0.02
"""Relative difference of all latencies up to which two versions count as equal."""


def eras(found: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    """Return (version specifier, ratios) of each period of versions that differ by at most LIKE, oldest first."""
    rows: Sequence[Mapping[str, Any]] = found["since"]
    starts = [0, *(i for i in range(1, len(rows)) if not _like(rows[i - 1], rows[i]))]
    befores = [f",<{rows[start]['version']}" for start in starts[1:]]
    return [
        (f">={rows[start]['version']}{before}", rows[start])
        for start, before in zip(starts, [*befores, ""], strict=True)
    ]


def _like(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(abs(other[key] / one[key] - 1) <= LIKE for key in SLO_METRICS)


def spread(found: Mapping[str, Any], key: str) -> float:
    """Return the highest latency over the lowest, among all known versions."""
    ratios = [row[key] for row in found["since"]]
    return max(ratios) / min(ratios)


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


def _rows(summary: Summary) -> Rows:
    found = summary["engine_versions"]
    ends = {key: [end(row[key] for row in found["since"]) for end in (min, max)] for key in SLO_METRICS}
    ranges = [f"{LATENCY_LABELS[key]} {_percent(low)} to {_percent(high)}" for key, (low, high) in ends.items()]
    said = f"{found['engine']} {found['assumed']} is assumed; under other versions {', '.join(ranges)}"
    return [("engine version", said)]


def details(found: Mapping[str, Any]) -> str:
    """Return the latencies under each period of versions, in words."""
    periods = [
        f"{versions}: " + ", ".join(f"{LATENCY_LABELS[key]} {_percent(ratios[key])}" for key in SLO_METRICS)
        for versions, ratios in eras(found)
    ]
    return f"{found['engine']} versions, relative to the assumed {found['assumed']}: {'; '.join(periods)}"


def warning(found: Mapping[str, Any], means: Mapping[str, float]) -> str:
    """Return the spread over known versions in words, given the simulated means in ms."""
    key = max(("tpot", "ttft"), key=lambda one: spread(found, one))
    low, high = (find(eras(found), key=lambda era: era[1][key]) for find in (min, max))
    engine = found["engine"]
    ends = [f"{number(means[key] * ratios[key])} ms for {engine}{versions}" for versions, ratios in (low, high)]
    return (
        f"engine.version is not set, so {engine} {found['assumed']} is assumed. Mean {LATENCY_LABELS[key]} is "
        f"{' and '.join(ends)}. Set engine.version to your version."
    )


ENGINE_VERSIONS = Group(
    "engine_versions",
    "engine versions",
    (
        Figure("engine", "name of the engine", itemgetter("engine"), schema=TEXT),
        Figure("assumed", "version that the run assumes: the newest one known", itemgetter("assumed"), schema=TEXT),
        Figure("requests", "number of requests in each of the short runs", itemgetter("requests"), schema=COUNT),
        Figure("since",
               "known versions, oldest first, at which something changes: `version`, and `ttft`, `tpot` and `e2el`, "
               "each the mean over that of the assumed version in a run of the same requests",
               itemgetter("since"),
               schema=a_list(an_object(version=TEXT, ttft=NUMBER, tpot=NUMBER, e2el=NUMBER))),
    ),
    doc="Latencies under other known versions, for a run that sets no `engine.version` (`--versions`).",
    rows=_rows,
    after=("error bars", "goodput", "throughput"),
)  # fmt: skip
