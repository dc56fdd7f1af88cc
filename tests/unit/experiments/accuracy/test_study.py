"""A score from end to end on cells that take no time: the command, its files and its page."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from servesim.cli.app import _guarded, main
from servesim.cli.schema import schema_of
from servesim.errors import UserError
from servesim.experiments.accuracy import answers, study
from servesim.experiments.accuracy.answers import Answer
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.reading import read
from servesim.experiments.accuracy.recipes import output_mean
from servesim.experiments.accuracy.study import Scored, accuracy, groups
from servesim.experiments.documents import plain
from servesim.reports.accuracy_page import KINDS, _decisions
from tests.support.cells import cell, row, table


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def servesim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run the command line in this process."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr("sys.argv", ["servesim", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        return Done(int(stopped.value.code or 0), printed.out, printed.err)

    return run


OTHER = "source_file=x.csv; silicon_concurrency="


def rows() -> list[dict[str, Any]]:
    """Two sizes at 2 and 8 clients a GPU, a copy, and one that cannot be answered."""
    sizes = [(1, 2, 6.5), (1, 8, 7.5), (2, 4, 4.5), (2, 16, 5.5)]
    found = [
        row(id=f"tp{tp} c{c}", tp_size=tp, silicon_data_source=f"{OTHER}{c}", silicon_tpot_ms=t, silicon_ttft_ms=15 + c)
        for tp, c, t in sizes
    ]
    return [*found, {**found[0], "id": "copy"}, row(id="new", system="mi300x")]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table(tmp_path_factory.mktemp("measured") / "cells.csv", rows())


def test_a_cell_is_simulated_and_compared(measured: Path) -> None:
    scored, document = accuracy(measured, date="2026-11-22")
    first = scored[0]
    assert first.answer.tpot_ms is not None
    assert first.ratios is not None
    assert first.ratios[0] == pytest.approx(first.answer.tpot_ms / 6.5)
    length = (25 + 32) / 2 - 1  # uniform(25, 32) asked for
    assert output_mean(first.cell) == pytest.approx(0.9 * 32)
    assert first.measured[2] == pytest.approx(17 + (0.9 * 32 - 1) * 6.5)
    assert abs(length - output_mean(first.cell)) < 1.5
    assert [one.screened for one in scored] == ["", "", "", "", "copy", ""]
    assert scored[-1].answer.reason == "GPU mi300x"
    pytest.importorskip("jsonschema").validate(plain(document), schema_of("accuracy"))
    whole = document["scores"][0]
    assert (document["cells"], document["kept"], whole["cells"], whole["answered"]) == (6, 5, 5, 4)
    assert document["unscreened"]["answered"] == 5
    assert document["not_answered"] == [{"reason": "GPU mi300x", "cells": 1}]
    assert document["decisions"]["sizes"]["pairs"] == 2
    assert 0.5 < first.ratios[0] < 2.0


def test_a_recorded_run_is_replayed_request_by_request(tmp_path: Path) -> None:
    header = "send_time_us,first_chunk_time_us,last_chunk_time_us,server_input_tokens,output_tokens\n"
    lines = "".join(f"{at},{at + 20_000},{at + 90_000},{100 + i},11\n" for i, at in enumerate(range(0, 10**6, 10**5)))
    (tmp_path / "run.csv").write_text(header + lines)
    server = {"vllm_version": "0.23.0", "model": "meta-llama/Llama-3.1-8B", "gpu": "H100 SXM", "num_gpu_blocks": 900}
    (tmp_path / "server_config.json").write_text(json.dumps(server))
    (found,), document = accuracy(tmp_path)
    assert found.answer.reason == ""
    assert found.measured[:2] == pytest.approx((7.0, 20.0))
    assert found.ratios is not None
    assert 0.5 < found.ratios[0] < 2.0
    assert found.answer.extrapolated is not None
    assert document["scores"][0]["answered"] == 1


def test_processes_and_order_change_nothing(measured: Path) -> None:
    alone, several = (accuracy(measured, jobs=jobs, limit=3, date="x") for jobs in (1, 2))
    assert alone == several


def test_groups_cover_every_cell_once_a_dimension() -> None:
    answered = Answer(20.0, 7.0, 0.04, 0.1)
    scored = [Scored(cell(concurrency=c), "", answered) for c in (1, 8, 9, 32, 33, 500)]
    by: dict[str, dict[str, int]] = {}
    for dimension, name, cells in groups(scored):
        by.setdefault(dimension, {})[name] = len(cells)
    assert by["concurrency"] == {"C 1 to 8": 2, "C 9 to 32": 2, "C 33 to 128": 1, "C 129 and more": 1}
    assert by["share extrapolated"] == {"up to 5 % extrapolated": 6}
    assert all(sum(parts.values()) == 6 for parts in by.values())


def test_an_option_holds_ttft_before_tpot_both_measured_and_simulated() -> None:
    option = study._option(Scored(cell(ttft_ms=20.0, tpot_ms=7.0), "", Answer(tpot_ms=8.0, ttft_ms=30.0)))
    assert (option.measured, option.simulated) == ((20.0, 7.0), (30.0, 8.0))


def test_cells_without_an_answer_stand_in_no_band_of_extrapolation() -> None:
    found = [d for d, *_ in groups([Scored(cell(), "", Answer(reason="GPU x"))])]
    assert "share extrapolated" not in found
    assert "engine" in found


def test_a_failure_of_one_cell_is_its_own(monkeypatch: pytest.MonkeyPatch, measured: Path) -> None:
    from servesim.experiments.accuracy import answers

    def broken(settings: dict[str, Any]) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(answers, "simulate", broken)
    scored, document = accuracy(measured, limit=1)
    assert scored[0].answer.reason == "ZeroDivisionError: a bug"
    assert document["scores"][0]["answered"] == 0


@pytest.mark.parametrize(
    ("only", "told"),
    [({"engin": ["x"]}, 'cells have no field "engin".*engine'), ({"engine": ["sglang"]}, "none of 6 cells")],
)
def test_wrong_selections_are_one_line(measured: Path, only: dict[str, list[str]], told: str) -> None:
    with pytest.raises(UserError, match=told):
        accuracy(measured, only=only)


def test_cells_something_was_fitted_to_are_left_out_with_their_copies(measured: Path, tmp_path: Path) -> None:
    fitted = table(tmp_path / "fitted.csv", rows()[:1])
    scored, document = accuracy(measured, without=[fitted], only={"tp": ["1"]})
    assert [one.cell.id for one in scored] == ["tp1 c8", "new"]
    assert [file["name"] for file in document["without"]] == ["fitted.csv"]


def test_a_selection_by_part_of_a_model_or_a_whole_number(measured: Path) -> None:
    cells = read([measured])
    assert study._asked(cells[0], {"model": ["llama-3.1"], "gpu": ["H100"], "tp": ["1", "4"]})
    assert not study._asked(cells[0], {"tp": ["2"]})
    assert not study._asked(cells[3], {"concurrency": ["1"]}), "16 is not 1"


def test_the_command_writes_cells_a_summary_and_a_page(
    measured: Path, tmp_path: Path, servesim: Callable[..., Done]
) -> None:
    for name in ("one", "two"):
        done = servesim("accuracy", str(measured), "--out", str(tmp_path / name), "--date", "2026-11-22", "--jobs", "1")
        assert done.code == 0, done.err
    assert "6 cells, 5 after screening; 2026-11-22" in done.out
    assert "left out: 1: copy" in done.out
    assert re.search(r"^\[6/6\] vllm 0.18.0 .* mi300x tp1 128/32 C=4: not answered: GPU mi300x$", done.err, re.M)
    assert [line[:6] for line in done.err.splitlines()] == [f"[{i}/6] " for i in range(1, 7)]
    files = sorted(path.name for path in (tmp_path / "one").iterdir() if path.is_file())
    assert files == ["cells.csv", "report.html", "summary.json"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    lines = list(csv.DictReader((tmp_path / "one" / "cells.csv").read_text().splitlines()))
    assert [line["screened"] for line in lines] == ["", "", "", "", "copy", ""]
    assert float(lines[0]["tpot_ratio"]) == pytest.approx(
        float(lines[0]["tpot_simulated_ms"]) / float(lines[0]["tpot_measured_ms"]), rel=1e-5
    )
    assert lines[-1]["tpot_ratio"] == ""
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["date"] == "2026-11-22"
    page = (tmp_path / "one" / "report.html").read_text()
    assert "2026-11-22" in page
    assert "GPU mi300x" in page
    mean = json.loads((tmp_path / "one" / "summary.json").read_text())["scores"][0]["over_cells"]["tpot"]["mape"][
        "value"
    ]
    assert re.search(rf"\d of \d cells are answered; on average, TPOT is {100 * mean:.1f} % off, TTFT", page)
    again = servesim("report", str(tmp_path / "one"), "-o", str(tmp_path / "again.html"))
    assert again.code == 0
    assert (tmp_path / "again.html").read_text() == page


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupted_score_keeps_its_answers_and_the_same_command_continues(
    jobs: str,
    measured: Path,
    tmp_path: Path,
    servesim: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    score, ends = tmp_path / "score", ("--date", "2026-11-22", "--jobs")
    whole = servesim("accuracy", str(measured), "--out", str(tmp_path / "whole"), *ends, "1")
    line = ("accuracy", str(measured), "--out", str(score), *ends)
    shown: list[int] = []

    def cut_off(number: int, *_: object) -> None:
        shown.append(number)
        if number == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("servesim.cli.accuracy.tell", cut_off)
        patch.setattr("sys.argv", ["servesim", *line, jobs])
        assert (_guarded(), shown) == (130, [1, 2, 3])
    said = capsys.readouterr().err
    assert said == (
        f"interrupted: no score was written; {score} contains the answers so far; run the command again to continue\n"
    )
    kept = len(list((score / "runs" / "cells").iterdir()))
    assert kept >= 3
    computed: list[str] = []
    real = answers.answer

    def counted(cell: Cell, changes: Any) -> Answer:
        computed.append(cell.id)
        return real(cell, changes)

    monkeypatch.setattr(answers, "answer", counted)
    again = servesim(*line, "1")
    assert (again.code, again.err) == (0, whole.err)
    assert len(computed) <= 6 - kept
    for name in ("cells.csv", "summary.json", "report.html"):
        assert (score / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    computed.clear()
    assert servesim(*line, "1", "--set", "engine.num_gpu_blocks=4000").code == 0
    assert len(computed) == 6, "other settings have other answers"


def test_a_folder_of_something_else_is_not_written_into(
    measured: Path, tmp_path: Path, servesim: Callable[..., Done]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = servesim("accuracy", str(measured), "--out", str(tmp_path))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "is not a servesim score (it contains notes.txt)" in done.err


def test_a_damaged_score_is_one_line(tmp_path: Path, servesim: Callable[..., Done]) -> None:
    (tmp_path / "cells.csv").write_text("id\n")
    (tmp_path / "summary.json").write_text("{}")
    done = servesim("report", str(tmp_path))
    assert (done.code, "damaged" in done.err) == (2, True)


def test_the_older_name_of_left_out_is_kept(servesim: Callable[..., Done]) -> None:
    assert "Former name of left-out" in servesim("calibrate", "accuracy", "--help").out
    assert "left-out" in servesim("calibrate", "--help").out
    assert " accuracy " not in servesim("calibrate", "--help").out


def test_choices_are_lines_beside_the_naive_rule_and_the_ceiling_where_there_are_any() -> None:
    share = {"value": 0.25, "low": None, "high": None}
    names = ("near", "far", "broken", "declined")
    choices = {"choices": 8, "naive": {"near": 0.5}, "ceiling": None, **dict.fromkeys(names, share)}
    found: dict[str, Any] = {**{kind: {"pairs": 0, "misses": []} for kind in KINDS}, "choices": choices}
    (table,) = [block.content for block in _decisions(found) if block.kind == "table"]
    assert [row[1:] for row in table.rows] == [
        ("8", "25.0 %", "50.0 %", "–"), *[("8", "25.0 %", "0.0 %", "–")] * 3
    ]  # fmt: skip
    assert not [b for b in _decisions({**found, "choices": {**choices, "choices": 0}}) if b.kind == "table"]
