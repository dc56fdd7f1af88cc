"""Simulations of measured cells, replayed in as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np

from servesim.cost.host import host_terms
from servesim.errors import PolicyError, UserError
from servesim.experiments.accuracy.apart import mean_of_turns
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.recipes import recipe
from servesim.experiments.recording import RecordedRun
from servesim.experiments.recording_replay import replay
from servesim.run.simulate import simulate


@dataclass(frozen=True)
class Answer:
    """Simulated means in ms, and the shares of GPU time that were priced by formula and by extrapolation beyond the
    measured range. All are None if there is no answer; `reason` then explains why."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    extrapolated: float | None = None
    formula: float | None = None
    output_rate: float | None = None
    """Output tokens/s of the server."""
    reason: str = ""


NAMES = ("ttft_ns", "tpot_ns")

OnAnswer = Callable[[int, int, Cell], None]
"""Callback invoked after each answer, with the number of answered cells, the total number and the cell."""


def answer(cell: Cell, changes: Mapping[str, Any] | None = None) -> Answer:
    """Replay one cell, with `changes` to its settings. If it cannot be priced, return the cause as the answer's
    reason."""
    try:
        return _of_run(cell.run) if cell.run is not None else _of_cell(cell, changes)
    except (UserError, PolicyError) as error:
        return Answer(reason=" ".join(str(error).split()))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # the cell fails, not the score
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
    return Answer(ttft, tpot, shares["extrapolated"], shares["roofline"], rate)


def _of_run(run: RecordedRun) -> Answer:
    if run.unpriced:
        raise UserError(run.unpriced)
    outcome = replay(run, host_terms(run.server.engine, run.server.gpu or ""))
    if outcome.refused:
        raise UserError(f"{outcome.refused} of {len(run)} requests were refused")
    shares = outcome.cost_shares
    ttft, tpot = float(outcome.ttft_ms.mean()), float(np.nanmean(outcome.tpot_ms))
    return Answer(ttft, tpot, shares["extrapolated"], shares["roofline"])


def answers(
    cells: Sequence[Cell],
    jobs: int,
    on_answer: OnAnswer = lambda done, total, cell: None,
    changes: Mapping[str, Any] | None = None,
) -> list[Answer]:
    """Replay all cells in `jobs` processes, with `changes` to their settings, and return their answers in the order of
    the cells."""
    found: list[Answer | None] = [None] * len(cells)
    if min(jobs, len(cells)) <= 1:
        for i, cell in enumerate(cells):
            found[i] = answer(cell, changes)
            on_answer(i + 1, len(cells), cell)
    else:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            places = {pool.submit(answer, cell, changes): i for i, cell in enumerate(cells)}
            try:
                for done, future in enumerate(as_completed(places), 1):
                    found[places[future]] = future.result()
                    on_answer(done, len(cells), cells[places[future]])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [one for one in found if one is not None]
