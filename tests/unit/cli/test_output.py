"""What commands print: whole, wherever it goes, and nothing of it taken for markup; files are not written over."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from servesim.cli import app as cli
from servesim.cli.run import RUN_EXAMPLES
from servesim.errors import UserError
from servesim.reports.export import FORMATS, export
from servesim.reports.files import refuse_foreign, writing
from servesim.run.simulate import simulate

SMALL: dict[str, Any] = {"trace": "synth:rate=20,prompt=30,output=3", "requests": 5, "model": "llama-3.2-1b"}
SMALL["gpu"] = "h200"


def commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every command, by how it is called."""
    inner = getattr(command, "commands", {})
    return [(path, command), *(found for name in inner for found in commands(inner[name], (*path, name)))]


@pytest.mark.medium
@pytest.mark.parametrize(("path", "command"), commands(typer.main.get_command(cli.app)), ids=str)
def test_help_says_all_it_has_to_say(
    path: tuple[str, ...], command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["servesim", *path, "--help-all"])
    assert cli._guarded() == 0
    printed = "".join(capsys.readouterr().out.split())
    for text in (command.help, command.epilog, *(parameter.help for parameter in command.params)):
        assert "".join((text or "").replace("\b", "").split()) in printed


def test_commands_are_listed_with_whole_sentences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, command in commands(typer.main.get_command(cli.app)):
        if getattr(command, "commands", None):
            monkeypatch.setattr(sys, "argv", ["servesim", *path])
            assert cli._guarded() == 0
            listed = capsys.readouterr().out.partition("\nCommands:\n")[2].partition("\n\n")[0].splitlines()
            shown = [name for name, each in command.commands.items() if not each.hidden]
            assert [line.split()[0] for line in listed] == shown
            assert [line for line in listed if not line.endswith((".", "?")) or line.endswith("...")] == []


def test_examples_are_printed_as_they_are_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["servesim", "run", "--help-all"])
    assert cli._guarded() == 0
    examples = [line for line in RUN_EXAMPLES.splitlines() if line.startswith("  servesim")]
    assert len(examples) > 3
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line.strip() for line in examples if line.strip() not in printed] == []


def printed(folder: Path, *arguments: str, columns: str | None = None) -> str:
    """What a command writes into a pipe."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    environment |= {"COLUMNS": columns} if columns else {}
    command = [sys.executable, "-m", "servesim", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment)
    return done.stdout


OPTIONS = [word for key, value in SMALL.items() for word in (f"--{key}", str(value))]


@pytest.mark.medium
def test_in_a_pipe_nothing_is_wrapped_or_left_out(tmp_path: Path) -> None:
    summary = simulate(SMALL).summary
    notes = [f"{kind[:-1]}: {text}" for kind in ("warnings", "notes") for text in summary[kind]]
    assert max(map(len, notes)) > 80
    lines = printed(tmp_path, "run", *OPTIONS, "-v").splitlines()
    assert [note for note in notes if note not in lines] == []
    axes = ["--scheduler", "vllm:max_num_seqs=64,max_num_batched_tokens=4096,policy=priority,static", "--rate", "2,3"]
    swept = printed(tmp_path, "sweep", *OPTIONS, *axes, "--jobs", "1")
    assert "no room" not in swept
    for row in ("vllm:max_num_seqs=64,max_num_batched_tokens=4096,policy=priority", "static"):
        assert len([line for line in swept.splitlines() if line.startswith(row)]) == 2


@pytest.mark.medium
def test_columns_set_the_width_of_a_pipe(tmp_path: Path) -> None:
    lines = printed(tmp_path, "run", *OPTIONS, columns="70").splitlines()
    assert 60 < max(map(len, lines)) <= 70


@pytest.mark.medium
def test_names_are_printed_as_they_are(tmp_path: Path) -> None:
    name = "t[bold]:star:[x].csv"
    (tmp_path / name).write_text("arrival_ns,prompt_len,output_len\n0,30,3\n9,30,3\n")
    options = [name if word == SMALL["trace"] else word for word in OPTIONS if word not in ("--requests", "5")]
    ran, inspected = printed(tmp_path, "run", *options, "--out", "r[red]"), printed(tmp_path, "trace", "inspect", name)
    assert [name.removesuffix(".csv") in said.splitlines()[0] for said in (ran, inspected)] == [True, True]
    assert "written to r[red]" in ran
    policy = "p[red].py"
    (tmp_path / policy).write_text("from servesim.policies.scheduling.vllm import Vllm as Mine\n")
    swept = printed(tmp_path, "sweep", *options, "--scheduler", f"{policy}:Mine,vllm", "--jobs", "1")
    assert f"{policy}:Mine" in swept


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result directory."""
    folder = tmp_path_factory.mktemp("result") / "r"
    simulate(SMALL, out=folder)
    return folder


@pytest.mark.parametrize("to", [*FORMATS, "perfetto.gz"])
def test_an_export_replaces_its_like_and_nothing_else(to: str, result: Path, tmp_path: Path) -> None:
    kind, _, packed = to.partition(".")
    out = tmp_path / f"x.{packed or 'out'}"
    export(result, kind, out)
    whole = out.read_bytes()
    export(result, kind, out)
    assert out.read_bytes() == whole
    mine = b"my thesis, which speaks of servesim\n"
    for content in (mine, gzip.compress(mine), b'{"date": "20250101-000000", "backend": "vllm"}'):
        out.write_bytes(content)
        with pytest.raises(UserError, match="exists and was not written by servesim"):
            export(result, kind, out)
        assert out.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.medium
def test_pages_and_figures_replace_their_like_and_nothing_else(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, name in (("roofline", "page.html"), ("roofline", "figure.svg"), ("report", "run.html")):
        out = tmp_path / name
        monkeypatch.setattr(sys, "argv", ["servesim", command, str(result), "--out", str(out)])
        assert cli._guarded() == 0
        assert cli._guarded() == 0
        out.write_text("<!DOCTYPE html>mine, about servesim")
        capsys.readouterr()
        assert cli._guarded() == 2
        assert capsys.readouterr().err == f"error: --out {out}: exists and was not written by servesim\n"
        assert out.read_text() == "<!DOCTYPE html>mine, about servesim"


def test_a_file_may_be_new_or_empty_but_no_folder_and_no_link(tmp_path: Path) -> None:
    refuse_foreign(tmp_path / "new")
    (tmp_path / "empty").touch()
    refuse_foreign(tmp_path / "empty")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for path, told in ((tmp_path, "is not a regular file"), (tmp_path / "link", "symbolic link")):
        with pytest.raises(UserError, match=told):
            refuse_foreign(path)


def _cut_off(path: Path) -> None:
    with writing(path) as file:
        file.write("half")
        file.flush()
        raise KeyboardInterrupt


def test_an_interrupt_leaves_the_file_that_was_there_and_no_other(tmp_path: Path) -> None:
    for name in ("x.json", "x.json.gz"):
        (tmp_path / name).write_text("whole")
        with pytest.raises(KeyboardInterrupt):
            _cut_off(tmp_path / name)
        assert (tmp_path / name).read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.json.gz"]
