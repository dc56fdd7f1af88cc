"""Simulations of measured cells, which are replayed in as many processes as there are cores."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from servesim.cost.host import host_terms
from servesim.errors import PolicyError, UserError
from servesim.experiments.accuracy.apart import mean_of_turns
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.recipes import recipe
from servesim.experiments.recording import RecordedRun
from servesim.experiments.recording_replay import replay
from servesim.experiments.store import Store, address_of, address_with
from servesim.run.error_bars import case_of
from servesim.run.result_files import SUMMARY
from servesim.run.simulate import simulate


@dataclass(frozen=True)
class Answer:
    """Simulated means in ms, and the shares of GPU time that were priced by extrapolation beyond the measured range and
    by formula. All are None if there is no answer; `reason` then explains why."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    extrapolated: float | None = None
    formula: float | None = None
    output_rate: float | None = None
    """Output tokens/s of the server."""
    e2e_ms: float | None = None
    reason: str = ""
    case: dict[str, Any] | None = None
    """Fields of the run's case (`servesim.run.error_bars.case_of`), or None for a recording."""


NAMES = ("ttft_ns", "tpot_ns")
_PACKAGE = "servesim.experiments"
"""Package whose code answers depend on, besides the simulator's."""

OnAnswer = Callable[[int, int, Cell, "Answer"], None]
"""Callback invoked for each cell, in cell order, with its number, the total number of cells, the cell and the
answer."""


def answer(cell: Cell, changes: Mapping[str, Any] | None = None) -> Answer:
    """Replay one cell, with `changes` to its settings. If it cannot be priced, return the cause as the answer's
    reason."""
    try:
        return _of_run(cell.run) if cell.run is not None else _of_cell(cell, changes)
    except (UserError, PolicyError) as error:
        return Answer(reason=str(error))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # only the cell fails, not the whole score
        return Answer(reason=" ".join(f"{type(error).__name__}: {error}".split()))


def _of_cell(cell: Cell, changes: Mapping[str, Any] | None) -> Answer:
    found = recipe(cell, changes)
    settings = found.settings
    result = simulate(settings)
    table, shares = result.requests, result.summary["cost_shares"]
    lost = settings["requests"] - int((table.last_token_ns > 0).sum())
    if lost:
        raise UserError(f"{lost} of {settings['requests']} requests were refused")
    if found.waves:
        table = table.sort_values("row")
        ttft, tpot = (mean_of_turns(table[name].to_numpy(), found.waves, cell.concurrency) / 1e6 for name in NAMES)
    else:
        ttft, tpot = (float(table[name].mean()) / 1e6 for name in NAMES)
    rate = result.summary["throughput"]["output_throughput"]
    e2e = float(table["e2el_ns"].mean()) / 1e6
    case = case_of(result.summary)
    labels = asdict(case) if case is not None else None
    return Answer(ttft, tpot, shares["extrapolated"], shares["roofline"], rate, e2e_ms=e2e, case=labels)


def _of_run(run: RecordedRun) -> Answer:
    if run.unpriced:
        raise UserError(run.unpriced)
    outcome = replay(run, host_terms(run.server.engine, run.server.gpu or ""))
    if outcome.refused:
        raise UserError(f"{outcome.refused} of {len(run)} requests were refused")
    shares = outcome.cost_shares
    ttft, tpot = float(outcome.ttft_ms.mean()), float(np.nanmean(outcome.tpot_ms))
    return Answer(ttft, tpot, shares["extrapolated"], shares["roofline"])


def address(cell: Cell, changes: Mapping[str, Any] | None) -> str | None:
    """Return the address of a cell's answer in a store, or None if it is clear at once that the cell cannot be
    simulated."""
    if cell.run is not None:
        content = hashlib.sha256(pickle.dumps(cell.run)).hexdigest()
        return address_with({"recorded run": content}, _PACKAGE)
    try:
        found = recipe(cell, changes)
        inputs = {"settings": address_of(found.settings), "waves": found.waves, "clients": cell.concurrency}
    except (UserError, ArithmeticError, LookupError, TypeError, ValueError):  # as in `answer`, which gives the reason
        return None
    return address_with(inputs, _PACKAGE)


def answers(
    cells: Sequence[Cell], jobs: int, on_answer: OnAnswer, changes: Mapping[str, Any] | None, store: Store | None
) -> list[Answer]:
    """Replay all cells in `jobs` processes, with `changes` to their settings, and return their answers in the order of
    the cells. Answers in the store are not computed again, and new ones are added to it."""
    found: dict[int, Answer] = {}
    places = [None if store is None else address(cell, changes) for cell in cells]
    shown = 0

    def add(i: int, one: Answer) -> None:
        nonlocal shown
        found[i] = one
        if store is not None and (place := places[i]) is not None and place not in store:
            with suppress(ValueError):  # JSON has no NaN
                store.put(place, {SUMMARY: json.dumps(asdict(one), allow_nan=False).encode()})
        while shown in found:
            shown += 1
            on_answer(shown, len(cells), cells[shown - 1], found[shown - 1])

    for i, place in enumerate(places):
        if store is not None and place is not None and (known := store.document(place)) is not None:
            add(i, Answer(**known))
    missing = [i for i in range(len(cells)) if i not in found]
    if min(jobs, len(missing)) <= 1:
        for i in missing:
            add(i, answer(cells[i], changes))
    else:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            futures = {pool.submit(answer, cells[i], changes): i for i in missing}
            try:
                for future in as_completed(futures):
                    add(futures[future], future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [found[i] for i in range(len(cells))]
