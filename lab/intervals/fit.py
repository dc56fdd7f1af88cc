"""Fit of the error statistics to the cells of a score, and their performance on left-out data.

Every fold refits the location and scale of the residuals by group (`regression`), and the quantiles. It does not refit
kernel tables, host terms and recipes, whose own fits may have used a cell; for such cells the interval is too narrow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from servesim import __version__
from servesim.errors import UserError
from servesim.experiments.accuracy.files import CELLS
from servesim.intervals.case import METRICS
from servesim.intervals.distance import KINDS, LABELS, Kind, label
from servesim.intervals.fitted import LEVEL, PARTS, SCHEMA, SHARES
from servesim_lab.intervals.conformal import Floats, leave_out, quantile
from servesim_lab.intervals.folds import FEWEST, Bools, Fold, folds
from servesim_lab.intervals.pairs import fit_pairs
from servesim_lab.intervals.regression import Design
from servesim_lab.intervals.residuals import Measured, deployment_weights, read_measured

_ANY = {"all": 0.5, "engine": 2.0, "ttft": 2.0, "engine ttft": 3.0, "load": 4.0, "engine load": 4.0}
_PRODUCT = {"gpu": 4.0, "tp": 4.0, "version": 3.0, "prompt": 4.0, "model": 4.0, "engine model": 3.0, "product": 1.5}
_SERVER = {"product load": 2.0, "deployment": 0.7, "deployment load": 2.0}
_WIDTH = {"all": 0.1, "crowd": 0.1}
"""Scale penalties at every distance. Above 128 clients, errors spread several times as widely (whether a client waits
then depends on a few KV blocks), which terms shrunk like the others did not show."""
_SPREAD_ANY = {"engine": 3.0, "ttft": 3.0, "load": 5.0, "engine ttft": 4.0}
_SPREAD_PRODUCT = {"product": 3.0, "model": 4.0, "deployment": 2.0}
_SPREAD_SERVER = {"beyond": 3.0, "deployment load": 3.0, "product load": 3.0}


def _times(penalties: Mapping[str, float], by: float) -> dict[str, float]:
    return {name: value * by for name, value in penalties.items()}


_FAR = _times(_ANY, 2), {**_WIDTH, **_times(_SPREAD_ANY, 4)}
PENALTIES: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "server": (
        _times(_ANY | _PRODUCT | _SERVER, 0.5),
        {**_WIDTH, **_SPREAD_ANY, **_SPREAD_PRODUCT, **_SPREAD_SERVER},
    ),
    "deployment": (_times(_ANY | _PRODUCT, 0.5), {**_WIDTH, **_SPREAD_ANY, **_SPREAD_PRODUCT}),
    "version": (_times(_ANY | _PRODUCT, 2), {**_WIDTH, **_times(_SPREAD_ANY | _SPREAD_PRODUCT, 4)}),
    **dict.fromkeys(("model", "gpu", "model and version"), _FAR),
}
"""Penalties by kind of distance, for the terms of the location and of the scale, in deployments. They were chosen from
about ten sets per kind by the Winkler score on left-out cells of 54 deployments on H100 and H200 (22 November 2026)."""
FEWEST_DEPLOYMENTS = 9
"""Deployments that an end which leaves out a tenth takes."""
_INNER = next(kind for kind in KINDS if kind.name == "version")


@dataclass(frozen=True)
class Data:
    """Cells as arrays of length n."""

    cells: tuple[Measured, ...]
    weights: Floats
    """Weights (n), which sum to 1 for every deployment."""

    @classmethod
    def of(cls, cells: Sequence[Measured]) -> Data:
        """Build the data of cells with weights."""
        return cls(tuple(cells), deployment_weights(cells))

    def residuals(self, metric: str) -> Floats:
        """Return log(measured / simulated) (n)."""
        return np.array([cell.residuals[metric] for cell in self.cells])

    def designs(self, kind: Kind) -> tuple[Design, Design]:
        """Return the designs of location and scale."""
        cases = [cell.case for cell in self.cells]
        location, scale = PENALTIES[kind.name]
        return Design.of(cases, location), Design.of(cases, scale)

    def folds(self, kind: Kind, used: Bools | None = None) -> list[Fold]:
        """Return the folds of the cells used (n; None means all)."""
        return folds([cell.case for cell in self.cells], kind, [cell.lengths for cell in self.cells], used)

    def deployments(self, used: Bools) -> list[str]:
        """Return the deployments of the cells in use."""
        return [cell.case.deployment for cell, one in zip(self.cells, used, strict=True) if one]


def inner_folds(data: Data, kind: Kind, used: Bools) -> list[Fold]:
    """Return the folds of a kind among the cells used (n). If fewer than `FEWEST` values of its label are left, return
    the folds by version, the next kind with enough values."""
    found = data.folds(kind, used)
    return found if len(found) >= FEWEST else data.folds(_INNER, used)


def statistics(data: Data) -> dict[str, Any]:
    """Return what bars take: the labels that are known, and terms and quantiles by kind of distance."""
    return {
        "known": {
            name: sorted({label(cell.case, name) for cell in data.cells if name != "version" or cell.version_known})
            for name in LABELS
        },
        "kinds": {kind.name: _of_kind(data, kind) for kind in fitting(data)},
    }


def fit(paths: Sequence[Path], date: str) -> dict[str, Any]:
    """Return the document of `servesim/intervals/fitted.json` from score files."""
    data = Data.of(read_measured(paths))
    return {
        "schema": SCHEMA,
        "date": date,
        "servesim": __version__,
        "fitted_on": {
            "files": files_of(paths),
            "cells": len(data.cells),
            "deployments": len({cell.case.deployment for cell in data.cells}),
            "refitted_in_folds": "location and scale of residuals by group, and quantiles",
            "not_refitted": "kernel tables, host terms, recipes",
        },
        "terms": [f"{part} {metric}" for part in PARTS for metric in METRICS],
        "shares": list(SHARES),
        **statistics(data),
        "pairs": fit_pairs(data.cells),
    }


def fitting(data: Data) -> list[Kind]:
    """Return the kinds of distance that the cells can represent: some cells remain whichever fold is left out."""
    return [kind for kind in KINDS if not any(fold.barred.all() for fold in data.folds(kind))]


def _of_kind(data: Data, kind: Kind) -> dict[str, Any]:
    """Return the terms of each feature (of `PARTS` by metric, 0 if it has none) and the quantiles by metric."""
    designs, cut = data.designs(kind), data.folds(kind)
    deployments = data.deployments(np.ones(len(data.cells), dtype=bool))
    terms: dict[str, list[float]] = {}
    quantiles = {}
    for column, metric in enumerate(METRICS):
        left = leave_out(*designs, data.residuals(metric), data.weights, cut)
        quantiles[metric] = _quantiles(left.scores, deployments, not kind.unknown)
        for part, (design, values) in enumerate(zip(designs, (left.location, left.scale), strict=True)):
            for name, value in zip(design.names, values, strict=True):
                row = terms.setdefault(name, [0.0] * (len(PARTS) * len(METRICS)))
                row[part * len(METRICS) + column] = round(float(value), 3)
    return {"terms": {name: row for name, row in sorted(terms.items()) if any(row)}, "quantiles": quantiles}


def _quantiles(scores: Floats, deployments: Sequence[str], known: bool) -> list[float]:
    """Return the quantiles at SHARES, each clamped to the outermost share with enough deployments. Raise UserError if
    there are too few deployments for an interval."""
    found = [quantile(scores, deployments, share, known) for share in SHARES]
    enough = [i for i, value in enumerate(found) if not np.isnan(value)]
    if not enough or SHARES[enough[0]] > (1 - LEVEL) / 2 + 1e-9:
        raise UserError(f"intervals: {len(set(deployments))} deployments are too few: {FEWEST_DEPLOYMENTS} are needed")
    return [round(found[min(max(i, enough[0]), enough[-1])], 3) for i in range(len(found))]


def files_of(paths: Sequence[Path]) -> list[dict[str, str]]:
    """Return names and hashes of score files."""
    return [{"name": path.name, "sha256": _digest(path)} for path in paths]


def _digest(path: Path) -> str:
    return hashlib.sha256((path / CELLS if path.is_dir() else path).read_bytes()).hexdigest()
