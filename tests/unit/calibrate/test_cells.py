"""Host terms from serving cells: what is read, how it is halved, and that terms are found again."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from servesim.calibrate import cells as of_cells
from servesim.calibrate.cells import COLUMNS, Cell, errors, fit_cells, halves, main, read_cells, simulated
from servesim.cost.host import HostTerms
from servesim.errors import UserError

ROW = dict.fromkeys(COLUMNS, "") | {
    "backend": "trtllm",
    "mode": "agg",
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "system": "h100_sxm",
    "isl": "1024",
    "osl": "128",
    "gemm_quant_mode": "bfloat16",
    "batch_size": "16",
    "tp_size": "2",
    "silicon_ttft_ms": "50.5",
    "silicon_tpot_ms": "5.25",
    "silicon_data_source": "a; silicon_concurrency=8",
}
CELL = Cell(("llama-3.1-8b", "h100", "bf16", 1, 1), "", 512, 32, 4, 1.0, 1.0)


def written(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, COLUMNS)
        out.writeheader()
        out.writerows([{**ROW, **row} for row in rows])
    return path


def test_cells_are_those_of_the_engine_the_source_and_the_gpus(tmp_path: Path) -> None:
    path = written(
        tmp_path / "cells.csv",
        {},
        {"silicon_data_source": "b", "gemm_quant_mode": "fp8", "moe_ep_size": "2.0"},
        {"backend": "vllm"},
        {"mode": "disagg"},
        {"system": "b200_sxm"},
        {"model_path": "x/unknown"},
    )
    one, other = read_cells(path, "tensorrt-llm")
    assert one == Cell(("llama-3.1-8b", "h100", "bf16", 2, 1), "", 1024, 128, 8, 50.5, 5.25)
    assert other == replace(one, deployment=("llama-3.1-8b", "h100", "fp8", 2, 2), concurrency=16)
    assert read_cells(path, "tensorrt-llm", "b") == [other]
    with pytest.raises(UserError, match="no aggregated cell of sglang"):
        read_cells(path, "sglang")


def test_halves_do_not_share_a_deployment() -> None:
    cells = [replace(CELL, deployment=(*CELL.deployment[:3], tp, 1), concurrency=c) for tp in (1, 2, 4) for c in (4, 8)]
    fitted, judged = halves(cells)
    assert [cell.deployment[3] for cell in fitted] == [1, 1, 4, 4]
    assert [cell.deployment[3] for cell in judged] == [2, 2]


def test_a_file_that_is_none_or_lacks_a_column_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cells.csv").write_text("id,backend\n")
    for name, line in (("none.csv", "No such file"), ("cells.csv", "column 'backend_version' is missing")):
        assert main([str(tmp_path / name), "vllm", "--out", str(tmp_path / "out.yaml")]) == 2
        assert line in capsys.readouterr().err


def test_the_line_through_most_points_ignores_one_that_is_off() -> None:
    slope, constant = of_cells._line([4, 8, 16, 32, 64], [1.4, 1.8, 2.6, 40.0, 7.4])
    assert (slope, constant) == (pytest.approx(0.1), pytest.approx(1.0))
    assert of_cells._line([4, 4], [3.0, 5.0]) == (0.0, 4.0)


@pytest.mark.medium
def test_terms_that_cells_were_made_with_are_found_again(tmp_path: Path) -> None:
    base = HostTerms(engine="tensorrt-llm 1.2.0")
    true = replace(base, exposed=1e6, exposed_per_sampled=2e4, front_in=2e7)
    made = []
    for concurrency in (2, 4, 8, 12):
        cell = replace(CELL, concurrency=concurrency)
        ttft, tpot = simulated(cell, "tensorrt-llm", true, tmp_path)
        made.append(replace(cell, ttft_ms=ttft, tpot_ms=tpot))
    found = fit_cells(made, "tensorrt-llm", base, tmp_path)
    left = errors(made, "tensorrt-llm", found, tmp_path)
    before = errors(made, "tensorrt-llm", base, tmp_path)
    assert max(left["tpot_percent"], left["ttft_percent"]) < 5.0 < min(before["tpot_percent"], before["ttft_percent"])
    assert found.front_in == pytest.approx(true.front_in, rel=0.2)
