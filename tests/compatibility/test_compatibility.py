"""Scenarios and results that released versions wrote are read by today's code (docs/stability.md)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from servesim import simulate
from servesim.cli.app import app
from tests.support.compatibility import SCENARIOS, STORED, kinds, main, missing, released

CASES = sorted(path.parent for path in STORED.glob("*/*/given.yaml"))
pytestmark = pytest.mark.feature("*")


def names(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def called(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_first_release_is_stored_whole() -> None:
    assert {path.name for path in CASES if path.parent.name == "0.1.0"} == set(SCENARIOS)


@pytest.mark.medium
@pytest.mark.parametrize("case", CASES, ids=names)
def test_a_scenario_of_a_release_runs_and_its_summary_has_every_key_with_the_same_kind(case: Path) -> None:
    old = read(case / "result" / "summary.json")
    given = yaml.safe_load((case / "given.yaml").read_text(encoding="utf-8"))
    assert missing(old, json.loads(json.dumps(simulate(given).summary, default=str))) == []


@pytest.mark.medium
@pytest.mark.parametrize("case", CASES, ids=names)
def test_the_scenario_that_a_release_wrote_runs_and_its_tables_have_every_column(case: Path, tmp_path: Path) -> None:
    called("run", case / "result" / "scenario.yaml", "--no-report", "--out", tmp_path / "now")
    for table in sorted((case / "result").glob("*.parquet")):
        old, new = pd.read_parquet(table), pd.read_parquet(tmp_path / "now" / table.name)
        assert [name for name in old.columns if name not in new.columns] == []
        assert [n for n in old.columns if old[n].dtype.kind != new[n].dtype.kind and old[n].notna().any()] == []


@pytest.mark.medium
@pytest.mark.parametrize("case", CASES, ids=names)
def test_a_result_of_a_release_is_reported_explained_and_exported(case: Path, tmp_path: Path) -> None:
    result = shutil.copytree(case / "result", tmp_path / "result")
    called("report", result)
    assert (result / "report.html").stat().st_size > 10_000
    assert "0" in called("why", result, "0")
    called("export", result, "--to", "markdown", "-o", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text(encoding="utf-8")


@pytest.mark.medium
def test_a_scenario_that_a_release_wrote_is_compared() -> None:
    scenario = STORED / "0.1.0" / "plain" / "result" / "scenario.yaml"
    said = called("compare", scenario, "--scheduler", "vllm,sarathi", "--replicates", "2", "--jobs", "1")
    assert "sarathi" in said
    assert "ttft" in said.lower()


def test_a_key_that_goes_or_changes_its_kind_is_found() -> None:
    old = {"a": {"b": 1, "c": None, "d": "x"}, "e": True}
    assert missing(old, {"a": {"b": 2.5, "c": 3, "d": None, "new": 1}, "e": False}) == []
    gone = ["a.d is gone", "a.b was number, is text", "e was flag, is number"]
    assert missing(old, {"a": {"b": "1", "c": 3}, "e": 1}) == gone
    assert dict(kinds(old))["a.c"] == "null"


def test_which_files_a_runs_tables_have_is_no_key() -> None:
    old, new = ({"kernel_tables": {"name": "h100", "sha256": {file: "0"}}} for file in ("gemm.parquet", "moe.parquet"))
    assert missing(old, new) == []
    assert missing(old, {"kernel_tables": {"name": "h100"}}) == ["kernel_tables.sha256 is gone"]


def test_files_of_a_released_version_are_not_written_again(tmp_path: Path) -> None:
    log = tmp_path / "CHANGELOG.md"
    log.write_text("# Changelog\n\n## [0.1.0] - 2026-11-26\n", encoding="utf-8")
    kept = tmp_path / "0.1.0"
    kept.mkdir()
    (kept / "kept").touch()
    with pytest.raises(SystemExit, match="is released"):
        main(["--store", "--to", str(kept), "--changelog", str(log)])
    assert (kept / "kept").exists()
    assert not released("0.1.0", "## [Unreleased]\n\n## [0.1.0]\n")
