"""Fit of an engine's host terms to measured serving cells: mean TTFT and TPOT of a closed loop, without step logs.

    python -m servesim.calibrate.cells CELLS.csv tensorrt-llm --source 2026-0 --out tensorrt-llm-h200.yaml

A cells file has a row for each cell, with the columns of `COLUMNS`; concurrency is `silicon_concurrency=` in
`silicon_data_source`, else `batch_size`. The deployments (model, GPUs, precision, tensor and expert parallelism) are
dealt out to two halves: terms are fitted to one and judged on the other, and the figures of both go into the
provenance. Cells of clients that march in step (equal lengths) tell nothing of a host: leave them out by `--source`.

Three terms are fitted. The cells are simulated a few times over; what is left of TPOT is added to `exposed` and
`exposed_per_sampled` (a line over the concurrency), what is left of TTFT to `front_in` (its median). The terms with the
least mean error of both stay.
"""

from __future__ import annotations

import re
import sys
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from servesim.cost.host import HostTerms
from servesim.errors import UserError
from servesim.untrusted import csv_rows

COLUMNS = (
    *(
        "id",
        "backend",
        "backend_version",
        "model_path",
        "system",
        "mode",
        "isl",
        "osl",
        "gemm_quant_mode",
        "batch_size",
    ),
    *("tp_size", "moe_ep_size", "silicon_data_source", "silicon_ttft_ms", "silicon_tpot_ms"),
)
_BACKENDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
_MODELS = {
    "gpt-oss-120b": ("gpt-oss-120b", "bf16"),
    "Llama-3.1-70B": ("llama-3.1-70b", "fp8"),
    "Qwen3-32B": ("qwen3-32b", "bf16"),
    "Llama-3.1-8B-Instruct": ("llama-3.1-8b", "bf16"),
}
"""Bundled models by the names cells have, and the precision they are published in."""
_ROUNDS = 4
"""Times the cells are simulated."""
_WORST = 3.0
"""Cells that differ by more than this factor have another cause (memory, a client that was not ready): they correct
nothing, and count as this far off."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A measured cell."""

    deployment: tuple[str, str, str, int, int]
    """Model, GPU, precision, tensor parallelism, expert parallelism."""
    version: str
    prompt: int
    output: int
    concurrency: int
    ttft_ms: float
    tpot_ms: float


def read_cells(path: Path, engine: str, source: str = "", gpus: Sequence[str] = ("h100", "h200")) -> list[Cell]:
    """Read the aggregated cells of an engine whose data source contains `source`; UserError where there is none, or a
    column is missing. Cells of models that are not bundled are left out."""
    if engine not in _BACKENDS:
        raise UserError(f"cells: no engine {engine!r} (choose from: {', '.join(_BACKENDS)})")
    rows = csv_rows(path)
    header = next(rows)
    if missing := [name for name in COLUMNS if name not in header]:
        raise UserError(f"{path}: column {missing[0]!r} is missing")
    cells = []
    for number, row in enumerate(rows, 2):
        try:
            if (
                row["backend"] == _BACKENDS[engine]
                and row["mode"] == "agg"
                and source in row["silicon_data_source"]
                and row["model_path"].split("/")[-1] in _MODELS
            ):
                cells.append(_cell(row))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(f"{path}: row {number} is no cell: {error}") from error
    found = [cell for cell in cells if cell.deployment[1] in gpus]
    if not found:
        raise UserError(f"{path}: no aggregated cell of {engine} on {' or '.join(gpus)} with a bundled model")
    return found


def halves(cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Deal out cells to two halves by whole deployments, one after the other in their order."""
    order = {deployment: i for i, deployment in enumerate(sorted({cell.deployment for cell in cells}))}
    return tuple([cell for cell in cells if order[cell.deployment] % 2 == half] for half in (0, 1))  # type: ignore[return-value]


def simulated(cell: Cell, engine: str, terms: HostTerms, folder: Path) -> tuple[float, float]:
    """Return mean TTFT and TPOT in ms of a cell in a closed loop, lengths uniform in 0.8 to 1.0 of the nominal ones;
    `folder` is for the terms' file."""
    import yaml

    import servesim

    path = folder / "terms.yaml"
    path.write_text(yaml.safe_dump(terms.to_dict()))
    model, gpu, dtype, tp, ep = cell.deployment
    c, long = cell.concurrency, cell.concurrency >= 32 and cell.output > 2000
    lengths = [f"uniform({int(0.8 * n)},{n})" for n in (cell.prompt, cell.output)]
    engine_settings: dict[str, Any] = {"enable_expert_parallel": ep > 1}
    if re.fullmatch(r"\d[0-9a-z.]*", cell.version):
        engine_settings["version"] = cell.version
    settings: dict[str, Any] = {
        "trace": f"synth:prompt={lengths[0]},output={lengths[1]}",
        "requests": 4 * c if long else max(10 * c, 40),
        "rate": "inf",
        "clients": {"max_concurrency": c},
        "model": model,
        "gpu": gpu,
        "tp": tp,
        "dtype": dtype,
        "kv_dtype": "fp8" if model == "llama-3.1-70b" else "bf16",
        "preset": engine,
        "host": str(path),
        "engine": engine_settings,
    }
    result = servesim.simulate(**settings)
    table = result.requests
    table = table[table.first_token_ns > 0]
    return float(table.ttft_ns.mean()) / 1e6, float(table.tpot_ns.mean()) / 1e6


def errors(cells: Sequence[Cell], engine: str, terms: HostTerms, folder: Path) -> dict[str, float]:
    """Return mean absolute errors in per cent."""
    pairs = [(cell, *simulated(cell, engine, terms, folder)) for cell in cells]
    return {
        "tpot_percent": round(100 * fmean(abs(tpot / cell.tpot_ms - 1) for cell, _, tpot in pairs), 1),
        "ttft_percent": round(100 * fmean(abs(ttft / cell.ttft_ms - 1) for cell, ttft, _ in pairs), 1),
        "cells": len(cells),
    }


def fit_cells(cells: Sequence[Cell], engine: str, base: HostTerms, folder: Path) -> HostTerms:
    """Return `base` with the three terms fitted to `cells`."""
    found, terms = [], base
    for _ in range(_ROUNDS):
        pairs = [(cell, *simulated(cell, engine, terms, folder)) for cell in cells]
        left = [(abs(log(ttft / c.ttft_ms)), abs(log(tpot / c.tpot_ms))) for c, ttft, tpot in pairs]
        found.append((fmean(min(a, log(_WORST)) + min(b, log(_WORST)) for a, b in left), terms))
        print(f"{100 * (exp(found[-1][0] / 2) - 1):.1f} % with {_told(terms)}", file=sys.stderr)
        near = [pair for pair, each in zip(pairs, left, strict=True) if max(each) < log(_WORST)]
        terms = _corrected(terms, near)
    return min(found, key=lambda each: each[0])[1]


def _corrected(terms: HostTerms, pairs: Sequence[tuple[Cell, float, float]]) -> HostTerms:
    """Return the terms plus what is left of cells with their simulated TTFT and TPOT, as if steps only got longer."""
    each, constant = _line([c.concurrency for c, *_ in pairs], [c.tpot_ms - tpot for c, _, tpot in pairs])
    front = median(c.ttft_ms - ttft for c, ttft, _ in pairs) - constant
    return replace(
        terms,
        exposed=_plus(terms.exposed, constant),
        exposed_per_sampled=_plus(terms.exposed_per_sampled, each),
        front_in=_plus(terms.front_in, front),
    )


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return slope and constant of the line through most points (Theil and Sen)."""
    points = list(zip(xs, ys, strict=True))
    slopes = [(b - a) / (y - x) for i, (x, a) in enumerate(points) for y, b in points[i + 1 :] if x != y]
    slope = median(slopes) if slopes else 0.0
    return slope, median(y - slope * x for x, y in points)


def _told(terms: HostTerms) -> str:
    return (
        f"exposed {terms.exposed / 1e6:.2f} ms and "
        f"{terms.exposed_per_sampled / 1e3:.1f} us a sequence, front {terms.front_in / 1e6:.1f} ms"
    )


def _plus(ns: float, ms: float) -> float:
    return float(max(round(ns + ms * 1e6), 0))


def _cell(row: Mapping[str, str]) -> Cell:
    at = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    model, dtype = _MODELS[row["model_path"].split("/")[-1]]
    if row["gemm_quant_mode"] in ("fp8", "fp8_block") and model != "gpt-oss-120b":
        dtype = "fp8"
    parallel = int(float(row["tp_size"])), int(float(row["moe_ep_size"] or 1))
    return Cell(
        (model, row["system"].removesuffix("_sxm"), dtype, *parallel),
        row["backend_version"],
        int(float(row["isl"])),
        int(float(row["osl"])),
        int(at[1]) if at else int(float(row["batch_size"])),
        float(row["silicon_ttft_ms"]),
        float(row["silicon_tpot_ms"]),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the terms of an engine and write them as YAML."""
    import tempfile

    import yaml

    warnings.simplefilter("ignore")
    parse = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parse.add_argument("cells", type=Path)
    parse.add_argument("engine", choices=sorted(_BACKENDS))
    parse.add_argument("--source", default="", help="only cells whose data source contains this")
    parse.add_argument("--version", default="", help="of the engine, for the terms' name")
    parse.add_argument("--out", type=Path, required=True)
    given = parse.parse_args(arguments)
    try:
        cells = read_cells(given.cells, given.engine, given.source)
        fitted_on, judged_on = halves(cells)
        base = HostTerms(
            engine=f"{given.engine} {given.version}".strip(),
            gpus=("h100", "h200"),
            pads_to_graphs=True,
            monotone_gemms=True,
        )
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            terms = fit_cells(fitted_on, given.engine, base, folder)
            provenance = {
                part: {
                    "deployments": [" ".join(map(str, d)) for d in sorted({cell.deployment for cell in of})],
                    "before": errors(of, given.engine, base, folder),
                    "after": errors(of, given.engine, terms, folder),
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
