"""Each rule of the screen on cells made by hand: what it leaves out, and what it leaves alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.screen import FALL, RULES, rising, screen
from tests.support.cells import cell


def at(*points: tuple[int, float], **other: object) -> list[Cell]:
    """Cells of one server: (clients, TPOT); TTFTs differ, so that none is a copy."""
    return [cell(id=str(i), concurrency=c, tpot_ms=t, ttft_ms=20.0 + i, **other) for i, (c, t) in enumerate(points)]


def test_sound_cells_stay() -> None:
    assert screen(at((1, 5.0), (8, 6.0), (32, 9.0))) == ["", "", ""]


@pytest.mark.parametrize("label", ["isl", "osl", "concurrency", "tp", "ttft_ms", "tpot_ms"])
def test_a_cell_without_a_label_is_left_out(label: str) -> None:
    assert screen([cell(**{label: 0})]) == ["missing label"]


def test_servers_apart_need_no_tensor_parallelism_of_one_engine() -> None:
    assert screen([cell(tp=0, mode="disagg")]) == [""]


def test_of_copies_the_one_that_states_its_version_stays() -> None:
    assert screen([cell(version=""), cell(id="b"), cell(id="c")]) == ["copy", "", "copy"]


def test_a_copy_under_the_other_name_of_a_model_is_one() -> None:
    names = ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1")
    assert screen([cell(model=name) for name in names]) == ["", "copy"]


def test_one_measurement_under_two_labels_leaves_both_out() -> None:
    assert screen([cell(tp=1), cell(tp=2), cell(tp=4, tpot_ms=3.0)]) == ["two labels", "two labels", ""]


def test_one_engine_has_no_more_gpus_than_a_box() -> None:
    cells = [
        cell(tp=8),
        cell(tp=16, tpot_ms=2.0),
        cell(tp=4, ep=16, tpot_ms=3.0),
        cell(gpu="gb200", tp=16, tpot_ms=1.0),
    ]
    assert screen(cells) == ["", "more GPUs than a box", "more GPUs than a box", ""]


@pytest.mark.parametrize(
    ("source", "out"), [("image=x; mtp=3", True), ("spec_dec eagle3", True), ("mtpx inspected", False)]
)
def test_speculation_in_the_label_is_left_out(source: str, out: bool) -> None:
    assert screen([cell(source=source)]) == ["drafts of unknown acceptance" if out else ""]


def test_measurements_of_one_place_far_apart_leave_all_of_it_out() -> None:
    same = at((8, 6.0), (8, 7.4), (8, 7.6), (16, 8.0))
    assert screen(same) == ["two measurements"] * 3 + [""]
    assert screen(same[:2]) == ["", ""], "24 % apart"


def test_one_cell_out_of_line_is_left_out_alone() -> None:
    """The pattern of gpt-oss-120b on four H100: 32 clients slower than 64."""
    points = ((4, 4.0), (8, 5.0), (16, 6.5), (32, 16.0), (64, 9.7), (128, 13.0))
    assert screen(at(*points)) == ["", "", "", "falls with concurrency", "", ""]


def test_of_two_cells_that_contradict_each_other_neither_is_believed() -> None:
    assert screen(at((64, 30.0), (128, 20.0))) == ["falls with concurrency"] * 2


def test_a_fall_within_repeat_noise_is_none() -> None:
    assert screen(at((4, 5.0), (8, 5.0 * (1 - FALL) + 0.01))) == ["", ""]


def test_servers_at_other_lengths_are_not_compared() -> None:
    long, short = at((8, 9.0)), at((16, 5.0), isl=4096)
    assert screen([*long, *short]) == ["", ""]


def test_every_rule_is_described() -> None:
    assert all(says for says in RULES.values())


@given(st.lists(st.floats(1.0, 100.0), max_size=9))
def test_what_stays_never_falls(times: list[float]) -> None:
    kept = [times[i] for i in sorted(rising(times))]
    assert all(after >= (1 - FALL) * before for i, before in enumerate(kept) for after in kept[i + 1 : i + 2])
    if sorted(times) == times:
        assert kept == times
