"""Warnings of the runs of an experiment: what a single run would have said belongs to the answer too."""

from __future__ import annotations

from collections.abc import Mapping

from servesim.contracts.warn import Warn
from servesim.experiments.named import grouped, several
from servesim.experiments.runner import Runner
from servesim.experiments.store import Cell
from servesim.run.notes import TOO_SHORT


def run_warnings(runner: Runner, firsts: Mapping[str, Cell | None], lengths: bool = False) -> list[Warn]:
    """Return the warnings of the first run of each variant (None: it failed), each once, with the names of its variants
    unless all have it. `lengths`: also which runs are too short to tell whether the queue is stable, which other
    experiments say themselves."""
    cells = {label: cell for label, cell in firsts.items() if cell is not None and cell.address not in runner.errors}
    said = [(text, label) for label, cell in cells.items() for text in runner.load(cell).summary["warnings"]]
    short = f"{TOO_SHORT}; use more --requests or a longer trace"
    alike = [(short if text.startswith(TOO_SHORT) else text, label) for text, label in said]
    return [
        Warn(text if len(labels) == len(cells) else f"{several(labels, ', ')}: {text}")
        for text, labels in grouped(alike).items()
        if lengths or text != short
    ]
