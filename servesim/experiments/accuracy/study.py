"""Score of the simulator on measured cells: the cells are replayed, screened, grouped and written as a document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from servesim import __version__
from servesim.errors import UserError, suggest
from servesim.experiments.accuracy import decision_scores, decisions, scores
from servesim.experiments.accuracy.answers import Answer, OnAnswer, answers
from servesim.experiments.accuracy.cells import Cell, sample_file
from servesim.experiments.accuracy.reading import read
from servesim.experiments.accuracy.recipes import nominal, output_mean, recipes, version_of
from servesim.experiments.accuracy.screen import RULES, screen
from servesim.experiments.input_files import digest_of
from servesim.experiments.named import grouped
from servesim.experiments.store import Store

BANDS = {"C 1 to 8": 8, "C 9 to 32": 32, "C 33 to 128": 128, "C 129 and more": math.inf}
"""Ranges of the number of clients, with their upper bounds."""
BEYOND = {
    "none extrapolated": 0.0,
    "up to 5 % extrapolated": 0.05,
    "5 to 25 % extrapolated": 0.25,
    "over 25 % extrapolated": 1.0,
}
"""Ranges of the extrapolated share of GPU time, with their upper bounds."""
FIELDS = ("engine", "version", "gpu", "model", "precision", "mode", "tp", "concurrency")
"""Fields that `only` can filter by."""


@dataclass(frozen=True)
class Scored:
    """Cell with the rule that excludes it (if any) and the simulator's answer."""

    cell: Cell
    screened: str
    answer: Answer

    @property
    def measured(self) -> tuple[float, float, float]:
        """Measured TPOT, TTFT and E2E in ms."""
        return self._times(self.cell.tpot_ms, self.cell.ttft_ms, self.cell.e2e_ms)

    @property
    def simulated(self) -> tuple[float, float, float] | None:
        """Simulated TPOT, TTFT and E2E in ms, or None if there is no answer."""
        tpot, ttft = self.answer.tpot_ms, self.answer.ttft_ms
        return None if tpot is None or ttft is None else self._times(tpot, ttft, self.answer.e2e_ms)

    def _times(self, tpot: float, ttft: float, e2e: float | None) -> tuple[float, float, float]:
        """Return the three times. E2E is that of the mean answer, unless answers differ in length and theirs was
        measured."""
        if e2e is not None and self.cell.e2e_ms > 0 and self.cell.flags is not None and not nominal(self.cell):
            return tpot, ttft, e2e
        return tpot, ttft, ttft + (output_mean(self.cell) - 1) * tpot

    @property
    def ratios(self) -> tuple[float, float, float] | None:
        """Ratios of simulated to measured times, or None if there is no answer or a time was not measured."""
        simulated = self.simulated
        if simulated is None or min(*self.measured, *simulated) <= 0:
            return None
        tpot, ttft, e2e = (ours / theirs for ours, theirs in zip(simulated, self.measured, strict=True))
        return tpot, ttft, e2e


def accuracy(
    *files: str | Path,
    only: Mapping[str, Sequence[str]] | None = None,
    without: Sequence[str | Path] = (),
    limit: int | None = None,
    jobs: int = 1,
    seed: int = 0,
    date: str = "",
    on_answer: OnAnswer = lambda number, total, cell, answer: None,
    changes: Mapping[str, Any] | None = None,
    store: Store | None = None,
) -> tuple[list[Scored], dict[str, Any]]:
    """Replay the cells of tables and recorded runs and score them. If none are given, use those of the installed
    aiconfigurator-core.

    `only` maps fields to values that cells must match, either in full or as part of a model's name. `without` names
    tables whose cells (e.g. cells used for fitting), and copies of them, are not scored. `limit` is the maximum number
    of cells, chosen evenly spaced. `date` is the date shown with the score. `changes` are dotted settings that override
    those of every recipe. `store` keeps answers, and those already in it are not computed again. Returns the cells and
    the document of the score.
    """
    paths = [Path(file) for file in files] or [sample_file()]
    cells = read(paths)
    ruled = screen(cells)  # among all cells: a copy of an unselected cell is still a copy
    barred = read(without)
    ids, times = {cell.id for cell in barred}, {(cell.ttft_ms, cell.tpot_ms) for cell in barred}
    chosen = [
        (cell, rule)
        for cell, rule in zip(cells, ruled, strict=True)
        if cell.id not in ids and (cell.ttft_ms, cell.tpot_ms) not in times and _asked(cell, only or {})
    ]
    if limit is not None and limit < len(chosen):
        chosen = [chosen[i * len(chosen) // limit] for i in range(limit)]
    if not chosen:
        raise UserError(f"the filters match none of {len(cells)} cells")
    found = answers([cell for cell, _ in chosen], jobs, on_answer, changes, store)
    scored = [Scored(cell, rule, one) for (cell, rule), one in zip(chosen, found, strict=True)]
    told = document(scored, paths, seed, date, [Path(path) for path in without])
    return scored, told | ({"changes": dict(changes)} if changes else {})


def _asked(cell: Cell, only: Mapping[str, Sequence[str]]) -> bool:
    for name, values in only.items():
        if name not in FIELDS:
            raise UserError(f'cells have no field "{name}"{suggest(name, FIELDS)}')
        own = str(getattr(cell, name))
        if not any(value == own or (name in ("model", "gpu") and value.lower() in own.lower()) for value in values):
            return False
    return True


def document(
    scored: Sequence[Scored], paths: Sequence[Path], seed: int, date: str, without: Sequence[Path]
) -> dict[str, Any]:
    """Return the score as plain data. The same cells and answers give the same document."""
    kept = [one for one in scored if not one.screened]
    left = Counter(one.screened for one in scored if one.screened)
    options = [_option(one) for one in kept if one.ratios is not None]
    return {
        "date": date,
        "servesim": __version__,
        "seed": seed,
        "files": _files(paths),
        "without": _files(without),
        "cells": len(scored),
        "screen": [{"rule": rule, "says": says, "cells": left[rule]} for rule, says in RULES.items()],
        "kept": len(kept),
        "scores": [_row(seed, *group) for group in groups(kept)],
        "unscreened": _row(seed, "all", "all", scored),
        "not_answered": _reasons(kept),
        "noise": _noise(options),
        "decisions": decision_scores.decide(options, seed),
        "definitions": scores.DEFINITIONS | {f"decisions: {k}": v for k, v in decisions.DEFINITIONS.items()},
        "recipes": recipes(),
    }


def _files(paths: Sequence[Path]) -> list[dict[str, str | None]]:
    return [{"name": path.name, "sha256": digest_of(path) if path.is_file() else None} for path in paths]


def groups(scored: Sequence[Scored]) -> Iterator[tuple[str, str, list[Scored]]]:
    """Yield (dimension, label, cells) for all cells together, and for the parts of each dimension."""
    yield "all", "all", list(scored)
    cells: dict[str, Callable[[Scored], str]] = {
        "engine": lambda one: one.cell.engine,
        "engine and version": lambda one: f"{one.cell.engine} {_version(one.cell)}",
        "GPU": lambda one: one.cell.gpu,
        "model": lambda one: one.cell.model,
        "tensor parallelism": lambda one: f"TP {one.cell.tp}" if one.cell.mode == "agg" else "apart",
        "concurrency": lambda one: _band(BANDS, one.cell.concurrency),
        "share extrapolated": lambda one: _band(BEYOND, one.answer.extrapolated),
        "engine, GPU and model": lambda one: f"{one.cell.engine} {one.cell.gpu} {one.cell.model}",
    }
    orders = {"concurrency": BANDS, "share extrapolated": BEYOND}
    for dimension, label in cells.items():
        parts = grouped((label(one), one) for one in scored)
        for name in orders.get(dimension, sorted(parts)):
            if parts.get(name):
                yield dimension, name, parts[name]


def _version(cell: Cell) -> str:
    version, inferred = version_of(cell)
    return f"{version} (inferred from the date)" if inferred else cell.version or "(not stated)"


def _band(bands: Mapping[str, float], value: float | None) -> str:
    return "" if value is None else next(name for name, most in bands.items() if value <= most + 1e-12)


def _row(seed: int, dimension: str, label: str, scored: Sequence[Scored]) -> dict[str, Any]:
    known = [(one, ratios) for one in scored if (ratios := one.ratios) is not None]
    by_metric = {metric: np.array([ratios[i] for _, ratios in known]) for i, metric in enumerate(scores.METRICS)}
    servers = [one.cell.deployment for one, _ in known]
    return {
        "by": dimension,
        "what": label,
        "cells": len(scored),
        "answered": len(known),
        "deployments": len(set(servers)),
        **scores.estimates(by_metric, servers, seed, f"accuracy {dimension} {label}"),
    }


def _reasons(scored: Iterable[Scored]) -> list[dict[str, Any]]:
    counts = Counter(one.answer.reason or "a time was not measured" for one in scored if one.ratios is None)
    return [{"reason": reason, "cells": count} for reason, count in sorted(counts.items(), key=lambda c: (-c[1], c[0]))]


def _option(one: Scored) -> decisions.Option:
    simulated = one.simulated
    assert simulated is not None
    cell, inert = one.cell, recipes()["commands"]["inert"]
    rates = (cell.output_rate, one.answer.output_rate or 0.0) if cell.output_rate else None
    return decisions.Option(
        product=cell.product,
        lengths=(cell.isl, cell.osl) if cell.flags is None else (nominal(cell), 0),
        gpus=cell.gpus,
        concurrency=cell.concurrency,
        output_mean=output_mean(cell),
        measured=(cell.ttft_ms, cell.tpot_ms),
        simulated=(simulated[1], simulated[0]),
        server=(cell.tp, cell.pp, cell.dp, cell.moe_tp, cell.ep, cell.workers),
        rates=rates,
        flags=None if cell.flags is None else tuple(f for f in cell.flags if f[0] not in inert),
    )


def _noise(options: Sequence[decisions.Option]) -> dict[str, Any]:
    """Return the difference between repeats at one place and the range of error that it implies for a perfect model.
    The range is from half of the mean difference (one of the two is an outlier) to the mean difference divided by the
    square root of 2 (both have equal errors)."""
    found: dict[str, Any] = {}
    logs = decision_scores.repeats(options, lambda one: one.measured)
    for i, metric in enumerate(("ttft", "tpot")):
        size = np.expm1(np.abs(logs[:, i])) if len(logs) else np.zeros(0)
        mean = float(size.mean()) if len(size) else None
        found[metric] = {
            "repeats": len(size),
            "median": float(np.median(size)) if len(size) else None,
            "mean": mean,
            "mape_of_a_perfect_model": None if mean is None else [mean / 2, mean / math.sqrt(2)],
        }
    return found
