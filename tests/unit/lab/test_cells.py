"""Host terms from serving cells: what is read, how it is halved, and that terms are found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from servesim.cost.host import HostTerms
from servesim.errors import UserError
from servesim_lab import cells as of_cells
from servesim_lab.cells import errors, fit_cells, halves, main, read_cells, simulated, spread
from tests.support.cells import cell

COLUMNS = (
    "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,batch_size,"
    "tp_size,silicon_ttft_ms,silicon_tpot_ms"
)
ROW = "0,{source},{backend},1.2.0,{model},{gpu},bf16,{mode},1024,128,bfloat16,16,2,50.5,5.25"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def written(path: Path, *rows: dict[str, str]) -> Path:
    made = {"source": "a", "backend": "trtllm", "model": LLAMA, "gpu": "h100_sxm", "mode": "agg"}
    path.write_text("\n".join([COLUMNS, *(ROW.format(**{**made, **row}) for row in rows)]) + "\n")
    return path


def test_cells_are_those_of_the_engine_the_source_and_the_gpus(tmp_path: Path) -> None:
    others = [{"backend": "vllm"}, {"mode": "disagg"}, {"gpu": "b200_sxm"}, {"model": "x/unknown"}]
    path = written(tmp_path / "cells.csv", {}, {"source": "b"}, *others)
    assert [(found.model, found.tp, found.source) for found in read_cells(path, "trtllm")] == [
        (LLAMA, 2, "a"),
        (LLAMA, 2, "b"),
    ]
    assert [found.source for found in read_cells(path, "trtllm", "b")] == ["b"]
    with pytest.raises(UserError, match="no aggregated cell of sglang"):
        read_cells(path, "sglang")


def test_halves_do_not_share_a_deployment() -> None:
    cells = [cell(tp=tp, concurrency=c) for tp in (1, 2, 4) for c in (4, 8)]
    fitted, judged = halves(cells)
    assert [found.tp for found in fitted] == [1, 1, 4, 4]
    assert [found.tp for found in judged] == [2, 2]


def test_a_sample_is_spread_over_deployments_and_clients() -> None:
    cells = [cell(tp=tp, concurrency=c) for tp in (1, 2) for c in (4, 8, 16, 32)]
    assert [(found.tp, found.concurrency) for found in spread(cells, 4)] == [(1, 4), (1, 16), (2, 4), (2, 16)]
    assert spread(cells, 100) == cells


def test_a_file_that_is_none_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.csv"), "vllm", "--out", str(tmp_path / "out.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_cell_far_off_counts_as_far_as_the_worst() -> None:
    assert of_cells._size(100.0) == of_cells._size(0.01) == pytest.approx(1.0986, abs=1e-4)
    assert of_cells._size(0.5) == pytest.approx(0.6931, abs=1e-4)


@pytest.mark.medium
def test_terms_that_cells_were_made_with_are_found_again(tmp_path: Path) -> None:
    base = HostTerms(engine="tensorrt-llm 1.2.0")
    true = replace(base, **{name: 1.3 * begin for name, begin in of_cells.TERMS.items()})  # type: ignore[arg-type]
    made = []
    for concurrency in (2, 6):
        one = cell(engine="trtllm", model=LLAMA, weights="", isl=512, osl=32, concurrency=concurrency)
        ttft, tpot = simulated(one, true, tmp_path)
        made.append(replace(one, ttft_ms=ttft, tpot_ms=tpot))
    found = fit_cells(made, base, tmp_path)
    left, before = errors(made, found, tmp_path), errors(made, base, tmp_path)
    assert max(left["tpot_percent"], left["ttft_percent"]) < 3.0
    assert left["misfit"] < 0.05 < 0.5 < before["misfit"]
