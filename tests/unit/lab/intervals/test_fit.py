"""From the files of a score to statistics, and back to what they were made of."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from servesim.cli.app import app
from servesim.errors import UserError
from servesim.experiments.accuracy.files import CASE
from servesim.intervals.distance import kind_of
from servesim.intervals.fitted import Fitted
from servesim.versions import engine_facts
from servesim_lab.intervals.fit import Data, statistics
from servesim_lab.intervals.residuals import Measured, deployment_weights, read_measured

HEAD = (
    *("id", "engine", "version", "model", "gpu", "precision", "mode", "tp", "ep", "isl", "osl", "concurrency", "gpus"),
    *(f"{metric}_{what}" for metric in ("tpot", "ttft", "e2e") for what in ("measured_ms", "simulated_ms", "ratio")),
    *("extrapolated", "formula", "screened", "reason"),
    *(f"run_{name}" for name in CASE),
)
SERVER = {"engine": "trtllm", "version": "1.0", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100_sxm"}
LOAD = {"tp": "2", "ep": "1", "isl": "1024", "osl": "100", "concurrency": "8", "gpus": "2", "precision": "fp8"}
TIMES = {"tpot_simulated_ms": "10", "tpot_ratio": "0.5", "ttft_simulated_ms": "100", "ttft_ratio": "2"}
MORE = {"e2e_simulated_ms": "1090", "e2e_ratio": "1", "extrapolated": "0.1", "formula": "0.05"}
ROW = dict.fromkeys(HEAD, "") | SERVER | LOAD | TIMES | MORE


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEAD)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_residual_is_measured_over_simulated_and_labels_are_those_of_runs(tmp_path: Path) -> None:
    left_out = ({"screened": "copy"}, {"e2e_ratio": ""}, {"mode": "disagg"})
    (cell,) = read_measured([write(tmp_path / "cells.csv", [ROW, *(ROW | other for other in left_out)])])
    assert cell.residuals == pytest.approx({"tpot": math.log(2), "ttft": -math.log(2), "e2e": 0.0})
    case = cell.case
    assert (case.engine, case.model, case.gpu, case.precision) == ("tensorrt-llm", "llama-3.1-8b", "h100", "fp8")
    assert case.extrapolated == pytest.approx(0.15)
    assert cell.output_mean == pytest.approx(100.0)


def test_labels_are_those_of_the_run_that_answered_where_one_did(tmp_path: Path) -> None:
    """As `servesim run` would name that server: its version, format, expert parallelism and load decide its bars."""
    run = {"engine": "vllm", "version": "0.17.0", "model": "minimax-m2.5", "gpu": "h200", "precision": "fp8"}
    load = {"tp": "8", "ep": "8", "in_flight": "64.0", "prompt": "921.5"}
    row = ROW | {"version": "nightly-0123abc"} | {f"run_{name}": value for name, value in (run | load).items()}
    (cell,) = read_measured([write(tmp_path / "cells.csv", [row])])
    assert {name: getattr(cell.case, name) for name in run} == run
    assert (cell.case.tp, cell.case.ep, cell.case.in_flight, cell.case.prompt) == (8, 8, 64.0, 921.5)


@pytest.mark.parametrize(
    ("label", "known"),
    [
        ("nightly-0123abc", False),
        ("", False),
        ("{newest}", True),
        ("v{newest}", True),
        ("{short}", True),
        ("0.9.0", True),
    ],
)
def test_a_server_of_unknown_version_does_not_make_the_newest_one_known(
    label: str, known: bool, tmp_path: Path
) -> None:
    newest = engine_facts("vllm").version
    run = {"engine": "vllm", "version": "0.9.0" if label == "0.9.0" else newest, "model": "m", "gpu": "h200"}
    load = {"precision": "fp8", "tp": "8", "ep": "8", "in_flight": "64.0", "prompt": "921.5"}
    said = {"version": label.format(newest=newest, short=newest.removesuffix(".0"))}
    row = ROW | said | {f"run_{n}": value for n, value in (run | load).items()}
    data = Data.of(read_measured([write(tmp_path / "cells.csv", [row])]))
    assert statistics(data)["known"]["version"] == ([f"vllm {run['version']}"] if known else [])


def test_deployments_weigh_the_same(tmp_path: Path) -> None:
    rows = [ROW, ROW | {"concurrency": "16"}, ROW | {"tp": "4"}]
    cells: list[Measured] = read_measured([write(tmp_path / "cells.csv", rows)])
    assert deployment_weights(cells).tolist() == [0.5, 0.5, 1.0]


def test_servers_that_are_all_ten_percent_slower_give_bars_around_that(tmp_path: Path) -> None:
    rows = [
        ROW
        | {
            "tp": str(tp),
            "concurrency": str(c),
            "isl": str(1000 + c),
            **dict.fromkeys(("tpot_ratio", "ttft_ratio", "e2e_ratio"), ratio),
        }
        for tp in range(1, 41)
        for c, ratio in ((4, "0.8991"), (8, "0.9091"), (16, "0.9191"))
    ]
    out = tmp_path / "mine.json"
    path = write(tmp_path / "cells.csv", rows)
    found = CliRunner().invoke(app, ["calibrate", "intervals", str(path), "--out", str(out), "--date", "2026-01-01"])
    assert found.exit_code == 0, found.output
    assert "120 cells of 40 deployments" in found.output
    fitted = Fitted(json.loads(out.read_text()))
    assert sorted(fitted.document["kinds"]) == ["deployment", "server"]  # of one model none can be left out
    case = read_measured([path])[0].case
    kind, _ = kind_of(case, fitted.known)
    assert kind is not None
    factors = fitted.factors(case, kind, "tpot")
    assert 1.07 < factors.at(0.1) < 1.1 < factors.at(0.9) < 1.13
    other, why = fitted.kind_of(replace(case, model="opt-13b"))
    assert other is None
    assert "too few of these servers were measured" in why
    again = tmp_path / "again.json"
    CliRunner().invoke(app, ["calibrate", "intervals", str(path), "--out", str(again), "--date", "2026-01-01"])
    assert again.read_bytes() == out.read_bytes()


def test_eight_deployments_are_too_few(tmp_path: Path) -> None:
    rows = [ROW | {"tp": str(tp), "concurrency": str(c)} for tp in range(1, 9) for c in (1, 2)]
    path = write(tmp_path / "cells.csv", rows)
    found = CliRunner().invoke(app, ["calibrate", "intervals", str(path), "--out", str(tmp_path / "f.json")])
    assert isinstance(found.exception, UserError)
    assert "8 deployments are too few" in str(found.exception)


@pytest.mark.parametrize(
    ("rows", "words"),
    [([], "no cell is kept"), ([ROW | {"tpot_ratio": "x"}], "line 2"), ([ROW | {"tpot_ratio": "-1"}], "above 0")],
)
def test_files_that_hold_nothing_or_no_numbers_are_refused(
    tmp_path: Path, rows: list[dict[str, str]], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        read_measured([write(tmp_path / "cells.csv", rows)])


def test_a_score_of_an_older_version_is_refused_by_its_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "cells.csv", [ROW])
    old = path.read_text().replace(",run_engine", ",engine_of_run")
    path.write_text(old)
    with pytest.raises(UserError, match=r"no column run_engine: cells\.csv of this version's servesim accuracy"):
        read_measured([path])


def test_a_file_of_something_else_is_refused_by_its_columns(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="no column concurrency"):
        read_measured([tmp_path / "x.csv"])
