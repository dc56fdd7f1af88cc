"""Checks of a feature in whole runs: settings, help, figures and rows; on versus off, fast versus reference mode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from servesim.checking.findings import Finding
from servesim.checking.subject import Subject
from servesim.contracts.feature import installed
from servesim.contracts.part import Part
from servesim.errors import PolicyError, UserError, suggest
from servesim.run.result import Result
from servesim.run.scenario import Scenario
from servesim.run.shown import all_rows
from servesim.run.simulate import simulate

RUN = {"model": "llama-3.1-8b", "gpu": "h200", "trace": "synth:rate=60,prompt=uniform(50,900),output=uniform(2,60)",
       "requests": 60}  # fmt: skip
REFUSED = ("samples", "stream", "jobs", "speculation", "pp", "pools")
"""Settings that a feature may refuse in addition to other features."""
RECORDS = ("scenario", "provenance", "warnings", "notes")


def whole_run_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is wrong with a feature, its settings, and whole runs that have it."""
    yield from _settings(subject)
    try:
        yield from _runs(subject)
    except PolicyError as error:
        yield Finding("contract", f"{error}")
    except UserError as error:
        yield Finding("settings", f"{subject.name}: no run can use it: {error}")


def _settings(subject: Subject) -> Iterator[Finding]:
    feature = subject.cls()
    for key, field in zip(feature.keys(), feature.Settings.model_fields.values(), strict=True):
        if not field.description:
            yield Finding(
                "settings", f"{subject.name}: {key} has no docstring, which is needed as the help text of its option"
            )
    for name in ("rows", "schema"):
        if hasattr(feature, name):
            yield Finding("settings", f"{subject.name}: {name} is never called: declare its figures in groups")
    known = {*REFUSED, *(each.name for each in installed())}
    try:
        refused = feature.refuses(subject.scenario())
    except (PolicyError, UserError) as error:
        yield Finding("contract", f"{error}")
        return
    for what in sorted(refused.keys() - known):
        told = f"refuses() names an unknown feature or setting: {what!r}{suggest(what, known)}"
        yield Finding("settings", f"{subject.name}: {told}")


def _runs(subject: Subject) -> Iterator[Finding]:
    feature, here = subject.cls(), {**RUN, **subject.settings}
    (without, absent), (fast, present) = _run(RUN), _run(here)
    off = present == absent
    again = Scenario.of(yaml.safe_load(fast.scenario.to_yaml()))
    if again != fast.scenario:
        yield Finding("settings", f"{subject.name}: settings change when written and read back")
    if (off or not feature.acts) and (told := _unlike(fast, without)):
        yield Finding("contract", f"{subject.name} {'is off and ' * off}changes a run: {told}{_ACTS * (not off)}")
    added = fast.summary.keys() - without.summary.keys()
    groups = feature.groups()
    for section in sorted(added - {group.section for group in groups}):
        yield Finding(
            "settings", f"{subject.name}: no group of its figures declares section {section!r} of the summary"
        )
    for group in groups:
        found = group.within(fast.summary)
        if isinstance(found, dict) and not group.many:
            for name in sorted(found.keys() - {figure.name for figure in group.figures}):
                yield Finding("settings", f"{subject.name}: figure {group.section}.{name} is not declared")
    for label, text in all_rows(fast.summary):
        for name in re.findall(r"{[\w.]+}", text):
            yield Finding("settings", f"{subject.name}: row {label!r}: no figure {name} exists")
    plain = simulate(here, mode="reference")
    for section in sorted(added & plain.summary.keys()):
        if fast.summary[section] != plain.summary[section]:
            told = _first(fast.summary[section], plain.summary[section], section)
            yield Finding("fast", f"{subject.name}: {told}")


_ACTS = " (set acts = True if that is intended)"


def _run(settings: dict[str, Any]) -> tuple[Result, int]:
    """Return a run and its number of parts."""
    parts: list[Part] = []
    return simulate(settings, on_ready=lambda setup: parts.extend(setup.parts)), len(parts)


def _unlike(run: Result, plain: Result) -> str:
    """Return the difference from a run without the feature, or an empty string if there is none."""
    for name, column in plain.requests.items():
        if not run.requests[name].equals(column):
            return f"{name} of requests differs"
    if not run.steps.equals(plain.steps):
        return "its steps differ"
    ours, theirs = run.summary, plain.summary
    changed = [key for key in theirs if key not in RECORDS and ours.get(key) != theirs[key]]
    if changed:
        return f"{changed[0]} of the summary differs"
    scenario = {key: value for key, value in theirs["scenario"].items() if ours["scenario"].get(key) != value}
    return f"{next(iter(scenario))} of the scenario differs" if scenario else ""


def _first(ours: Any, theirs: Any, where: str) -> str:
    """Return a description of the first difference in a section."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        key = next(key for key in ours if ours[key] != theirs[key])
        return _first(ours[key], theirs[key], f"{where}.{key}")
    return f"{where} is {ours}, in reference mode {theirs}"
