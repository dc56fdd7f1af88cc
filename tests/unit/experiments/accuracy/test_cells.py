"""Measured cells are read from tables, folders and benchmark files; what cannot be read is told in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servesim.errors import UserError
from servesim.experiments.accuracy import cells
from servesim.experiments.accuracy.cells import sample_file
from servesim.experiments.accuracy.reading import read
from tests.support.cells import COLUMNS, cell, row, table


def test_a_line_is_a_cell_whose_label_states_its_clients(tmp_path: Path) -> None:
    (found,) = read([table(tmp_path / "cells.csv", [row(batch_size=8)])])
    assert found == cell(source=row()["silicon_data_source"], batch=8)
    assert found.concurrency == 4, "the label's, not the batch size"


def test_without_a_stated_concurrency_the_batch_size_counts_and_the_image_names_the_version(tmp_path: Path) -> None:
    source = "source_file=x.csv; image=vllm/vllm-openai:v0.19.0"
    lines = [row(silicon_data_source=source, batch_size=8, backend_version="", moe_ep_size="0", pp_size="")]
    (found,) = read([table(tmp_path / "cells.csv", lines)])
    assert (found.concurrency, found.version, found.ep, found.pp) == (8, "v0.19.0", 1, 1)


def test_experts_over_more_gpus_than_attention_take_them_all() -> None:
    assert cell(tp=2, dp=0, moe_tp=4).gpus == 4
    assert cell(tp=2, dp=4, moe_tp=1, ep=8).gpus == 8
    assert cell(tp=4, pp=2).gpus == 8


def test_a_folder_gives_its_tables(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    table(tmp_path / "deep" / "one.csv", [row(id="x"), row(id="y")])
    table(tmp_path / "two.csv", [row(id="z")])
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert [one.id for one in read([tmp_path])] == ["x", "y", "z"]


def test_a_benchmark_file_is_a_cell_of_its_means(tmp_path: Path) -> None:
    record = {
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "completed": 2,
        "total_input_tokens": 200,
        "total_output_tokens": 20,
        "output_throughput": 100.0,
        "request_rate": "inf",
        "max_concurrency": 2,
        "mean_ttft_ms": 30.0,
        "mean_tpot_ms": 8.0,
    }
    (tmp_path / "bench.json").write_text(json.dumps(record))
    (tmp_path / "server_config.json").write_text(json.dumps({"vllm_version": "0.20.0", "gpu": "H100 SXM"}))
    (found,) = read([tmp_path])
    assert (found.engine, found.version, found.gpu) == ("vllm", "0.20.0", "h100")
    assert (found.isl, found.osl, found.concurrency) == (100, 10, 2)
    assert (found.ttft_ms, found.tpot_ms) == (30.0, 8.0)
    assert found.run is not None


def test_clients_of_an_open_loop_are_the_mean_in_flight(tmp_path: Path) -> None:
    sent, took = (0, 500_000, 1_000_000), 1_000_000  # 3 s of requests within 2 s
    header = "send_time_us,first_chunk_time_us,last_chunk_time_us,server_input_tokens,output_tokens\n"
    lines = "".join(f"{at},{at + 10_000},{at + took},100,11\n" for at in sent)
    (tmp_path / "run.csv").write_text(header + lines)
    (found,) = read([tmp_path])
    assert found.concurrency == 2  # 1.5, rounded to even
    assert found.ttft_ms == pytest.approx(10.0)
    assert found.tpot_ms == pytest.approx(99.0)


@pytest.mark.parametrize(
    ("change", "columns", "told"),
    [
        ({"isl": "long"}, COLUMNS, r"line 2: isl is 'long' but must be a number"),
        ({"silicon_tpot_ms": "nan"}, COLUMNS, r"line 2: silicon_tpot_ms is 'nan' but must be a number"),
        ({}, [name for name in COLUMNS if name not in ("mode", "osl")], r"no column mode, osl"),
    ],
)
def test_a_wrong_table_is_refused_by_line_or_column(
    tmp_path: Path, change: dict[str, str], columns: list[str], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        read([table(tmp_path / "cells.csv", [row(**change)], columns)])


def test_a_missing_path_and_a_missing_package_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no such folder"):
        read([tmp_path / "nowhere"])
    monkeypatch.setattr(cells, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "servesim\[silicon\]"'):
        sample_file()
