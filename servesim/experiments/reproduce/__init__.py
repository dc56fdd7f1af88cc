"""Published results, run again: what a paper measured, what the simulator makes of the same setting, and a verdict.

An experiment is a function that returns an Outcome, entered with `@experiment(...)` in a module of this package.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servesim.errors import UserError, suggest


@dataclass(frozen=True)
class Row:
    """One published figure beside the simulated one."""

    what: str
    published: str
    simulated: str
    verdict: str
    """"matches", "differs", "calibrated" (a term was set by it) or "shown" (nothing to hold it against)."""
    note: str = ""
    """Where it differs: the cause."""


@dataclass
class Outcome:
    """What an experiment found."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Assumptions, and constants set by the experiment."""
    figures: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    """File name -> function that draws it there."""

    def near(self, what: str, published: float, simulated: float, within: float) -> None:
        """A row that matches if the figures are within a relative distance."""
        verdict = "matches" if abs(simulated / published - 1) <= within else "differs"
        self.rows.append(Row(what, f"{published:g}", f"{simulated:.4g}", verdict))


@dataclass(frozen=True)
class Experiment:
    """A published claim that can be run again."""

    name: str
    claim: str
    source: str
    run: Callable[[], Outcome]


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(name: str, *, claim: str, source: str) -> Callable[[Callable[[], Outcome]], Callable[[], Outcome]]:
    """Enter a function as an experiment."""

    def enter(run: Callable[[], Outcome]) -> Callable[[], Outcome]:
        EXPERIMENTS[name] = Experiment(name, claim, source, run)
        return run

    return enter


def experiments() -> dict[str, Experiment]:
    """All experiments by name."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    return dict(sorted(EXPERIMENTS.items()))


def find(name: str) -> list[Experiment]:
    """The experiment of that name, or all of them."""
    known = experiments()
    if name == "all":
        return list(known.values())
    if name not in known:
        raise UserError(f"unknown experiment {name!r}{suggest(name, [*known, 'all'])}")
    return [known[name]]


def to_dict(found: Experiment, outcome: Outcome) -> dict[str, Any]:
    """For JSON."""
    rows = [vars(row) for row in outcome.rows]
    return {"name": found.name, "claim": found.claim, "source": found.source, "rows": rows, "notes": outcome.notes}
