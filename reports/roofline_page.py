"""Recorded steps of a run under the roofline, and their page (`servesim roofline`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from servesim.cost.roofline import Roof, Steps
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec
from servesim.reports.figures.roofline import roofline
from servesim.reports.files import writing
from servesim.reports.page import Alert, Block, Page, Section, Table
from servesim.reports.priced import SAMPLE, sampled_step
from servesim.reports.run import Run
from servesim.reports.svg import Drawing, standalone
from servesim.reports.words import gpu_of, name_of, number, percent, time_ms
from servesim.run.result import Result
from servesim.run.setup import cost_model_of


def steps_of_run(folder: Path) -> tuple[Roof, list[Steps]]:
    """Return a sample of a run's recorded steps by kind, evenly spaced in GPU time; raise UserError if there are
    none."""
    run = Run(Result.load(folder))
    s = run.scenario
    roof = Roof(ModelSpec.load(s.model), Gpu.load(s.gpu), s.tp, s.dtype, s.kv_dtype, cost_model_of(s))
    found = []
    for kind, mask in run.kinds.items():
        rows = np.flatnonzero(mask)
        if not len(rows):
            continue
        steps = Steps(roof, f"{kind} steps", kind)
        for row in run.sample(rows, SAMPLE).tolist():
            batch, k = sampled_step(run, row)
            steps.add(batch, k, float(run.steps["gpu_ns"][row]))
        found.append(steps)
    if not found:
        raise UserError(f"{folder}: the run has no steps")
    return roof, found


def write(path: Path, document: Mapping[str, Any], steps: Sequence[Steps]) -> None:
    """Write the figure if the name ends in .svg, or else the page."""
    drawing = drawing_of(steps)
    text = standalone(drawing) if path.suffix == ".svg" else page(document, drawing).html()
    with writing(path) as file:
        file.write(text)


def drawing_of(steps: Sequence[Steps]) -> Drawing:
    """Draw steps under the roofline."""
    roof = steps[0].roof
    points = [(one.kind, *point) for one in steps for point in one.points]
    labels = [one.label for one in steps] if all(one.count == 1 for one in steps) else []
    drawing = roofline(roof.gpu, roof.dtype, points, labels, across=True)
    assert drawing is not None
    return drawing


def page(document: Mapping[str, Any], drawing: Drawing) -> Page:
    """Return the page of steps under the roofline, and their operators."""
    d = document
    gpus = gpu_of(d["gpu"]) if d["tp"] == 1 else f"{d['tp']} × {gpu_of(d['gpu'])}"
    operators = [_operators(step) for step in d["steps"]]
    chips = [
        ("kernel tables", d["tables"] or "none"),
        ("peak", f"{d['peak_flops'] / 1e12:,.0f} TFLOP/s"),
        ("bandwidth", f"{d['bandwidth'] / 1e12:.3g} TB/s"),
    ]
    sections = [
        Section("Steps", [Block("drawing", "", drawing, wide=True), Block("table", "", _steps(d["steps"]), wide=True)]),
        Section("Operators", [Block("table", table.title, table) for table in operators]),
        Section("How to read it", [Block("list", "", [*_HOW, *d["notes"]], wide=True)]),
    ]
    return Page(
        "experiment",
        "roofline",
        f"{name_of(d['model'])} under the roofline of {gpus}",
        f"{d['dtype']} weights, {d['kv_dtype']} KV; ridge at {d['ridge']:,.0f} FLOP per byte",
        chips,
        [Alert("Too large.", warning, "warn") for warning in d["warnings"]],
        {"tiles": [], "sections": sections},
    )


_HOW = (
    "The roof of a step assumes that its weights and KV are read once and that everything else is free: it is the "
    "larger of FLOPs divided by peak and bytes divided by bandwidth.",
    "The roof of an operator counts what a separate kernel for it would read and write. Operators without arithmetic "
    "have no intensity. Entries that do no arithmetic (a lowered clock, copies, drafting) have no roof.",
)


def _steps(steps: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("step", "FLOP/byte", "bound", "roofline", "kernels", "reached", "by formula")
    rows = [
        (
            step["label"],
            number(step["intensity"]),
            step["bound"],
            time_ms(step["roofline_ns"] / 1e6),
            time_ms(step["kernels_ns"] / 1e6),
            percent(step["reached"]),
            percent(step["by_formula"]),
        )
        for step in steps
    ]
    return Table("Steps", columns, rows, (False, True, False, True, True, True, True))


def _operators(step: Mapping[str, Any]) -> Table:
    rows = [
        (
            one["name"],
            number(one["intensity"]) if one["intensity"] else "–",
            _time(one["roofline_ns"]),
            _time(one["kernels_ns"]),
            percent(one["reached"]) if one["reached"] is not None else "–",
        )
        for one in step["operators"]
    ]
    return Table(step["label"], ("operator", "FLOP/byte", "roofline", "kernels", "reached"), rows)


def _time(ns: float | None) -> str:
    return f"{ns / 1e3:.3g} µs" if ns is not None and ns < 1e5 else time_ms(None if ns is None else ns / 1e6)
