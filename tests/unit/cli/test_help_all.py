"""`--help` of every command fits a screen, and `--help-all` lists every option."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import typer

from servesim.cli import app as cli
from servesim.cli import others
from servesim.cli.help import first_sentence, with_help_all
from tests.docs.test_documents import unknown
from tests.unit.cli.test_output import commands

LINES, COLUMNS = 45, 80
COMMANDS = commands(typer.main.get_command(cli.app))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what a command line prints, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # else `python -m pytest` is named as the program

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["servesim", *words])
        assert cli._guarded() == 0
        return capsys.readouterr().out

    return call


def rows(text: str) -> int:
    """Rows of a terminal that a text takes, in which a long line takes several."""
    return sum(max(1, -(-len(line) // COLUMNS)) for line in text.splitlines())


def options(text: str) -> set[str]:
    """Names of the options that a help lists."""
    return set(re.findall(r"^  (--?[^ ,]+)", text, re.M))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=str)
def test_help_fits_a_screen_and_the_whole_help_names_every_option(
    path: tuple[str, ...], command: Any, shown: Any
) -> None:
    short, whole = shown(*path, "--help"), shown(*path, "--help-all")
    assert rows(short) <= LINES
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden:
            assert re.search(rf"(?<![\w-]){re.escape(param.opts[0])}(?![\w-])", whole), param.opts
    assert options(short) <= options(whole)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=str)
def test_what_help_says_of_an_option_the_whole_help_says_too(path: tuple[str, ...], command: Any, shown: Any) -> None:
    short, whole = shown(*path, "--help"), shown(*path, "--help-all")
    if "--help-all" not in short:
        assert short == whole
        return
    told = " ".join(whole.split())
    body = short.partition("\n  Examples:")[0]
    for line in re.sub(r"\n {30,}", " ", body).splitlines():
        sentence = " ".join(line.partition(" [default")[0].split())
        assert sentence in told


@pytest.mark.parametrize("command", ["run", "compare", "sweep", "capacity", "worth", "explore", "play"])
def test_short_help_lists_what_most_people_use_and_where_the_rest_is(command: str, shown: Any) -> None:
    said = shown(command, "--help")
    for option in ("--trace", "--model", "--gpu", "--tp", "--requests", "--rate", "--slo", "--scheduler"):
        assert f"\n  {option}" in said
    examples = re.findall(r"^    (servesim \S+ .+)$", said, re.M)
    assert 2 <= len(examples) <= 4
    assert [example for example in examples if unknown(example) is not None] == []
    last = " ".join(said.split()).rpartition("`servesim ")[0]
    assert re.search(rf"`servesim {command} --help-all` lists all \d+ options by group; $", last)
    whole = shown(command, "--help-all")
    count = int(re.findall(r"lists all (\d+) options", said)[0])
    assert count == len(re.findall(r"^  -", whole, re.M))


def test_a_setting_without_the_mark_is_in_the_whole_help_alone(shown: Any) -> None:
    assert "--engine.block-size" not in options(shown("run", "--help"))
    assert "--engine.block-size" in options(shown("run", "--help-all"))


def test_a_first_sentence_keeps_the_default() -> None:
    assert (
        first_sentence("GPUs of a stage. Each holds a part. [default: 1; x>=1]")
        == "GPUs of a stage. [default: 1; x>=1]"
    )
    assert first_sentence("Limits, such as a:5. [default: 1]") == "Limits, such as a:5. [default: 1]"
    assert first_sentence("preset:NAME or synth:key=value,....") == "preset:NAME or synth:key=value,...."


def test_commands_and_groups_of_other_packages_have_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def add(groups: Mapping[str, typer.Typer]) -> None:
        theirs = typer.Typer(help="Theirs.")

        @theirs.command()
        @groups[""].command()
        def mine(much: int = typer.Option(1, help="Much of it.")) -> None:
            """Do mine."""

        groups[""].add_typer(theirs, name="theirs")

    entry = EntryPoint("theirs", "x:add", "servesim.commands")
    monkeypatch.setattr(others, "entry_points", lambda group: (entry,))
    monkeypatch.setattr(EntryPoint, "load", lambda self: add)
    root, calibrate = typer.Typer(rich_markup_mode=None), typer.Typer()
    others.add_commands({"": root, "calibrate": calibrate})
    with_help_all(root)
    group = typer.main.get_command(root)
    for words in (["mine"], ["theirs", "mine"]):
        assert group.main([*words, "--help-all"], standalone_mode=False) == 0
        assert "Much of it." in capsys.readouterr().out
    assert group.main(["theirs", "--help-all"], standalone_mode=False) == 0
    assert "Do mine." in capsys.readouterr().out


def test_a_shell_completes_it_where_it_shows_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_SERVESIM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setattr(sys, "argv", ["servesim"])
    for command, offered in (("run", ["--help", "--help-all"]), ("gpus", ["--help"])):
        monkeypatch.setenv("COMP_WORDS", f"servesim {command} --hel")
        with pytest.raises(SystemExit):
            cli._guarded()
        assert sorted(capsys.readouterr().out.split()) == offered
