"""Steps that take longer than larger ones: what is measured so is said, and nothing else falls."""

from __future__ import annotations

import numpy as np
import pytest

from servesim import simulate
from servesim.cost.curve import EXTRAPOLATED, MEASURED, Curve
from servesim.cost.curves import without_spikes
from servesim.cost.falling import worst_fall
from servesim.cost.formula import Roofline
from servesim.cost.grid import HeadShape, decode_grid, in_window
from servesim.cost.linear import GemmTables, collective_curve
from servesim.cost.stage import Operator, Stage
from servesim.cost.tables import KernelTables
from servesim.hardware import Gpu
from tests.support.falls import deployments, found


def stage(**curves: list[float]) -> Stage:
    """Return a stage whose operators take these nanoseconds at 1, 2, 4 and 8 tokens."""
    return Stage([Operator(name, Curve([1, 2, 4, 8], ys)) for name, ys in curves.items()], [], [], ROOFLINE)


ROOFLINE = Roofline(Gpu.load("h100"))


def test_a_fall_is_told_by_its_sizes_ratio_and_operators() -> None:
    """up and down take 300 + 100 ns at one token, 100 + 100 at two: twice as long."""
    fall = worst_fall(stage(up=[300, 100, 100, 120], down=[100, 100, 100, 100]), [1])
    assert fall is not None
    assert (fall.ratio, fall.tokens, fall.larger, fall.operators) == (2.0, 1, 2, ["up"])


def test_sizes_at_which_a_run_has_no_steps_do_not_count() -> None:
    assert worst_fall(stage(up=[300, 100, 100, 120]), [2, 4, 8, 100]) is None


def test_falls_below_a_tenth_are_noise() -> None:
    assert worst_fall(stage(up=[109, 100, 100, 100]), [1]) is None
    assert worst_fall(stage(up=[111, 100, 100, 100]), [1]) is not None


@pytest.mark.parametrize(
    ("points", "left"),
    [
        ({1: 5.0, 2: 14.0, 4: 6.0}, [1, 4]),  # over 1.7 times both neighbors
        ({1: 5.0, 2: 10.0, 4: 6.0}, [1, 2, 4]),  # not 1.7 times 6
        ({1: 14.0, 2: 5.0, 4: 6.0}, [2, 4]),  # the first has one neighbor
        ({1: 5.0, 2: 6.0, 4: 60.0}, [1, 2, 4]),  # the last may rise
        ({1: 5.0, 2: 14.0, 4: 14.0, 8: 6.0}, [1, 2, 4, 8]),  # two alike are a kernel
        ({1: 5.0}, [1]),
    ],
)
def test_a_time_far_over_both_neighbors_is_a_pause_of_the_machine(points: dict[float, float], left: list[int]) -> None:
    assert list(without_spikes(points)) == left


def test_a_pause_in_a_collective_is_not_priced() -> None:
    curve = collective_curve(KernelTables.load("a100"), ROOFLINE, "all_reduce", 8, 4096)
    assert curve.at(1) < 7000  # 14.8 us measured at 4 KiB, 5.6 and 6.3 us at 2 and 8


@pytest.mark.parametrize(("last", "expected"), [(1600.0, 3200.0), (9000.0, 9000.0)])
def test_a_batch_measured_only_short_of_the_window_goes_on_to_it(last: float, expected: float) -> None:
    """Four sequences took 200 ns at 512 tokens, the best rate: 3,000 ns for 7,680 more of each, but no less than one
    sequence takes at the window's 8,192."""
    grid = [(1.0, Curve([512, 8192], [100.0, last])), (4.0, Curve([512], [200.0]))]
    one, four = (curve for _, curve in in_window(grid, 8192, True))
    assert four.at(8192) == four.at(100_000) == expected
    assert one.at(8192) == one.at(100_000) == last
    assert (four.source(512), four.source(8192)) == (MEASURED, EXTRAPOLATED)


def test_heads_measured_at_other_batches_are_priced_by_the_nearest_below() -> None:
    """12 heads lie between 8, measured at one sequence, and 16, measured at two: no batch to interpolate at."""
    columns = {"batch": [1, 1, 2, 2], "past_tokens": [0, 1024] * 2, "heads": [8, 8, 16, 16], "kv_heads": [4] * 4,
               "head_dim": [128] * 4, "time_us": [1.0, 9.0, 2.0, 20.0]}  # fmt: skip
    rows = {name: np.array(values) for name, values in columns.items()}
    grid, _ = decode_grid(rows, HeadShape(12, 4, 128), 1.0)
    ((batch, curve),) = grid
    assert (batch, curve.at(1.0), curve.at(1025.0)) == (1.0, 1000.0, 1000.0 + 8000.0 * 12 / 8)
    assert curve.source(1025.0) == EXTRAPOLATED


def test_a_gemm_past_its_last_row_never_takes_less() -> None:
    """4,096 tokens take 400 us, ten times what the rate of 2,048 tokens allows: 8,192 take no less."""
    columns = {"m": [1024, 2048, 4096], "n": [512] * 3, "k": [512] * 3, "time_us": [10.0, 20.0, 400.0]}
    rows = {name: np.array(values) for name, values in columns.items()}
    tables = KernelTables.load("h100").with_rows("gemm", "bf16", rows)
    curve = GemmTables(tables, ROOFLINE, ROOFLINE).curve(512, 512, "bf16")
    assert curve.at(4096) == 400e3
    assert curve.at(8192) == 400e3


def test_one_client_of_fp8_on_blackwell_is_slower_than_two_as_measured_and_the_run_says_so() -> None:
    base = {"trace": "synth:prompt=64,output=32", "rate": "inf", "requests": 8, "gpu": "b200", "model": "llama-3.1-8b"}

    def said(clients: int) -> list[str]:
        notes = simulate({**base, "dtype": "fp8", "clients": {"max_concurrency": clients}}).summary["notes"]
        return [note for note in notes if "times as long as one with" in note]

    (note,) = said(1)
    assert note.startswith("kernel tables: ")
    assert "according to the tables, a step with 1 token takes" in note
    assert "as one with 2 tokens" in note
    assert not said(4)


def test_one_client_of_a_checkpoint_in_fp8_blocks_is_no_slower_than_two() -> None:
    """Qwen3.5-35B-A3B in FP8 on B200 was priced at 6.20 ms for one client and 3.54 for two."""

    def tpot(clients: int) -> float:
        base = {"trace": "synth:prompt=64,output=16", "rate": "inf", "requests": 4, "gpu": "b200"}
        run = simulate({**base, "model": "qwen3.5-35b-a3b", "dtype": "fp8", "clients": {"max_concurrency": clients}})
        return float(run.summary["latency_ms"]["tpot"]["mean"])

    assert tpot(1) <= tpot(2)


FEW = (["qwen3-30b-a3b", "llama-4-scout"], ["l40s", "b200"])


def test_no_step_of_a_few_deployments_takes_longer_than_a_larger_one_without_a_note() -> None:
    lines = [line for each in deployments(*FEW) if each["tp"] in (1, 8) for line in found(each)]
    assert lines == []


@pytest.mark.slow
def test_no_step_of_one_deployment_in_eleven_takes_longer_than_a_larger_one_without_a_note() -> None:
    """All of them take the better part of an hour: `python -m tests.support.falls`."""
    assert [line for each in [*deployments()][::11] for line in found(each)] == []


def test_of_larger_steps_within_a_twentieth_of_the_fastest_the_smallest_is_named() -> None:
    fall = worst_fall(stage(up=[300, 110, 104, 100]), [1])
    assert fall is not None
    assert (fall.ratio, fall.larger) == (300 / 104, 4)
