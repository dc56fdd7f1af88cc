"""Report on a calibration: what was measured, how well it repeats, and what to trust."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from servesim.calibrate.accuracy import open_tables
from servesim.calibrate.journal import FILES, SHEET, Journal, Measured
from servesim.calibrate.lookup import lookup
from servesim.calibrate.points import table_row
from servesim.cost.tables import KernelTables
from servesim.hardware import Gpu

BETWEEN = "every 2nd"
"""Way of leaving rows out that asks for sizes between two measured ones."""
SHIPPED = 0.03
"""Mean absolute error of whole steps up to which tables are taken into the distribution (calibrate/README.md)."""
_FIGURES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "end-to-end latency"}


@dataclass(frozen=True)
class Repeated:
    """Point that was measured more than once, and what the tables give for it; times are in microseconds."""

    operator: str
    change: float
    """Last measurement relative to the first, minus 1."""
    least: float
    """Lowest p10 of its measurements."""
    most: float
    """Highest p90."""
    price: float

    @property
    def within(self) -> bool:
        """Whether the price, which is in whole nanoseconds, lies within the spread of the repeats."""
        return self.least - 1e-3 <= self.price <= self.most + 1e-3


def repeated(folder: Path) -> list[Repeated]:
    """Return the points that were measured again and are in the tables of a profile."""
    journal = Journal.load(folder)
    tables, gpu = open_tables(str(folder), None if (folder / SHEET).is_file() else journal.settings["gpu"])
    again: dict[str, list[Measured]] = defaultdict(list)
    for measured in journal.repeats:
        if measured.point.key in journal.grid and measured.point.set in FILES:
            again[measured.point.key].append(measured)
    by_operator: dict[tuple[str, str], list[list[Measured]]] = defaultdict(list)
    for key, later in again.items():
        point = journal.grid[key].point
        by_operator[point.op, point.dtype].append([journal.grid[key], *later])
    return [r for kind, series in by_operator.items() for r in _priced(tables, gpu, *kind, series)]


def _priced(
    tables: KernelTables, gpu: Gpu, op: str, dtype: str, series: Sequence[Sequence[Measured]]
) -> Iterable[Repeated]:
    keys = [table_row(first.point) for first, *_ in series]
    rows = {name: np.array([key[name] for key in keys]) for name in keys[0] if name not in ("op", "dtype")}
    prices = lookup(tables, gpu, op, dtype, rows) / 1e3
    for times, price in zip(([m.timing for m in s] for s in series), prices.tolist(), strict=True):
        least, most = min(t.p10_us for t in times), max(t.p90_us for t in times)
        yield Repeated(f"{op} {dtype}", times[-1].median_us / times[0].median_us - 1.0, least, most, price)


def report(folder: Path, record: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the report of a calibration in Markdown. `record` holds the stages that are done."""
    journal = Journal.load(folder / "tables")
    points = repeated(folder / "tables")
    left_out = json.loads((folder / "left-out.json").read_text())
    steps = [json.loads(path.read_text()) for path in sorted((folder / "steps").glob("*.json"))]
    (run,) = json.loads((folder / "errors.json").read_text())["runs"]
    between = {f"{e['operator']} {e['dtype']}": e["median"] for e in left_out["errors"] if e["split"] == BETWEEN}
    lines = [
        f"# Calibration of {steps[0]['model']} on {journal.settings['device']}",
        "",
        *_measured(journal, record),
        "",
        "## How well it repeats",
        "",
        *_repeats(points, between),
        "",
        *_drift(journal),
        "",
        "## What to trust",
        "",
        *_steps(steps),
        *_engine(run, folder),
        *(f"- Odd: {warning}." for warning in left_out["warnings"]),
        f"- Not measured: {_not_measured(folder)}.",
    ]
    return "\n".join(lines) + "\n"


def _measured(journal: Journal, record: Mapping[str, Mapping[str, Any]]) -> list[str]:
    settings = journal.settings
    made = [f"{name} {settings[key]}" for name, key in (("driver", "driver"), ("torch", "torch")) if settings.get(key)]
    rows = sum(m.point.set in FILES for m in journal.grid.values())
    failed = settings.get("failed", {})
    return [
        f"{rows:,} kernel times, {len(journal.repeats):,} of them repeated; kernels {settings['kernels']}"
        f"{''.join(f', {text}' for text in made)}."
        + (f" {len(failed)} points could not be measured: {next(iter(failed.values()))}." if failed else ""),
        "",
        "| stage | seconds | finished | command |",
        "|---|---|---|---|",
        *(f"| {n} | {s['seconds']:.0f} | {s['finished']} | `{shlex.join(s['command'])}` |" for n, s in record.items()),
    ]


def _repeats(points: Sequence[Repeated], between: Mapping[str, float]) -> list[str]:
    lines = [
        "Change: the same point measured again at the end. Between: the tables' error for a size left out of them.",
        "",
        "| operator | repeated | change, median | worst | price within its repeats | between, median | limited by |",
        "|---|---|---|---|---|---|---|",
    ]
    for operator in dict.fromkeys([*between, *(p.operator for p in points)]):
        mine = [p for p in points if p.operator == operator]
        changes = np.abs([p.change for p in mine])
        worst = float(changes.max()) if mine else None
        error = between.get(operator)
        limit = "unknown" if error is None or worst is None else "its repeats" if error <= worst else "sizes in between"
        middle = _percent(float(np.median(changes))) if mine else "-"
        inside = f"{sum(p.within for p in mine)} of {len(mine)}"
        cells = (operator, str(len(mine)), middle, _percent(worst), inside, _percent(error), limit)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _drift(journal: Journal) -> list[str]:
    worst = max((abs(d) for run in journal.settings["runs"] for d in run.get("drift", [])), default=0.0)
    odd = sum(m.suspect for m in journal.grid.values())
    text = f"A GEMM that is always the same changed by up to {worst:.1%} while the kernels were timed"
    return [text + (f"; {odd} points measured in such a time were not measured again." if odd else ".")]


def _steps(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for figures in steps:
        whole = figures["kinds"]["all"]
        held = "within" if whole["mape"] <= SHIPPED else "not within"
        lines.append(
            f"- Kernels: whole steps of {figures['model']} that no timer has seen differ from the sum of their kernels "
            f"by {whole['mape']:.1%} on average (bias {whole['bias']:+.1%}, {whole['steps']} steps), {held} the "
            f"{SHIPPED:.0%} of tables that are shipped."
        )
        if "with_host" in whole:
            mape, host = whole["with_host"]["mape"], figures["host_us"]
            lines.append(f"- With {host:.0f} us of host time per step, fitted to the other half: {mape:.1%}.")
    return lines


def _engine(run: Mapping[str, Any], folder: Path) -> list[str]:
    import yaml

    fitted = yaml.safe_load((folder / "log" / "host.yaml").read_text())["provenance"]
    errors = ", ".join(
        f"{name} {run['error'][key]['mean']:+.1%}" for key, name in _FIGURES.items() if key in run["error"]
    )
    share, missed = fitted["kernel_share_percent"], fitted["mean_abs_residual_percent"]
    return [
        f"- Engine: simulated means of {run['requests']} requests served by {run['engine']} differ by {errors}. The "
        f"host terms come from its warm-up: kernels are {share:.0f} % of a step there, and the terms miss a step by "
        f"{missed:.1f} % on average.",
    ]


def _not_measured(folder: Path) -> str:
    tables = KernelTables.load(folder=folder / "tables")
    return str(next(iter(tables.provenance.values())).get("not_measured", "collectives"))
