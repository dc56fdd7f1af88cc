"""Quality reports of kernel tables: what is covered, what repeats, what looks wrong, what others say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from servesim.calibrate.journal import Journal
from servesim.calibrate.points import Shard
from servesim.calibrate.profile import Options, profile
from servesim.calibrate.quality import quality
from servesim.cost.tables import write_table
from servesim.errors import UserError
from servesim.hardware import ModelSpec
from servesim.reports.table_page import table_html
from tests.support.devices import FormulaDevice, FormulaKernels

SHARD = Shard(ModelSpec.load("llama-3.1-8b"), 1, "bf16")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("q") / "tables"
    device = FormulaDevice()
    profile(device, FormulaKernels(device), [SHARD], Options(out, 600.0, None, 1024, 4096, 64))
    return out


def gemm(folder: Path, times: list[float], kernel: str = "k", **more: list[float]) -> None:
    tokens = [1, 16, 64, 256][: len(times)]
    columns = {"op": ["gemm"] * len(times), "dtype": ["bf16"] * len(times), "m": tokens, "n": [4096] * len(times)}
    columns |= {"k": [4096] * len(times), "kernel": [kernel] * len(times), "time_us": times, **more}
    write_table(folder / "gemm.parquet", columns, {"gpu": "h200", "device": "NVIDIA H200"})


def test_points_between_the_grids_are_looked_up_and_judged(measured: Path) -> None:
    found = quality(measured, against=[])
    errors = {h.what: h.errors for h in found.held_out}
    gemms = errors["gemm bf16, token counts between grid points"]
    assert len(gemms) == 5 * sum(m <= 1024 for m in (7, 37, 200, 300, 700))
    # the formula is two lines: exact between points on one, a little high between two that span its kink
    assert float(np.median(gemms)) == pytest.approx(0.0, abs=1e-9)
    assert -1e-9 < gemms.min() <= gemms.max() < 0.05
    assert np.abs(errors["decodes with unequal contexts"]).max() < 0.25
    assert len(errors) == 3


def test_repeats_are_those_of_the_profile(measured: Path) -> None:
    found = quality(measured, against=[])
    assert found.repeats == Journal.load(measured).spread()
    assert set(found.repeats) == {0.0}
    assert max(found.drift) == 0.0


def test_a_table_of_a_known_gpu_is_compared_with_the_shipped_one(measured: Path) -> None:
    (against,) = quality(measured).against
    assert against.other == "h200"
    assert {op for op, _ in against.ratios} == {"gemm", "attention_decode", "attention_prefill"}
    assert 0.3 < float(np.median(against.ratios["gemm", "bf16"])) < 3.0
    (itself,) = quality(measured, against=[str(measured)]).against
    for ratios in itself.ratios.values():
        assert ratios.tolist() == pytest.approx([1.0] * len(ratios), abs=1e-3)


def test_less_time_for_more_work_is_named_with_its_place(tmp_path: Path) -> None:
    gemm(tmp_path, [20.0, 21.0, 15.0, 30.0])
    ((name, what),) = quality(tmp_path, against=[]).anomalies
    assert name == "gemm bf16"
    assert (
        what == "in 1 case, more work takes less time, by up to 29% "
        "(n 4096, k 4096: from 16 to 64, the time falls from 21.0 to 15.0 us)"
    )


def test_what_no_hardware_can_do_is_named(tmp_path: Path) -> None:
    gemm(tmp_path, [2.0, 20.0])  # 33.6 MB of weights take 7 us at 4.8 TB/s
    ((_, what),) = quality(tmp_path, against=[]).anomalies
    assert what.startswith("1 of 2 rows are faster than the data sheet allows")


def test_wide_spread_and_kernels_outside_a_graph_are_named(tmp_path: Path) -> None:
    spread = {"p10_us": [8.0, 15.0], "p90_us": [16.0, 30.0], "samples": [10, 10]}
    gemm(tmp_path, [10.0, 20.0], "mm (not captured)", **spread)
    found = [what for _, what in quality(tmp_path, against=[]).anomalies]
    assert found == [
        "some kernels could not be captured in a graph: their times include launches",
        "timings spread by 100% from p10 to p90",
    ]


@pytest.mark.medium
def test_the_page_is_one_file_and_the_same_every_time(measured: Path) -> None:
    html = table_html(measured)
    assert html == table_html(measured)
    for text in ("Kernel timings of NVIDIA H200", "gemm bf16", "Points measured again", "Against h200", "Provenance"):
        assert text in html
    assert "src=" not in html.replace('rel="icon"', "")
    assert html.count("<svg") >= 6


@pytest.mark.medium
def test_the_page_of_shipped_tables_says_that_nothing_was_repeated() -> None:
    from servesim.cost import KernelTables

    html = table_html(KernelTables.load("a100").folder, against=[])
    assert "The source does not repeat its measurements." in html
    assert len(html) < 2_000_000


def test_tables_of_an_unknown_gpu_need_its_name(tmp_path: Path) -> None:
    gemm(tmp_path / "x", [10.0])
    write_table(tmp_path / "x" / "gemm.parquet", {"op": ["norm"], "dtype": ["bf16"], "time_us": [3.0], "m": [1]}, {})
    with pytest.raises(UserError, match="add --gpu"):
        quality(tmp_path / "x")
    with pytest.raises(UserError, match="contains no kernel tables"):
        quality(tmp_path)
