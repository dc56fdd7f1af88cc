"""Warnings of the runs of an experiment: what a single run would have said belongs to the answer too."""

from __future__ import annotations

from collections.abc import Mapping

from servesim.contracts.warn import Warn
from servesim.experiments.named import several
from servesim.experiments.runner import Runner
from servesim.experiments.store import Cell
from servesim.run.notes import TOO_SHORT


def run_warnings(runner: Runner, firsts: Mapping[str, Cell | None], lengths: bool = False) -> list[Warn]:
    """Return the warnings of the first run of each variant (None: it failed), each once, with the names of its variants
    unless all have it. `lengths`: also which runs are too short to tell whether the queue is stable, which other
    experiments say themselves."""
    found: dict[str, list[str]] = {}
    cells = {label: cell for label, cell in firsts.items() if cell is not None and cell.address not in runner.errors}
    for label, cell in cells.items():
        for warning in runner.load(cell).summary["warnings"]:
            if not warning.startswith(TOO_SHORT):
                found.setdefault(warning, []).append(label)
            elif lengths:
                found.setdefault(f"{TOO_SHORT}; use more --requests or a longer trace", []).append(label)
    return [
        Warn(text if len(labels) == len(cells) else f"{several(labels, ', ')}: {text}")
        for text, labels in found.items()
    ]
