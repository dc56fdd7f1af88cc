"""Schedulers that follow an engine's source say at their head what they leave out of it, and why."""

from __future__ import annotations

import ast
import dataclasses
import re

import pytest

from servesim.contracts import schedulers
from tests.support.documents import ROOT

FOLDER = ROOT / "policies" / "scheduling"
ENGINES = sorted(
    path.stem
    for path in FOLDER.glob("[!_]*.py")
    if re.search(r"\(\d+\.[\d.]+: [\w/]+\.py", path.read_text(encoding="utf-8").partition("\n")[0])
)
"""Schedulers whose first line names a version of an engine and a file of its source."""
REASONS = ("no trace: ", "no decision: ", "elsewhere: ", "differs")


def rows_of(name: str) -> list[list[str]]:
    """The cells of the table under "Left out", row by row."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    _, heading, table = text.partition("\nLeft out ")
    assert heading, f"{name} does not say what it leaves out"
    _, rule, rows = table.partition("\n|---|---|\n")
    assert rule, f"{name}: no table"
    return [line.strip("| ").split(" | ") for line in rows.strip().splitlines()]


def test_schedulers_that_follow_an_engine_are_found() -> None:
    assert {"vllm", "sglang", "transformers"} <= {*ENGINES}


@pytest.mark.parametrize("name", ENGINES)
def test_each_thing_left_out_stands_once_with_a_reason_of_a_known_kind(name: str) -> None:
    rows = rows_of(name)
    assert rows
    assert [row for row in rows if len(row) != 2 or not row[1].startswith(REASONS)] == []
    assert len({what for what, _ in rows}) == len(rows)


@pytest.mark.feature("*")
@pytest.mark.parametrize("name", ENGINES)
def test_what_is_done_elsewhere_is_done_in_a_module_that_is_there(name: str) -> None:
    for what, why in rows_of(name):
        paths = re.findall(r"\w+(?:/\w+)+\.py", why)
        assert all((ROOT / path).is_file() for path in paths), f"{what}: {why}"
        assert bool(paths) is why.startswith("elsewhere: "), f"{what}: {why}"


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_that_a_parameter_sets_is_left_out(name: str) -> None:
    """A setting that is added takes its row out of the table."""
    cls, _ = schedulers.configured({"name": name})
    left_out = {word for what, _ in rows_of(name) for word in re.findall(r"`([\w-]+)`", what)}
    assert left_out & {field.name for field in dataclasses.fields(cls.Params)} == set()
