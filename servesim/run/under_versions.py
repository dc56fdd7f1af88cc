"""Latencies of a run under the other known versions of its engine, for a run that names none and so gets the newest.

The beginning of the run is repeated under each version at which something known changes: defaults, kernels, or the host
terms that were fitted to it. What the scenario leaves open is left to each version. A version that agrees with one
already run on everything that this run asked for is not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.cost.host import HostTerms, fitted_versions, host_terms
from servesim.errors import PolicyError, UserError
from servesim.hardware.memory import accounting
from servesim.metrics.request_figures import LATENCY_LABELS
from servesim.metrics.slo import SLO_METRICS
from servesim.metrics.words import number
from servesim.run.presets import facts_of
from servesim.run.result import Result
from servesim.run.scenario import Scenario
from servesim.run.simulate import simulate
from servesim.versions import EngineFacts, noting, turning_points
from servesim.versions.table import parse_version

FEW = 100
"""Requests of a short run, or `PER_CLIENT` for each client of a closed loop if that is more."""
PER_CLIENT = 3
LEAST, PART = 20, 4
"""Fewest requests of a short run, unless there are more clients, and the reciprocal of its largest part of a run."""
LIKE = 0.02
"""Relative difference of all mean latencies up to which two versions count as equal."""
APART = 1.05
"""Ratio of the highest to the lowest mean TTFT or TPOT from which the version matters."""


@dataclass(frozen=True)
class Versions:
    """Mean latencies of a run's first requests under each known version of its engine."""

    engine: str
    assumed: str
    """The newest version known, which a run without a version assumes."""
    requests: int
    """Number of these requests."""
    since: tuple[tuple[str, Mapping[str, float]], ...]
    """Versions at which something changes, oldest first, and mean latencies in ms; the last one is the assumed one."""

    @property
    def periods(self) -> list[tuple[str, Mapping[str, float]]]:
        """Version specifiers and means of the first version of each period, oldest first. A period lasts while
        latencies differ by at most LIKE from those of its first version."""
        rows, starts = self.since, [0]
        for i in range(1, len(rows)):
            if not _like(rows[starts[-1]][1], rows[i][1]):
                starts.append(i)
        befores = [f",<{rows[start][0]}" for start in starts[1:]]
        return [
            (f">={rows[start][0]}{before}", rows[start][1])
            for start, before in zip(starts, [*befores, ""], strict=True)
        ]

    def spread(self, key: str) -> float:
        """Return the highest latency over the lowest."""
        means = [one[key] for _, one in self.periods]
        return max(means) / min(means)

    @property
    def matters(self) -> bool:
        """Whether TPOT or TTFT differ by APART or more."""
        return max(self.spread(key) for key in ("tpot", "ttft")) >= APART

    @property
    def warning(self) -> str:
        """Lowest and highest TPOT in words, newest version first, or TTFT if TPOT hardly differs."""
        key = "tpot" if self.spread("tpot") >= APART else "ttft"
        ends = [find(self.periods, key=lambda one: one[1][key]) for find in (min, max)]
        told = [
            f"{number(means[key])} ms for {self.engine}{name}"
            for name, means in sorted(ends, key=self.periods.index, reverse=True)
        ]
        return (
            f"engine.version is not set, so {self.engine} {self.assumed} is assumed. Mean {LATENCY_LABELS[key]} in a "
            f"run of the first {self.requests} requests is {' and '.join(told)}; near saturation versions differ more. "
            "Set engine.version to your version."
        )

    @property
    def details(self) -> str:
        """Latencies under each period of versions, in words."""
        base = self.since[-1][1]
        periods = [
            f"{name}: "
            + ", ".join(f"{LATENCY_LABELS[key]} {100 * (means[key] / base[key] - 1):+.0f} %" for key in SLO_METRICS)
            for name, means in self.periods
        ]
        return (
            f"a run of the first {self.requests} requests under {self.engine} versions, relative to {self.assumed}: "
            f"{'; '.join(periods)}"
        )


def _like(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return all(abs(other[key] / one[key] - 1) <= LIKE for key in SLO_METRICS)


def under_versions(settings: Mapping[str, Any], count: int) -> Versions | None:
    """Return the latencies of a scenario's first requests under each known version. `count`: requests of the whole run.
    None: it names a version, its pools have engines of their own, or its system has no other versions."""
    asked = Scenario.of(settings)
    own = any(pool["engine"]["version"] is not None or pool["preset"] != asked.preset for pool in asked.pools)
    if asked.engine.version is not None or own:
        return None
    assumed = facts_of(asked.preset, None, asked.gpu)
    clients = asked.clients.max_concurrency or 0
    enough = max(FEW, PER_CLIENT * clients)
    few = min(count, max(LEAST, clients, min(enough, count // PART)))
    known = _others(assumed, asked.preset)
    rows = []
    ran: list[_Ran] = []
    for version in (*known, assumed.version) if known else ():
        facts = facts_of(asked.preset, version, asked.gpu)
        done = next((one for one in ran if one.holds_for(facts)), None)
        if done is None:
            with noting() as names:
                means = _means(settings, few, version)
            ran.append(done := _Ran(facts, names, means))
        if done.means is not None:
            rows.append((version, done.means))
    complete = len(rows) > 1 and rows[-1][0] == assumed.version
    return Versions(assumed.engine, assumed.version, few, tuple(rows)) if complete else None


@dataclass(frozen=True)
class _Ran:
    """A short run under one version."""

    facts: EngineFacts
    names: set[str]
    """Facts that the run asked for."""
    means: Mapping[str, float] | None

    def holds_for(self, other: EngineFacts) -> bool:
        """Return whether a run under another version would be the same: besides facts, its memory accounting and host
        terms depend on the version."""
        ours, theirs = (
            ([facts.get(name) for name in sorted(self.names)], accounting(facts.release), _fitted(facts))
            for facts in (self.facts, other)
        )
        return ours == theirs


def _fitted(facts: EngineFacts) -> HostTerms | None:
    return host_terms(f"{facts.engine} {facts.version}", facts.gpu)


def means_of(result: Result) -> dict[str, float]:
    """Return the mean latencies of a run in ms; NaN for those that are undefined."""
    times = result.summary["latency_ms"]
    return {key: float((times[key] or {}).get("mean") or "nan") for key in SLO_METRICS}


def _others(assumed: EngineFacts, preset: str | None) -> Sequence[str]:
    """Return the known versions other than the assumed one, oldest first; none for a system without versions."""
    if preset not in (None, assumed.engine):
        return ()
    known = {*turning_points(assumed.engine), *fitted_versions(assumed.engine)} - {assumed.version}
    return sorted(known, key=parse_version)


def _means(settings: Mapping[str, Any], few: int, version: str) -> Mapping[str, float] | None:
    """Return mean latencies under a version, or None if it cannot run the scenario or some are undefined."""
    engine = {**(settings.get("engine") or {}), "version": version}
    try:
        changed = Scenario.of({**settings, "engine": engine, "requests": few, "stream": False})
        means = means_of(simulate(changed, conclude=False))
    except (UserError, PolicyError):
        return None
    return means if all(mean > 0 for mean in means.values()) else None
