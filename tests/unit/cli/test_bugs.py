"""A bug is a traceback and a line that says so; what a user did to a file is one line."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.cli.app import main
from servesim.errors import UserError
from servesim.reports import report as page
from servesim.run.provenance import as_written, refuse_older

SETTINGS = {"trace": "synth:rate=5,prompt=20,output=4", "requests": 3, "model": "llama-3.2-1b", "gpu": "h200"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    servesim.simulate(**SETTINGS, out=tmp_path / "r")
    return tmp_path / "r"


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["servesim", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_a_figure_that_was_changed_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert as_written(folder, "timing.json")
    summary = json.loads((folder / "summary.json").read_text())
    summary["cost_shares"]["extrapolated"] = "x"
    (folder / "summary.json").write_text(json.dumps(summary))
    assert not as_written(folder, "timing.json")
    assert ended(monkeypatch, "report", str(folder)) == 2
    told = capsys.readouterr().err.splitlines()
    assert (len(told), told[0].startswith(f"error: {folder}: damaged result: ")) == (1, True)


def test_a_part_that_an_older_version_did_not_write_is_not_called_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    del summary["warnings"]
    summary["provenance"]["versions"]["servesim"] = "0.0.9"
    (folder / "summary.json").write_text(json.dumps(summary))
    assert ended(monkeypatch, "report", str(folder)) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"error: {folder}: stored by an older version, servesim 0.0.9, ")
    assert "damaged" not in told


@pytest.mark.parametrize(("stored", "older"), [("0.0.9", True), ("0.0.10", True), ("99.1", False), ("x", False)])
def test_versions_are_compared_as_numbers(stored: str, older: bool, folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    summary["provenance"]["versions"]["servesim"] = stored
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match="older version") if older else nullcontext():
        refuse_older(folder, ["warnings"])
    refuse_older(folder, [])


@pytest.mark.parametrize("error", [TypeError, KeyError, ValueError, ZeroDivisionError, RuntimeError])
def test_a_bug_in_the_page_of_a_sound_result_is_a_traceback_and_who_to_tell(
    error: type[Exception], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> str:
        raise error("of ours")

    monkeypatch.setattr(page, "report", broken)
    assert ended(monkeypatch, "report", str(folder)) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert f"{error.__name__}: " in told[-2]
    assert told[-1].startswith("error: a bug in servesim ")


@pytest.mark.parametrize("timing", ["{}", "[]", '{"sha256": []}', '{"sha256": {"gone.json": "0"}}', "{"])
def test_a_result_that_says_nothing_of_its_files_is_not_taken_for_sound(timing: str, folder: Path) -> None:
    (folder / "timing.json").write_text(timing)
    assert not as_written(folder, "timing.json")
