"""Pages of comparisons, sweeps and capacity questions: sound, reproducible, true to their documents."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import servesim
from servesim.cli.app import app
from servesim.experiments import sweep
from servesim.experiments.knee import knee
from servesim.reports.experiment import amount, change
from servesim.reports.export import export
from servesim.reports.figures.load import Curve, against_load
from servesim.reports.report import report
from servesim.reports.words import gpu_of, name_of
from tests.support.pages import assert_sound

TRACE = "synth:arrivals=poisson,rate=20,prompt=lognormal(p50=300,p95=900),output=lognormal(p50=20,p95=60)"
COMMON = ["--trace", TRACE, "--requests", "60", "--model", "llama-3.2-1b", "--gpu", "h100", "--jobs", "1"]
QUESTIONS = {
    "compare": ["--scheduler", "vllm,vllm:max_num_seqs=2", "--slo", "ttft:200,tpot:20", "--replicates", "3"],
    "sweep": ["--scheduler", "vllm,vllm:max_num_seqs=1", "--rate", "5,20,60", "--replicates", "1"],
    "capacity": ["--slo", "ttft:100,tpot:20", "--tolerance", "0.5", "--replicates", "2"],
}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory a command has written, its report included."""
    root = tmp_path_factory.mktemp("experiments")

    def made(command: str) -> Path:
        out = root / command
        if not out.exists():
            arguments = [command, *COMMON, *QUESTIONS[command], "--out", str(out), "--json"]
            CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
        return out

    return made


@pytest.mark.medium
@pytest.mark.parametrize(("command", "figures"), [("compare", 4), ("sweep", 3), ("capacity", 1)])
def test_every_command_leaves_a_page_of_its_own(command: str, figures: int, experiment: Callable[[str], Path]) -> None:
    out = experiment(command)
    html = (out / "report.html").read_text()
    assert_sound(html, figures)
    assert report(out) == html


def test_a_comparison_shows_every_verdict_with_its_interval(experiment: Callable[[str], Path]) -> None:
    out = experiment("compare")
    html = unescape((out / "report.html").read_text())
    document = json.loads((out / "comparison.json").read_text())
    for sentence in document["headline"]:
        assert sentence in html
    for row in document["rows"]:
        assert amount(row["value"], row["unit"] if row["unit"] in ("ms", "$", "share") else "") in html
        if row["change"] is not None:
            assert change(row["change"], row["scale"], row["unit"]) in html
    for variant in document["variants"]:
        for address in variant["cells"]:
            assert address in html


def test_a_sweep_shows_every_combination_and_its_failures(experiment: Callable[[str], Path], tmp_path: Path) -> None:
    out = shutil.copytree(experiment("sweep"), tmp_path / "sweep")
    document = json.loads((out / "sweep.json").read_text())
    failed = document["variants"][0]
    failed |= {"status": "failed", "error": "the model <does> not fit", "values": {}, "cells": [None]}
    document["warnings"] += sweep._notes([failed])
    (out / "sweep.json").write_text(json.dumps(document))
    html = report(out)
    assert_sound(html, figures=3)
    assert f"{failed['label']} failed:" in html
    assert "the model &lt;does&gt; not fit" in html
    for variant in document["variants"]:
        assert variant["label"] in html


def test_a_comparison_says_above_what_its_variants_share(experiment: Callable[[str], Path]) -> None:
    html = report(experiment("compare"))
    chips = re.findall(r"<li><span>([^<]*)</span> ([^<]*)</li>", html)
    assert {("weights", "bf16"), ("tensor parallel", "1"), ("limits", "TTFT ≤ 200 ms, TPOT ≤ 20 ms")} <= set(chips)


def test_limits_of_latencies_are_drawn_under_load_unless_far_above() -> None:
    metrics = [{"name": name, "unit": "ms", "latency": True} for name in ("ttft_p99", "tpot_mean", "e2el_p99")]
    values = {"ttft_p99": [10.0, 40.0], "tpot_mean": [5.0, 6.0], "e2el_p99": [100.0, 900.0]}
    curve = Curve("a", "blue", [1.0, 2.0], values, [True, True])
    drawing = against_load([curve], metrics, {"ttft": 120.0, "tpot": 18.1})  # 3 times the highest, and above it
    assert str(drawing.svg).count("stroke-dasharray") == 2  # on the wide drawing and on the narrow one
    assert drawing.caption.endswith("Dashed: the limit.")
    assert "Dashed" not in against_load([curve], metrics).caption


def test_a_capacity_page_says_what_is_carried_and_between_what(experiment: Callable[[str], Path]) -> None:
    out = experiment("capacity")
    html = (out / "report.html").read_text()
    (row,) = json.loads((out / "capacity.json").read_text())["rows"]
    for key in ("rate", "rate_low", "rate_high"):
        if row[key] is not None:
            assert amount(row[key], "") in html


@pytest.mark.medium
@pytest.mark.parametrize("command", QUESTIONS)
def test_markdown_of_an_experiment_has_its_tables(
    command: str, experiment: Callable[[str], Path], tmp_path: Path
) -> None:
    export(experiment(command), "markdown", tmp_path / "comment.md")
    text = (tmp_path / "comment.md").read_text()
    assert text.startswith("### ")
    assert "<small>" not in text
    assert text.count("<details>") == text.count("</details>") > 0
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    assert len(widths) >= 3
    with pytest.raises(servesim.UserError, match="contains an experiment"):
        export(experiment(command), "perfetto", tmp_path / "trace.json")


@pytest.mark.parametrize("text", ["{", "{}", "[]"])
def test_a_damaged_document_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(servesim.UserError, match=r"sweep\.json: damaged"):
        report(tmp_path)


def test_a_document_of_an_older_version_is_not_called_damaged(
    experiment: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "old"
    shutil.copytree(experiment("sweep"), out)
    document = json.loads((out / "sweep.json").read_text())
    del document["answer"], document["warnings"]
    (out / "sweep.json").write_text(json.dumps(document))
    with pytest.raises(servesim.UserError, match=r"sweep\.json: damaged: answer, warnings missing from it"):
        report(out)
    for path in out.glob("cells/*/summary.json"):
        path.write_text(path.read_text().replace(f'"servesim": "{servesim.__version__}"', '"servesim": "0.0.9"'))
    with pytest.raises(
        servesim.UserError, match=r"old: stored by an older version, servesim 0\.0\.9, without answer, w"
    ):
        report(out)


Points = list[Any]


@pytest.mark.parametrize(
    ("rates", "values", "stable", "expected"),
    [
        ([1, 2, 3, 4], [10, 10, 10, 100], [True] * 4, 3),  # flat, then a wall: the last flat point
        ([1, 2, 3, 4], [10, 10, 10, 100], [True, True, False, False], 2),  # a knee is a place to run at
        ([1, 2, 3, 4], [10, 20, 30, 40], [True] * 4, None),  # straight
        ([1, 2, 3, 4], [10, 70, 90, 100], [True] * 4, None),  # bends the other way
        ([1, 2, 3], [10, None, 100], [True] * 3, None),  # too little is known
        ([1, 2, 8], [10, 12, 100], [True] * 3, 2),  # (2 - 1) / 7 = 0.143 of the way, 2 / 90 = 0.022 of the rise
    ],
)
def test_the_knee_is_the_stable_point_farthest_below_the_chord(
    rates: Points, values: Points, stable: Points, expected: float | None
) -> None:
    assert knee(rates, values, stable) == expected


def test_changes_and_amounts_read_as_people_write_them() -> None:
    assert change(-0.0764, "ratio", "ms") == "−7.6 %"
    assert change(2.237, "ratio", "ms") == "+224 %"
    assert change(0.112, "difference", "share") == "+11.2 points"
    assert change(-0.3333, "difference", "requests/s") == "−0.333"
    assert amount(1234.5, "ms") == "1.23 s"
    assert amount(0.0304, "$") == "$0.0304"
    assert amount(0.998, "share") == "99.8 %"
    assert amount(None, "ms") == "–"
    assert [name_of(n) for n in ("llama-3.1-8b", "/m/my-model/config.json", "gpus/B300.yaml", "hf/Qwen")] == [
        "llama-3.1-8b", "my-model", "B300", "Qwen"
    ]  # fmt: skip
    assert [gpu_of(n) for n in ("h200", "a/b300x.yaml")] == ["H200", "b300x"]
