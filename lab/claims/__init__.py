"""Claims of papers and lectures, rerun: the claim, the simulator's figure for the same setting, and a verdict.

An experiment is a function from its assumptions (`scenarios/NAME.yaml`) to an Outcome, registered with
`@experiment(...)` in a module of this package:

    @experiment("kv-cache", group="memory", claim="...", source="...")
    def kv_cache(given: Given) -> Outcome: ...
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from servesim.errors import UserError, suggest
from servesim.metrics.words import amount
from servesim.reports.figures.kinds import Bars, Curve, Figure, Lines, Spans
from servesim.reports.figures.kinds import to_dict as figure_to_dict

from .assumptions import Given, load
from .outcome import GROUPS, VERDICTS, Outcome, Row, said

__all__ = [
    "GROUPS",
    "VERDICTS",
    "Bars",
    "Curve",
    "Experiment",
    "Figure",
    "Given",
    "Lines",
    "Outcome",
    "Row",
    "Spans",
    "amount",
    "experiment",
    "experiments",
    "find",
    "said",
]


@dataclass(frozen=True)
class Experiment:
    """Claim, or several claims of one source, that can be rerun."""

    name: str
    group: str
    """Group, one of GROUPS."""
    claim: str
    source: str
    run: Callable[[Given], Outcome]

    def given(self, folder: Path | None = None, **changes: Any) -> Given:
        """Return the experiment's assumptions, with those in `folder` taking precedence over the shipped ones, and with
        some changed."""
        return {**load(self.name, folder)[0], **changes}

    def document(self, folder: Path | None = None) -> dict[str, Any]:
        """Run the experiment; return its claim, source, scenario, rows, notes and figures, for JSON."""
        given, text = load(self.name, folder)
        outcome = self.run(given)
        return {
            "name": self.name,
            "group": self.group,
            "claim": self.claim,
            "source": self.source,
            "scenario": text,
            "rows": [{**asdict(row), "group": row.group or self.group} for row in outcome.rows],
            "notes": outcome.notes,
            "figures": [figure_to_dict(figure) for figure in outcome.figures],
        }


_EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    name: str, *, group: str, claim: str, source: str
) -> Callable[[Callable[[Given], Outcome]], Callable[[Given], Outcome]]:
    """Register a function as an experiment."""
    if group not in GROUPS:
        raise ValueError(f"experiment {name}: group {group!r} is none of {', '.join(GROUPS)}")

    def enter(run: Callable[[Given], Outcome]) -> Callable[[Given], Outcome]:
        _EXPERIMENTS[name] = Experiment(name, group, claim, source, run)
        return run

    return enter


def experiments() -> dict[str, Experiment]:
    """Return all experiments by name, in the order of their groups."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    order = list(GROUPS)
    return dict(sorted(_EXPERIMENTS.items(), key=lambda item: (order.index(item[1].group), item[0])))


def find(name: str) -> list[Experiment]:
    """Return the experiment with that name, or all of them."""
    known = experiments()
    if name == "all":
        return list(known.values())
    if name not in known:
        raise UserError(f"unknown experiment {name!r}{suggest(name, [*known, 'all'])}")
    return [known[name]]
