"""Commands of other packages: added by entry point; those of the laboratory say where they are if it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from servesim.cli import others
from servesim.cli.others import LABORATORY, add_commands
from servesim.errors import UserError


def groups() -> dict[str, typer.Typer]:
    root, calibrate = typer.Typer(), typer.Typer()
    root.command("run")(lambda: None)
    calibrate.command("host")(lambda: None)
    root.add_typer(calibrate, name="calibrate")
    return {"": root, "calibrate": calibrate}


def theirs(found: Mapping[str, typer.Typer]) -> None:
    found["calibrate"].command("theirs")(lambda: typer.echo("served"))


@pytest.mark.parametrize("line", ["reproduce all --out x --jobs 2", "calibrate intervals a b --out c.json"])
def test_without_the_laboratory_its_commands_say_where_it_is(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "entry_points", lambda group: ())
    found = groups()
    add_commands(found)
    result = CliRunner().invoke(found[""], line.split())
    assert isinstance(result.exception, UserError)
    assert "\n" not in str(result.exception)
    assert "make run installs both" in str(result.exception)
    helped = CliRunner().invoke(found[""], ["--help"]).output
    assert LABORATORY["", "reproduce"] in helped


def test_another_package_adds_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("theirs", "tests.unit.cli.test_others:theirs", "servesim.commands")
    monkeypatch.setattr(others, "entry_points", lambda group: (entry,) if group == "servesim.commands" else ())
    found = groups()
    add_commands(found)
    assert CliRunner().invoke(found[""], ["calibrate", "theirs"]).output == "served\n"


def test_a_package_that_does_not_load_takes_no_other_command_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = EntryPoint("theirs", "tests.unit.cli.not_there:add", "servesim.commands")
    monkeypatch.setattr(others, "entry_points", lambda group: (entry,) if group == "servesim.commands" else ())
    found = groups()
    add_commands(found)
    assert capsys.readouterr().err.startswith(
        "note: cannot load the commands of tests.unit.cli.not_there:add: ModuleNotFoundError"
    )
    assert CliRunner().invoke(found[""], ["run"]).exit_code == 0


def test_the_laboratory_has_the_commands_that_are_said_to_be_its_own() -> None:
    from servesim_lab.commands import add

    found = groups()
    before = {group: len(app.registered_commands) for group, app in found.items()}
    add(found)
    names = {
        (group, each.name or each.callback.__name__)
        for group, app in found.items()
        for each in app.registered_commands[before[group] :]
        if each.callback is not None
    }
    assert names == {*LABORATORY}
