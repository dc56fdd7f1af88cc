"""Commands of clusters, of the explorer and of what measures refuse nonsense: code 2, one line, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

import servesim.cli.app
from tests.support.hostile_surfaces import COMMANDS, wrong


def test_there_are_hundreds_and_none_twice() -> None:
    assert servesim.cli.app.app
    assert sum(map(len, COMMANDS.values())) > 400
    assert all(len(set(commands)) == len(commands) for commands in COMMANDS.values())


@pytest.mark.slow
@pytest.mark.parametrize("surface", COMMANDS)
def test_each_is_refused_in_one_line_and_leaves_nothing(surface: str, tmp_path: Path) -> None:
    for number, hostile in enumerate(COMMANDS[surface]):
        told, _, _ = wrong(hostile, tmp_path / str(number))
        assert not told, (number, hostile)
