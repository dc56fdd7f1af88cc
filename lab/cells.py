"""Fit of an engine's host terms to measured serving cells: mean TTFT and TPOT of a closed loop, without step logs.

    python -m servesim_lab.cells CELLS.csv trtllm --source /trtllm/ --version 1.0.0rc3 --out terms.yaml

Cells are read and replayed as in `servesim accuracy` (its recipes define the labels), with the terms being fitted.
Deployments are split into two halves: terms are fitted to cells of one half and evaluated on the whole other half, and
the figures of both go into the provenance. Chip terms come from `--base`.

`TERMS` are fitted one after the other, in two passes, by multiplying each by several factors. The value with the lowest
misfit is kept: the mean |log ratio| of TPOT plus WEIGHT times the mean |log ratio| of TTFT. A cell that is off by more
than WORST has another cause (memory, a client that was not ready) and counts as off by WORST.
"""

from __future__ import annotations

import sys
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from servesim.cost.host import HostTerms
from servesim.errors import UserError
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.reading import read
from servesim.experiments.accuracy.recipes import recipe

GPUS = ("h100_sxm", "h200_sxm")
TERMS = {
    "eager_per_mixture": 1.2e6,
    "front_in": 3e7,
    "eager_per_layer": 0.7e6,
    "exposed": 0.4e6,
    "exposed_per_sampled": 1.5e4,
    "front_per_request": 4e6,
}
"""Fitted terms, and the starting values of the search in ns."""
_FACTORS = ((0.0, 0.5, 1.6), (0.75, 1.3))
WEIGHT = 0.6
WORST = 3.0
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}


def read_cells(path: Path, engine: str, source: str = "") -> list[Cell]:
    """Read the aggregated cells of an engine on GPUS whose source contains `source` and that can be replayed; raise
    UserError if there are none."""
    cells = [
        cell
        for cell in read([path])
        if (cell.engine, cell.mode) == (engine, "agg") and source in cell.source and cell.gpu in GPUS
    ]
    found = [cell for cell in cells if _has_recipe(cell)]
    if not found:
        raise UserError(f"{path}: no aggregated cell of {engine} on {' or '.join(GPUS)} that can be replayed")
    return found


def _has_recipe(cell: Cell) -> bool:
    try:
        recipe(cell)
    except UserError:
        return False
    return True


def halves(cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Split cells into two halves, assigning whole deployments alternately in order."""
    order = {deployment: i for i, deployment in enumerate(sorted({cell.deployment for cell in cells}, key=str))}
    first, second = ([cell for cell in cells if order[cell.deployment] % 2 == half] for half in (0, 1))
    return first, second


def spread(cells: Sequence[Cell], most: int) -> list[Cell]:
    """Return at most `most` of the cells, spread evenly over their deployments, lengths and clients."""
    ranked = sorted(cells, key=lambda cell: (str(cell.deployment), cell.isl, cell.osl, cell.concurrency))
    count = min(most, len(ranked))
    return [ranked[i * len(ranked) // count] for i in range(count)]


def simulated(cell: Cell, terms: HostTerms, folder: Path) -> tuple[float, float]:
    """Return the mean TTFT and TPOT in ms of a cell replayed with `terms`, whose file is written to `folder`."""
    import yaml

    import servesim

    path = folder / "terms.yaml"
    path.write_text(yaml.safe_dump(terms.to_dict()))
    table = servesim.simulate(**{**recipe(cell).settings, "host": str(path)}).requests
    table = table[table.first_token_ns > 0]
    return float(table.ttft_ns.mean()) / 1e6, float(table.tpot_ns.mean()) / 1e6


def errors(cells: Sequence[Cell], terms: HostTerms, folder: Path) -> dict[str, float]:
    """Return the mean absolute errors in percent, and `misfit`."""
    pairs = [(cell, *simulated(cell, terms, folder)) for cell in cells]
    off = [(ttft / cell.ttft_ms, tpot / cell.tpot_ms) for cell, ttft, tpot in pairs]
    return {
        "tpot_percent": round(100 * fmean(abs(tpot - 1) for _, tpot in off), 1),
        "ttft_percent": round(100 * fmean(abs(ttft - 1) for ttft, _ in off), 1),
        "misfit": round(fmean(WEIGHT * _size(ttft) + _size(tpot) for ttft, tpot in off), 4),
        "cells": len(off),
    }


def _size(ratio: float) -> float:
    return min(abs(log(ratio)), log(WORST))


def fit_cells(cells: Sequence[Cell], base: HostTerms, folder: Path) -> HostTerms:
    """Return `base` with TERMS fitted to `cells`."""
    begin: dict[str, Any] = dict(TERMS)
    best = replace(base, **begin)
    least = errors(cells, best, folder)["misfit"]
    for factors in _FACTORS:
        for name in TERMS:
            now = getattr(best, name)
            for value in {round(now * factor, 1): None for factor in factors if now}:
                changed: dict[str, Any] = {name: value}
                terms = replace(best, **changed)
                misfit = errors(cells, terms, folder)["misfit"]
                if misfit < least:
                    best, least = terms, misfit
        told = ", ".join(f"{name} {getattr(best, name) / 1e3:g} us" for name in TERMS)
        print(f"{100 * (exp(least / (1 + WEIGHT)) - 1):.1f} % with {told}", file=sys.stderr)
    return best


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the terms of an engine and write them as YAML."""
    import tempfile

    import yaml

    warnings.simplefilter("ignore")
    parse = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parse.add_argument("cells", type=Path)
    parse.add_argument("engine", choices=sorted(_ENGINES))
    parse.add_argument("--source", default="", help="only cells whose data source contains this")
    parse.add_argument("--version", default="", help="of the engine, for the terms' name")
    parse.add_argument("--base", default="vllm-0.23-h100", help="the terms whose chip the engine shares")
    parse.add_argument("--most", type=int, default=26, help="cells fitted to; those judged on are all of their half")
    parse.add_argument("--out", type=Path, required=True)
    given = parse.parse_args(arguments)
    try:
        fitted_on, judged_on = halves(read_cells(given.cells, given.engine, given.source))
        fitted_on = spread(fitted_on, given.most)
        old = HostTerms.load(given.base)
        own: dict[str, Any] = {"front_in_per_token": 0.0, "front_in_per_token_by_model": {}, "front_per_chunk": 0.0}
        base = replace(old, engine=f"{_ENGINES[given.engine]} {given.version}".strip(), **own)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            terms = fit_cells(fitted_on, base, folder)
            provenance = {
                part: {
                    "deployments": sorted({" ".join(map(str, cell.deployment)) for cell in of}),
                    "before": errors(of, old, folder),
                    "after": errors(of, terms, folder),
                }
                for part, of in (("fitted_on", fitted_on), ("judged_on", judged_on))
                if of
            }
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    terms = replace(terms, provenance={"source": f"serving cells, {given.source or 'all'}", **provenance})
    given.out.write_text(yaml.safe_dump(terms.to_dict(), sort_keys=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
