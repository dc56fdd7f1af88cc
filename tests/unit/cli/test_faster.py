"""The note on the compiled build is said once, to a person, and keeps out of everything else."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from servesim.cli import faster


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    """Folder of caches of a person at a terminal, with a build that is not compiled."""
    monkeypatch.setattr(faster, "compiled", lambda: False)
    monkeypatch.setattr(faster, "editable", lambda: False)
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda stream: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_second_run_says_nothing(at_a_terminal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faster.tell_once()
    first = capsys.readouterr()
    faster.tell_once()
    assert "1.6x on Mooncake with eight replicas" in first.err
    assert "--no-binary servesim servesim" in first.err  # else pip takes a wheel and compiles nothing
    assert first.err.count("\n") == 1
    assert (first.out, capsys.readouterr().err) == ("", "")


def test_nothing_is_said_where_it_cannot_be_remembered(at_a_terminal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at_a_terminal.write_text("a file, so no folder can be made here")
    faster.tell_once()
    assert capsys.readouterr().err == ""


def test_a_pipe_is_told_nothing_and_leaves_no_file(
    at_a_terminal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda stream: False)
    faster.tell_once()
    assert capsys.readouterr().err == ""
    assert not at_a_terminal.exists()


def test_a_compiled_build_says_nothing(
    at_a_terminal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faster, "compiled", lambda: True)
    faster.tell_once()
    assert capsys.readouterr().err == ""


def test_an_editable_install_says_nothing(at_a_terminal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel in its place would not run the checkout."""
    monkeypatch.setattr(faster, "editable", lambda: True)
    faster.tell_once()
    assert not at_a_terminal.exists()


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ('{"url": "file:///checkout", "dir_info": {"editable": true}}', True),
        ('{"url": "file:///checkout", "dir_info": {}}', False),
        ('{"url": "https://host/servesim.whl", "archive_info": {}}', False),
        (None, False),
        ("{", False),
    ],
)
def test_an_editable_install_is_told_by_its_record(
    record: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faster, "distribution", lambda name: SimpleNamespace(read_text=lambda file: record))
    assert faster.editable() is expected
