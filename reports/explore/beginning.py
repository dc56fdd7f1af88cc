"""Starting point of an explorer (a scenario, a run or the best variant of a sweep) and the text its page shows about
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.experiments.axes import product
from servesim.plugins.trust import check_code
from servesim.reports.experiment import Experiment
from servesim.reports.explore.controls import Control, controls_of, words_of
from servesim.reports.words import name_of
from servesim.run.result_files import SCENARIO
from servesim.run.scenario import Scenario
from servesim.run.setting_names import load_settings
from servesim.run.setup import set_up

REQUESTS = 2000
"""Default number of requests if the scenario does not set it."""
SWEEP = "sweep.json"
ROUNDS = 6
"""Maximum number of passes over a scenario to find the settings that follow from others."""


@dataclass(frozen=True)
class Beginning:
    """Settings to explore from."""

    settings: dict[str, Any]
    words: list[str]
    """Command-line arguments for the same settings; if empty, the settings are written as options."""
    axes: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Variants of a sweep: name, and value by axis."""
    controls: tuple[Control, ...] = ()
    rate: float | None = None

    @classmethod
    def of(cls, source: Path | None, default: Mapping[str, Any]) -> Beginning:
        """Return the starting point in a file or directory, or the default; raise UserError if there is nothing to
        explore."""
        if source is None:
            return cls(dict(default), [])
        if not source.is_dir():
            return cls(load_settings(source), [str(source)])
        if (source / SWEEP).is_file():
            return _of_sweep(source)
        if not (source / SCENARIO).is_file():
            raise UserError(f"{source}: contains neither a run nor a sweep")
        return cls(shortest(load_settings(source / SCENARIO)), [])

    def over(self, settings: Mapping[str, Any]) -> Beginning:
        """Return the starting point with the command line's settings applied and checked, and with its controls."""
        found = dict(settings)
        if found.get("requests") is None:
            found["requests"] = REQUESTS
        if Scenario.of(found).stream:
            raise UserError("explore: a streamed run keeps no records to draw; remove stream")
        trace = set_up(Scenario.of(found)).trace
        span_s = float(trace.arrival_ns.max() - trace.arrival_ns.min()) / 1e9 if len(trace) > 1 else 0.0
        rate = (len(trace) - 1) / span_s if span_s else None
        found["requests"] = len(trace)
        values: dict[str, list[str]] = {}
        for _, axes in self.axes:
            for key, value in axes.items():
                values.setdefault(key, []).append(str(value))
        given = {key: value for key, value in found.items() if self.settings.get(key) != value}
        words = [*self.words, *words_of(given if self.words else found)]
        return replace(self, settings=found, words=words, rate=rate, controls=tuple(controls_of(found, rate, values)))

    @property
    def page(self) -> dict[str, Any]:
        """Text of the page: its title, the workload, and the variants of a sweep as states."""
        s = Scenario.of(self.settings)
        own = {control.key: control.value for control in self.controls}
        variants = [
            (label, {key: str(value) for key, value in axes.items() if key in own and str(value) != own[key]})
            for label, axes in self.axes
        ]
        subtitle = f"from {s.requests:,} requests of {s.trace}, {name_of(s.model)} on {s.gpu}"
        return {"title": "Explore", "subtitle": subtitle, "variants": variants}


def shortest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run's fully resolved scenario, without those that follow from others. If the GPU is then
    changed, memory, host terms and scheduler limits follow from the new GPU."""
    stored = Scenario.of(settings).model_dump(mode="json")
    found = {key: stored[key] for key in ("trace", "requests", "model", "gpu")}
    for _ in range(ROUNDS):
        resolved = set_up(Scenario.of(found)).scenario.model_dump(mode="json")
        if resolved == stored:
            return found
        for key, value in stored.items():
            if value != resolved[key]:
                found[key] = _differing(value, resolved[key], found.get(key))
    return dict(settings)


def _differing(value: Any, other: Any, found: Any) -> Any:
    """Return the parts of a value that differ from another value; for a policy, add its name."""
    if not isinstance(value, dict) or not isinstance(other, dict):
        return value
    if value.get("name") != other.get("name"):
        return {"name": value["name"]}
    parts = {key: inner for key, inner in value.items() if key not in other or inner != other[key]}
    return {**({"name": value["name"]} if "name" in value else {}), **(found or {}), **parts}


def _of_sweep(folder: Path) -> Beginning:
    experiment = Experiment.load(folder, "sweep")
    variants = [v for v in experiment.document["variants"] if v["status"] == "ok"]
    if not variants:
        raise UserError(f"{folder}: every variant of the sweep failed")
    best = next((v for v in variants if v["label"] == experiment.best), variants[0])
    axes = {key: [value] for key, value in best["axes"].items()}
    check_code([experiment.document["workload"], axes], str(folder / SWEEP))
    settings = product(experiment.document["workload"], axes)[0].settings
    return Beginning(settings, [], axes=tuple((v["label"], v["axes"]) for v in variants))
