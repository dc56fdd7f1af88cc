"""Words such as `none` and `auto` mean the same wherever a setting is given: on the command line, in a file, and in an
option of the same name of another command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from servesim.cli import app as cli
from servesim.errors import UserError
from servesim.run.part_names import sections_of
from servesim.run.scenario import Scenario
from servesim.run.sections import yaml_value
from servesim.run.setting_names import override
from tests.unit.cli.test_output import commands

BASE = {"trace": "synth:rate=1,n=1", "model": "llama-3.1-8b", "gpu": "h100"}
WORDS = ("none", "null", "auto", "off")
SECTIONS = sections_of(Scenario)
OTHERS: dict[tuple[str, ...], list[str]] = {
    ("size",): ["llama-3.1-8b", "--gpu", "h100"],
    ("roofline",): ["--model", "llama-3.1-8b", "--gpu", "h100"],
    ("trace", "inspect"): ["TRACE"],
    ("trace", "convert"): ["TRACE", "OUT", "--to", "azure"],
}
"""Words of a run of each command that takes settings of its own."""
NOT_RUN = {
    (): "the program's own version",
    ("accuracy",): "its seed is a number",
    ("measure",): "starts an engine",
    ("validate",): "reads recorded runs",
    ("engines",): "lists versions and GPUs",
    ("figures",): "lists figures",
    ("schema",): "writes a schema",
    ("lecture",): "shows one model and one GPU",
    ("calibrate",): "profiles a GPU, or reads its tables",
}
APART = {
    ("size", "tp"): "a list of what is compared",
    ("size", "gpu"): "a list of what is compared",
    ("roofline", "batch"): "a list of sizes of batches",
    ("trace", "requests"): "a number",
    ("trace", "sort"): "a switch without a value",
}
"""Options of the same name that take something else."""


def keys() -> Iterator[tuple[str, str]]:
    """Yield every setting as its section, or an empty string, and its name."""
    for name in Scenario.model_fields:
        yield from [(name, inner) for inner in SECTIONS[name].model_fields] if name in SECTIONS else [("", name)]


def meant(settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the whole scenario, or None if it is refused."""
    try:
        found: dict[str, Any] = Scenario.of(settings).model_dump()
    except UserError:
        return None
    return found


def test_a_word_means_the_same_in_a_file_and_on_the_command_line() -> None:
    differ = []
    for section, name in keys():
        for word in WORDS:
            key = f"{section}.{name}".lstrip(".")
            value = word if key == "engine.version" else yaml_value(key, word)
            inner = {name: value}
            if meant(override(BASE, [f"{key}={word}"])) != meant(BASE | ({section: inner} if section else inner)):
                differ.append(f"{key}={word}")
    assert differ == []


@pytest.mark.parametrize("section", ["", *SECTIONS])
def test_none_is_a_setting_that_is_not_given_where_that_is_the_default(section: str) -> None:
    model: Any = SECTIONS.get(section, Scenario)
    plain = meant(BASE)
    refused = []
    for name, field in model.model_fields.items():
        if field.default is None:
            for word in ("none", "null"):
                inner = {name: word}
                if meant(BASE | ({section: inner} if section else inner)) != plain:
                    refused.append(f"{name}={word}")
    assert refused == []


@pytest.mark.feature("handoff")
def test_none_for_prefill_and_decode_apart_is_one_pool_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    text = "model: llama-3.1-8b\ntrace: synth:rate=1,n=1\ngpu: h100\npd: none\nrequests: none\n"
    file.write_text(text, encoding="utf-8")
    assert accepted("run", str(file), "--no-versions") == ""


def test_every_option_of_run_takes_none_where_a_file_does() -> None:
    optional = [name for section, name in keys() if not section and Scenario.model_fields[name].default is None]
    words = [f"--{name.replace('_', '-')}" for name in optional]
    assert "--requests" in words
    run = ["run", "--trace", BASE["trace"], "--model", BASE["model"], "--gpu", BASE["gpu"], "--no-versions"]
    assert accepted(*run, *(part for word in words for part in (word, "none"))) == ""


def accepted(*words: str) -> str:
    """Return an empty string, or why a command line is refused."""
    result = CliRunner().invoke(cli.app, list(words))
    return "" if result.exit_code == 0 else f"{result.output} {result.exception}"


def shared() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the options of other commands that have the name of a setting, by command."""
    names = {name for _, name in keys()}
    for path, command in commands(typer.main.get_command(cli.app)):
        flags = {o[2:].replace("-", "_") for p in command.params for o in getattr(p, "opts", ()) if o.startswith("--")}
        if not {"slo", "kv_dtype"} <= flags:
            yield from ((path, name) for name in sorted(flags & names))


def test_every_command_with_an_option_named_as_a_setting_is_tried_or_has_a_reason() -> None:
    assert {path for path, _ in shared() if path not in OTHERS and path[:1] not in NOT_RUN} == set()


@pytest.mark.parametrize(
    ("path", "name"), [one for one in shared() if one[0] in OTHERS and (one[0][0], one[1]) not in APART]
)
def test_a_word_that_run_takes_is_taken_by_an_option_of_the_same_name(
    path: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,10,2\n", encoding="utf-8")
    option = f"--{name.replace('_', '-')}"
    for word in WORDS:
        run = accepted(
            "run", "--trace", str(trace), "--model", "llama-3.1-8b", "--gpu", "h100", "--no-versions", option, word
        )
        places = {"TRACE": str(trace), "OUT": str(tmp_path / f"{word}.csv")}
        if run == "":
            assert accepted(*path, *(places.get(one, one) for one in OTHERS[path]), option, word) == "", word
