"""The part of a run that repeats its beginning under other versions of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts.part import Finished, Part
from servesim.contracts.warn import Warn
from servesim.cost.host import fitted_versions
from servesim.errors import UserError
from servesim.features.engine_versions.figures import ENGINE_VERSIONS, details, spread, warning
from servesim.metrics.slo import SLO_METRICS
from servesim.run.presets import VERSIONED
from servesim.versions import EngineFacts, turning_points
from servesim.versions.table import parse_version

FEW = 100
"""Requests of a short run, or `PER_CLIENT` for each client of a closed loop if that is more."""
PER_CLIENT = 3
APART = 1.05
"""Ratio of the highest to the lowest mean TTFT or TPOT from which a warning asks for the version."""


def others(assumed: EngineFacts, preset: str | None) -> list[str]:
    """Return the known versions, oldest first, other than the assumed one; none for a system without versions."""
    if preset not in (None, assumed.engine):
        return []
    known = {*turning_points(assumed.engine), *fitted_versions(assumed.engine)} - {assumed.version}
    return sorted(known, key=parse_version)


class EngineVersions(Part):
    """Mean latencies under each of the `known` versions, relative to the `assumed` one. `asked`: the scenario; `count`:
    requests in its trace."""

    def __init__(self, asked: Any, count: int, assumed: EngineFacts, known: list[str]) -> None:
        self._asked, self._assumed, self._known = asked, assumed, known
        clients = asked.clients.max_concurrency or 0
        self._count = min(count, max(FEW, PER_CLIENT * clients))

    def figures(self, finished: Finished) -> dict[str, Any]:
        base = self._means(finished, None)
        if base is None:
            return {}
        rows = []
        for version in self._known:
            means = self._means(finished, version)
            if means is not None:
                rows.append({"version": version, **{key: means[key] / base[key] for key in SLO_METRICS}})
        rows.append({"version": self._assumed.version, **dict.fromkeys(SLO_METRICS, 1.0)})
        engine, assumed = self._assumed.engine, self._assumed.version
        found = {"engine": engine, "assumed": assumed, "requests": self._count, "since": rows}
        return {"engine_versions": ENGINE_VERSIONS.of(found)} if len(rows) > 1 else {}

    def notes(self, summary: Mapping[str, Any]) -> list[str]:
        found = summary.get("engine_versions")
        if found is None or max(spread(found, key) for key in ("ttft", "tpot")) < APART:
            return []
        means = {key: summary["latency_ms"][key]["mean"] for key in SLO_METRICS}
        return [Warn(warning(found, means)), details(found)]

    def _means(self, finished: Finished, version: str | None) -> Mapping[str, float] | None:
        """Return the mean latencies of the first requests under a version, or None if it cannot run them or no request
        has two tokens."""
        engine = self._asked.engine.model_dump()
        if version is not None:  # what the newest version implied is left to this one
            implied = {key for key in VERSIONED if engine[key] == self._assumed.get(key)}
            engine = {key: value for key, value in engine.items() if key not in implied} | {"version": version}
        try:
            times = finished.again({"engine": engine, "requests": self._count}).summary["latency_ms"]
        except UserError:
            return None
        means = {key: (times[key] or {}).get("mean") for key in SLO_METRICS}
        return means if all(means.values()) else None
