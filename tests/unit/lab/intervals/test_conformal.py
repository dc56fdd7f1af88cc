"""Folds, shrunk terms and conformal quantiles, by hand and on servers that are made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servesim.intervals.case import Case
from servesim.intervals.distance import KINDS
from servesim_lab.intervals.conformal import leave_out, quantile
from servesim_lab.intervals.coverage import Bounds, bounds
from servesim_lab.intervals.fit import PENALTIES, Data
from servesim_lab.intervals.folds import folds
from servesim_lab.intervals.regression import Design
from servesim_lab.intervals.residuals import Measured

CASE = Case("vllm", "1", "m", "h100", "fp8", 1, 1, 10.0, 1000.0, 200.0, 10.0, 0.0)
NAMED = {kind.name: kind for kind in KINDS}


def test_nine_deployments_make_an_end_that_leaves_out_a_tenth_and_eight_do_not() -> None:
    scores = np.arange(9.0)
    names = [str(i) for i in range(9)]
    assert (quantile(scores, names, 0.1), quantile(scores, names, 0.9)) == (0.0, 8.0)
    assert np.isnan(quantile(scores[:8], names[:8], 0.9))
    assert np.isnan(quantile(scores[:8], names[:8], 0.1))


def test_a_deployment_weighs_the_same_however_many_its_cells() -> None:
    scores = np.array([*range(9), *[100.0] * 50])  # the tenth deployment: 50 cells, all far off
    names = [*(str(i) for i in range(9)), *["far"] * 50]
    assert quantile(scores, names, 0.8) == 8.0
    assert quantile(scores, names, 0.9) == 100.0


def test_one_more_cell_of_known_deployments_needs_no_further_deployment() -> None:
    scores, names = np.arange(100.0), [str(i % 2) for i in range(100)]
    assert np.isnan(quantile(scores, names, 0.9))
    assert quantile(scores, names, 0.9, known=True) == 90.0
    assert quantile(scores, names, 0.1, known=True) == 9.0


def test_a_term_keeps_half_of_a_groups_mean_where_the_penalty_is_its_weight() -> None:
    design = Design.of([CASE, CASE], {"engine": 2.0})
    assert design.names == ("engine: vllm",)
    terms = design.fit(np.array([0.2, 0.2]), np.ones(2))
    assert design.values(terms) == pytest.approx([0.1, 0.1])


def test_a_group_that_takes_no_part_has_no_term() -> None:
    cases = [CASE, replace(CASE, gpu="h200")]
    design = Design.of(cases, {"gpu": 1.0})
    terms = dict(zip(design.names, design.fit(np.array([0.4, 9.0]), np.array([1.0, 0.0])), strict=True))
    assert terms["gpu: h100"] == pytest.approx(0.2)
    assert terms["gpu: h200"] == 0.0


def test_one_wild_residual_pulls_no_more_than_its_sign() -> None:
    design = Design.of([CASE] * 11, {"all": 1e-9})
    y = np.array([0.01, -0.01] * 5 + [50.0])
    assert abs(float(design.fit(y, np.ones(11))[0])) < 4.0 < float(np.mean(y))


def test_a_fold_of_two_labels_bars_what_shares_either() -> None:
    cases = [replace(CASE, model=m, version=v) for m, v in (("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"))]
    found = folds(cases, NAMED["model and version"], [(1, 1)] * 4)
    assert [one.predicted.tolist() for one in found] == np.eye(4, dtype=bool).tolist()
    assert found[0].barred.tolist() == [True, True, True, False]


def test_cells_of_one_server_with_the_same_lengths_are_left_out_together() -> None:
    loads = [(1000, 100, 4.0), (1000, 100, 64.0), (8000, 100, 4.0), (1000, 900, 4.0), (8000, 100, 64.0)]
    cases = [replace(CASE, in_flight=load) for _, _, load in loads]
    found = folds(cases, NAMED["server"], [(prompt, output) for prompt, output, _ in loads])
    assert [np.flatnonzero(one.predicted).tolist() for one in found] == [[0, 1], [2, 4], [3]]
    other = [replace(case, tp=8) for case in cases]  # another server's cells are dealt by themselves
    both = folds(cases + other, NAMED["server"], [(prompt, output) for prompt, output, _ in loads] * 2)
    assert [np.flatnonzero(one.predicted).tolist() for one in both] == [[0, 1, 5, 6], [2, 4, 7, 9], [3, 8]]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_used_cell_is_predicted_once_by_cells_unlike_it(kind: object) -> None:
    cases = [replace(CASE, model=f"m{i % 4}", version=str(i % 5), gpu=f"g{i % 2}", tp=i % 3) for i in range(60)]
    used = np.arange(60) != 7
    found = folds(cases, kind, [(i % 7, 1) for i in range(60)], used)  # type: ignore[arg-type]
    assert (np.sum([one.predicted for one in found], axis=0) == used).all()
    for one in found:
        assert (one.barred | ~one.predicted).all()


def test_scores_are_of_terms_that_did_not_see_them() -> None:
    cases = [replace(CASE, gpu=f"g{i}") for i in range(3)]
    y = np.array([0.0, 0.0, 3.0])
    design = Design.of(cases, {"all": 1e-12})
    left = leave_out(design, Design.of(cases, {"all": 1e9}), y, np.ones(3), folds(cases, NAMED["gpu"], [(1, 1)] * 3))
    assert left.scores[2] == pytest.approx(3.0, abs=1e-6)  # the others say 0; a scale of exp(0)
    assert np.abs(left.scores[:2]).max() > 0.5  # here the third is among those that speak


def _made_up(count: int, rng: np.random.Generator) -> list[Measured]:
    """Servers of six models and four versions whose residuals are normal, twice as wide on one engine."""
    cells = []
    for i in range(count):
        engine = ("vllm", "sglang")[i % 2]
        case = replace(CASE, engine=engine, version=str(i % 4), model=f"m{i % 6}", gpu=f"g{i % 3}", tp=1 + i)
        width = 0.1 if engine == "vllm" else 0.4
        own = rng.normal(0.0, width)
        for load in (4.0, 20.0, 100.0):
            y = own + rng.normal(0.1, width)
            cells.append(
                Measured(
                    replace(case, in_flight=load), dict.fromkeys(("ttft", "tpot", "e2e"), y), (int(load), 1), 1, 1, 9.0
                )
            )
    return cells


@pytest.mark.parametrize("name", ["server", "deployment"])
def test_intervals_of_made_up_servers_hold_about_80_percent_and_are_narrow_where_servers_are_alike(name: str) -> None:
    data = Data.of(_made_up(80, np.random.default_rng(3)))
    found: Bounds = bounds(data, NAMED[name], "tpot")
    assert 0.74 < found.inside.mean() < 0.9
    tight = np.array([cell.case.engine == "vllm" for cell in data.cells])
    assert np.median(found.half_widths[tight]) < 0.5 * np.median(found.half_widths[~tight])
    assert found.winkler().mean() < found.winkler(beside=True).mean()


def test_a_winkler_score_is_the_width_and_ten_times_what_lies_outside() -> None:
    one = np.ones(3)
    found = Bounds(np.array([0.0, 2.0, -1.5]), -one, one, -2 * one, 2 * one)
    assert found.winkler().tolist() == pytest.approx([2.0, 12.0, 7.0])
    assert found.winkler(beside=True).tolist() == pytest.approx([4.0, 4.0, 4.0])
    assert found.inside.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.slow
def test_the_term_for_many_clients_holds_cells_that_are_far_off_and_halves_what_they_widen_others_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = _made_up(36, np.random.default_rng(4))
    far = [
        replace(cell, case=replace(cell.case, in_flight=300.0), residuals={m: 8 * y for m, y in cell.residuals.items()})
        for cell in cells[::3]
    ]

    def others_and_far(more: list[Measured]) -> tuple[float, float]:
        found = bounds(Data.of([*cells, *more]), NAMED["deployment"], "tpot")
        return float(np.median(found.half_widths[: len(cells)])), float(found.inside[len(cells) :].mean())

    alone = float(np.median(bounds(Data.of(cells), NAMED["deployment"], "tpot").half_widths))
    width, held = others_and_far(far)
    location, scale = PENALTIES["deployment"]
    without = {name: value for name, value in scale.items() if name != "crowd"}
    monkeypatch.setitem(PENALTIES, "deployment", (location, without))
    plain_width, plain_held = others_and_far(far)
    assert plain_held < 0.72 < 0.8 < held
    assert width - alone < 0.5 * (plain_width - alone)
