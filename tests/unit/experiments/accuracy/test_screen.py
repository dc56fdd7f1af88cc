"""Each rule of the screen on cells made by hand: what it leaves out, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.reach import reach_of
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


def test_a_batch_size_that_contradicts_the_number_of_clients_leaves_the_cell_out() -> None:
    """In public cells with data-parallel attention the batch size is that of one rank; elsewhere it is the number of
    clients."""
    ranks = {"concurrency": 64, "tp": 1, "dp": 4, "ep": 4}
    assert screen([cell(**ranks, batch=16)]) == [""]
    assert screen([cell(**ranks, batch=32)]) == ["two numbers of clients"]
    assert screen([cell(tp=4, concurrency=64, batch=16)]) == ["two numbers of clients"]
    assert screen([cell(tp=4, concurrency=64, batch=0)]) == [""], "one number is stated"
    assert screen([cell(tp=0, mode="disagg", concurrency=64, batch=16)]) == [""]


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
    long, short = at((8, 9.0)), at((16, 5.0), isl=256)
    assert screen([*long, *short]) == ["", ""]


def test_every_rule_is_described() -> None:
    assert all(says for says in RULES.values())


@given(st.lists(st.floats(1.0, 100.0), max_size=9))
def test_what_stays_never_falls(times: list[float]) -> None:
    kept = [times[i] for i in sorted(rising(times))]
    assert all(after >= (1 - FALL) * before for i, before in enumerate(kept) for after in kept[i + 1 : i + 2])
    if sorted(times) == times:
        assert kept == times


def test_prompts_that_no_kernel_computes_so_fast_leave_the_whole_server_out() -> None:
    """64 clients of 3,900 tokens in half a second: 500,000 tokens/s, each 2 x 7.0e9 operations: 7 PFLOP/s."""
    wide = {"isl": 4000, "osl": 32, "concurrency": 64}
    cells = [
        cell(**wide, ttft_ms=190.0, tpot_ms=10.0),
        cell(**wide, ttft_ms=3000.0, tpot_ms=150.0, version="0.17.0"),
        cell(id="b"),
    ]
    assert screen(cells) == ["faster than its products", "", "faster than its products"]


def test_the_rate_of_the_products_is_below_the_data_sheet_and_above_half_of_it() -> None:
    reach = reach_of(cell())
    assert reach is not None
    weights = 32 * (4096 * (4096 * 2 + 1024 * 2) + 3 * 4096 * 14336)
    assert 0.5 < reach.tokens_per_s * 2 * weights / 989e12 < 1.0
    assert reach.kv_tokens == pytest.approx((0.8 * 79.65 * 2**30 - 16.06e9) / (2 * 8 * 128 * 2 * 32), rel=0.01)


def test_clients_who_wait_while_a_server_idles_are_fewer_than_their_label() -> None:
    idle = {"concurrency": 64, "tpot_ms": 20.0, "isl": 1000, "osl": 100}
    assert screen([cell(**idle, ttft_ms=60_000.0)]) == ["waits without need"]
    assert screen([cell(**idle, ttft_ms=300.0)]) == [""]
    full = {**idle, "concurrency": 1024}  # 1.1 million tokens of KV do not fit: they have to wait
    assert screen([cell(**full, ttft_ms=60_000.0)]) == [""]


def test_cells_nothing_is_known_of_pass_both_rules() -> None:
    assert reach_of(cell(model="nobody/knows-it")) is None
    assert screen([cell(model="nobody/knows-it", ttft_ms=60_000.0, concurrency=64)]) == [""]


def test_a_server_that_stalls_is_left_out_whole() -> None:
    """Of 4 clients with 8,000 tokens one waits 5 s, although the same server takes 64 such clients at 41,000 tokens/s:
    all four prompts take .7 s there. Another pair of lengths of that server goes with it; another server does not."""
    long = {"isl": 8000, "osl": 1000, "gpu": "h200_sxm", "tp": 8}
    busy = cell(**long, id="busy", concurrency=64, ttft_ms=900.0, tpot_ms=13.0)
    short = cell(id="short", gpu="h200_sxm", tp=8, concurrency=4, ttft_ms=100.0)
    other = cell(**long | {"tp": 4}, id="other", concurrency=4, ttft_ms=5001.0, tpot_ms=6.0)
    stalled = cell(**long, id="stalled", concurrency=4, ttft_ms=5000.0, tpot_ms=6.0)
    rule = "waits longer than its rate"
    assert screen([stalled, busy, short, other]) == [rule, rule, rule, ""]
    assert screen([replace(stalled, ttft_ms=980.0), busy, short]) == ["", "", ""], "1.25 x (.1 + .7) s"


def test_a_lone_client_is_not_held_to_the_rate_of_many() -> None:
    """The first token of one prompt takes launches and a whole step, however fast many prompts pass together."""
    assert screen(at((1, 5.0), (64, 6.0), isl=128)) == ["", ""]


def test_requests_that_wait_for_kv_blocks_are_no_stall() -> None:
    full = {"isl": 8000, "osl": 1000, "concurrency": 1024}  # 9.2 million tokens
    cells = [cell(**full, ttft_ms=600_000.0, tpot_ms=60.0), cell(**full | {"concurrency": 8}, tpot_ms=9.0)]
    assert screen(cells) == ["", ""]
