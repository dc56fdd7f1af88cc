"""One function names a case: for the fit of error bars, and for the run that shows them."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.experiments.accuracy.files import CELLS, write
from servesim.experiments.accuracy.reading import read
from servesim.experiments.accuracy.recipes import recipe
from servesim.experiments.accuracy.study import accuracy
from servesim.intervals.case import Case
from servesim.run.error_bars import case_of
from servesim_lab.intervals.residuals import read_measured
from tests.support.cells import row, table

OTHER = "source_file=x.csv; silicon_concurrency=4"
LABELS: list[dict[str, Any]] = [
    {"id": "no version", "backend_version": ""},
    {"id": "a version", "backend_version": "0.11.0"},
    {"id": "a nightly", "backend_version": "nightly-0123abc"},
]


@pytest.mark.parametrize("label", LABELS, ids=lambda label: str(label["id"]))
def test_the_case_of_a_fitted_cell_is_that_of_its_run(label: dict[str, Any], tmp_path: Path) -> None:
    path = table(tmp_path / "cells.csv", [row(silicon_data_source=OTHER, **label)])
    out = tmp_path / "score"
    out.mkdir()
    write(out, *accuracy(path, date="2026-11-26", jobs=1))
    (fitted,) = read_measured([out / CELLS])
    (cell,) = read([path])
    ran = case_of(servesim.simulate(recipe(cell).settings).summary)
    assert ran is not None
    assert as_labels(fitted.case) == as_labels(ran)
    assert (fitted.case.ttft_ms, fitted.case.tpot_ms) == pytest.approx((ran.ttft_ms, ran.tpot_ms), rel=1e-5)
    assert fitted.case.extrapolated == pytest.approx(ran.extrapolated, rel=1e-5)


def as_labels(case: Case) -> tuple[object, ...]:
    """Return everything that says which server it is and under which load."""
    return astuple(case)[: Case.__match_args__.index("ttft_ms")]
