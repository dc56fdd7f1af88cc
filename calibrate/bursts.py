"""Fit of host terms to mean times of loads: one client, and bursts of requests at once.

Each term is fitted to the times that show it, by replaying those loads: TTFT of one client shows delays, TTFT of a
burst of short prompts the work of an API process per request, TPOT of one client the time of every step, and TPOT of a
burst the time per request in a step. A slower GPU adds time to steps, too: the fit cannot tell it from a slower host.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml

from servesim.cost.host import HostTerms
from servesim.errors import UserError
from servesim.experiments.accuracy.answers import Answer, answer
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.recipes import recipe

FEW_CLIENTS = 8
"""Maximum number of clients at which a server counts as idle."""
SHORT_PROMPT, SHORT_ANSWER = 512, 16
"""Maximum lengths in tokens of prompts that show the host, and of answers whose TPOT shows no steps of decodes."""
ROUNDS = 2
"""Number of times that all terms are fitted, since each changes what is left for the others."""
CLOSE = 0.003
"""Mean error at which a term is fitted."""
MOST_TRIALS = 12
"""Maximum number of replays of the loads to bracket a term, and again to find it."""


@dataclass(frozen=True)
class _Term:
    """Term, and the times that it is fitted to."""

    name: str
    time: str
    """Field of a cell and of an answer."""
    step: float
    """Smallest value in ns that is tried if the term is 0."""
    shows: Callable[[Cell], bool]


def is_burst(cell: Cell) -> bool:
    """Return whether all requests of a cell were sent at once, with short prompts: long ones show the GPU alone."""
    return FEW_CLIENTS < cell.requests <= cell.concurrency and cell.isl <= SHORT_PROMPT


TERMS = (
    _Term("front_per_request", "ttft_ms", 1e6, is_burst),
    _Term("front_in", "ttft_ms", 1e6, lambda cell: cell.concurrency <= FEW_CLIENTS and cell.isl <= SHORT_PROMPT),
    _Term("exposed", "tpot_ms", 1e5, lambda cell: cell.concurrency <= FEW_CLIENTS and cell.osl >= SHORT_ANSWER),
    _Term("exposed_per_sampled", "tpot_ms", 1e4, lambda cell: is_burst(cell) and cell.osl >= SHORT_ANSWER),
)
"""Terms in the order in which they are fitted. Bursts with short answers, if there are any, show the first alone."""


def fit_bursts(cells: Sequence[Cell], base: HostTerms) -> HostTerms:
    """Return `base` with `TERMS` fitted to the mean times of the cells, which must be of one server. A term that no
    cell shows keeps its value. Raise UserError if a cell cannot be replayed."""
    terms = base
    shown = {term.name: loads for term in TERMS if (loads := _shown(term, cells))}
    if not shown:
        raise UserError(
            f"nothing to fit host terms to: neither up to {FEW_CLIENTS} clients nor a burst of short prompts"
        )
    with tempfile.TemporaryDirectory(prefix="servesim-host-") as folder:
        path = Path(folder) / "host.yaml"

        def error(term: _Term, value: float) -> float:
            """Return the mean logarithm of simulated over measured times with this value of a term."""
            write(path, _with(terms, term.name, value))
            times = [getattr(replayed(cell, path), term.time) for cell in shown[term.name]]
            measured = [getattr(cell, term.time) for cell in shown[term.name]]
            return float(fmean(np.log(np.array(times) / np.array(measured))))

        for _ in range(ROUNDS):
            for term in TERMS:
                if term.name in shown:
                    value = _root(partial(error, term), getattr(terms, term.name), term.step)
                    terms = _with(terms, term.name, float(round(value)))
    fitted = {name: f"fitted to {', '.join(cell.id for cell in loads)}" for name, loads in shown.items()}
    names = {field.name for field in fields(HostTerms)}
    kept = {name: told for name, told in base.provenance.items() if name in names and name not in fitted}
    settings = recipe(cells[0], {}).settings
    server = {"model": settings["model"], "gpu": settings["gpu"]}
    engine = f"{settings['preset']} {cells[0].version}".strip()
    return replace(terms, engine=engine, provenance={**server, **kept, "others": f"those of {base.name}", **fitted})


def _with(terms: HostTerms, name: str, value: float) -> HostTerms:
    changed: dict[str, Any] = {name: value}
    return replace(terms, **changed)


def write(path: Path, terms: HostTerms) -> str:
    """Write host terms to a YAML file and return its text."""
    text = yaml.safe_dump(terms.to_dict(), sort_keys=False)
    path.write_text(text, encoding="utf-8")
    return text


def replayed(cell: Cell, host: Path | None = None) -> Answer:
    """Return the simulated times of a cell with the host terms of a file. Raise UserError if there are none."""
    found = answer(cell, {} if host is None else {"host": str(host)})
    if found.reason:
        raise UserError(f"{cell.id}: {found.reason}")
    return found


def _shown(term: _Term, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that show a term."""
    found = [cell for cell in cells if term.shows(cell) and getattr(cell, term.time) > 0]
    short = [cell for cell in found if cell.osl < SHORT_ANSWER]
    return short or found


def _root(error: Callable[[float], float], start: float, step: float) -> float:
    """Return the value of at least 0 at which a growing error is 0, or 0 if the error is positive there (false position
    with halved weights, the Illinois method)."""
    low, high = 0.0, max(2 * start, step)
    below, above = error(low), error(high)
    if below >= -CLOSE:
        return low
    for _ in range(MOST_TRIALS):
        if above >= 0:
            break
        low, below, high = high, above, 2 * high
        above = error(high)
    if above < 0:
        raise UserError(f"no host terms explain the times: {high / 1e6:,.0f} ms are too few")
    for _ in range(MOST_TRIALS):
        middle = (low * above - high * below) / (above - below)
        found = error(middle)
        if abs(found) < CLOSE:
            return middle
        if found < 0:
            low, below, above = middle, found, above / 2
        else:
            high, above, below = middle, found, below / 2
    return middle
