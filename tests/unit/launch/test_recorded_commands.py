"""Commands of servers in the field (commands.yaml) are read, and flags that are not modeled are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from servesim.launch import command
from servesim.run.serve_command import served

ROWS = yaml.safe_load((Path(__file__).parent / "commands.yaml").read_text(encoding="utf-8"))


def test_there_are_thirty_commands_of_three_engines_with_their_sources() -> None:
    presets = [served(row["command"]).settings["preset"].removesuffix("-v0") for row in ROWS]
    assert len(ROWS) >= 30
    assert all(row["source"].startswith("https://") for row in ROWS)
    assert {preset: presets.count(preset) >= 5 for preset in presets} == dict.fromkeys(
        ("vllm", "sglang", "tensorrt-llm"), True
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["source"].rpartition("://")[2])
def test_a_recorded_command_has_no_unknown_flags_but_those_listed(row: dict[str, Any]) -> None:
    names = [flag.lstrip("-").partition("=")[0].partition(" ")[0] for flag in served(row["command"]).unknown]
    assert sorted(names) == sorted(row.get("unknown", []))


@pytest.mark.feature("data_parallel")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["source"].rpartition("://")[2])
def test_a_recorded_command_is_written_with_the_same_settings(row: dict[str, Any]) -> None:
    settings = served(row["command"]).settings
    written = command(settings)
    again = served(written.text).settings
    sizes = ("tp", "pp", "dp", "ep")
    assert {key: again.get(key, 1) for key in sizes} == {key: settings.get(key, 1) for key in sizes}
    assert again["preset"] == settings["preset"]
    assert written.lost.get("model", again["model"]) == settings["model"]
    assert set(written.lost) <= {"replicas", "model"}
