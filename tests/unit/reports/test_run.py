"""The page of one run: self-contained, told in words too, the same for the same inputs, true to the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import servesim
from servesim.cli.app import app
from servesim.reports.figures.gantt import window_of
from servesim.reports.priced import price_steps
from servesim.reports.report import report
from servesim.reports.run import Run
from tests.support.pages import assert_sound

SETTINGS: dict[str, Any] = {
    "trace": "synth:rate=60,prompt=lognormal(p50=300,p95=900),output=lognormal(p50=30,p95=90)",
    "requests": 150,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "replicas": 2,
    "slo": "ttft:50,tpot:5",
    "engine": {"num_gpu_blocks": 160, "max_model_len": 2000},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "run"
    servesim.simulate(**SETTINGS, out=out)
    return out


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return report(folder)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return Run(servesim.Result.load(folder))


@pytest.mark.medium
def test_the_page_is_self_contained_and_told_in_words_too(html: str) -> None:
    assert_sound(html, figures=10)


@pytest.mark.medium
def test_same_result_same_bytes(folder: Path, html: str, tmp_path: Path) -> None:
    assert report(folder) == html
    servesim.simulate(folder / "scenario.yaml", out=tmp_path / "again")
    assert report(tmp_path / "again") == html


@pytest.mark.medium
def test_what_users_name_is_text_and_not_markup(tmp_path: Path) -> None:
    trace = tmp_path / "<b>x.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,3\n0.1,20,4\n")
    servesim.simulate(trace=str(trace), model="llama-3.2-1b", gpu="h200", out=tmp_path / "out")
    html = report(tmp_path / "out")
    assert "<b>x.csv" not in html
    assert "&lt;b&gt;x.csv" in html


@pytest.mark.medium
def test_a_run_with_drafts_shows_what_became_of_them(tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": "llama-3.1-8b", "requests": 40, "engine": {}, "speculation": "eagle3:k=3"}
    figures = servesim.simulate(**settings, out=tmp_path / "run").summary["speculation"]
    html = report(tmp_path / "run")
    assert_sound(html, figures=12)
    assert "Acceptance by position" in html
    assert f"of {figures['draft_tokens']:,} draft tokens accepted" in html
    priced = price_steps(Run(servesim.Result.load(tmp_path / "run")))
    assert priced.recorded == pytest.approx(1.0, abs=0.02)
    assert priced.operators()["drafting"] > 0


def test_a_run_that_completes_nothing_still_has_a_page(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5000,3\n")
    servesim.simulate(
        trace=str(trace), model="llama-3.2-1b", gpu="h200", engine={"max_model_len": 100}, out=tmp_path / "out"
    )
    html = report(tmp_path / "out")
    assert "1 rejected:" in html
    assert "nothing completed" in html


def test_series_hold_what_the_records_hold(run: Run) -> None:
    widths = np.diff(run.edges)
    steps, requests = run.steps, run.requests
    sequences = (steps["decode_count"] + steps["prefill_pieces"]) * steps["elapsed_ns"]
    assert (run.batch * widths).sum() == pytest.approx(sequences.sum())
    waits = (requests["scheduled_ns"] - requests["arrival_ns"])[run.done]
    assert 0 < len(waits) < len(run.done)
    assert (run.waiting * widths).sum() == pytest.approx(waits.sum())
    span = run.end_ns - run.begin_ns
    assert run.memory["used"].mean() == pytest.approx(
        run.summary["kv"]["used_share"] * run.summary["duration_s"] * 1e9 / span
    )
    assert run.preempted.sum() == run.summary["engine"]["preemptions"] > 0


def test_operators_account_for_the_gpu_time_of_the_steps(run: Run) -> None:
    priced = price_steps(run)
    assert priced.recorded == pytest.approx(1.0, abs=0.02)
    by_operator = sum(priced.operators().values())
    assert by_operator == pytest.approx(run.steps["elapsed_ns"].sum(), rel=0.02)
    assert {kind for kind, _, _ in priced.points} == set(priced.kinds) == {"prefill", "mixed", "decode"}


def test_the_chart_of_requests_shows_the_longest_wait(run: Run) -> None:
    begin, end = window_of(run)
    worst = int(np.nanargmax(run.requests["ttft_ns"]))
    assert begin <= (run.requests["arrival_ns"][worst] - run.begin_ns) / 1e9 <= end


@pytest.mark.medium
def test_the_command_line_writes_the_page_beside_the_result(tmp_path: Path) -> None:
    arguments = ["--trace", "synth:rate=20,prompt=100,output=10", "--requests", "20", "--model", "llama-3.2-1b"]
    out = str(tmp_path / "result")
    runner = CliRunner()
    assert runner.invoke(app, ["run", *arguments, "--gpu", "h200", "--out", out]).exit_code == 0
    page = tmp_path / "result" / "report.html"
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert runner.invoke(app, ["report", out, "-o", str(tmp_path / "other.html")]).exit_code == 0
    assert (tmp_path / "other.html").read_bytes() == page.read_bytes()
    assert runner.invoke(app, ["run", *arguments, "--gpu", "h200", "--out", out, "--no-report"]).exit_code == 0
    assert not page.exists()


@pytest.mark.parametrize("window", ["1", "a:b", "3:2", "-1:2", "0:inf"])
def test_a_window_that_is_none_is_refused(folder: Path, window: str) -> None:
    with pytest.raises(servesim.UserError, match="--window"):
        CliRunner().invoke(
            app, ["report", str(folder), "--window", window], catch_exceptions=False, standalone_mode=False
        )
