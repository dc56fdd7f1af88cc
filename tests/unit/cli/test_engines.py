"""`servesim engines`."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from servesim.cli.app import app
from servesim.errors import UserError
from servesim.run.presets import engine_presets


def said(*words: str) -> str:
    result = CliRunner().invoke(app, ["engines", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_every_preset_is_listed_with_what_it_rests_on() -> None:
    lines = said().splitlines()
    assert [line.split()[0] for line in lines] == list(engine_presets())
    assert all("rests on" in line for line in lines)


def test_facts_are_those_of_the_version_and_state_their_source() -> None:
    old = said("vllm", "--version", "0.15.1")
    assert "gpu_memory_utilization: 0.9\n  vllm/config/cache.py" in old
    assert "gpu_memory_utilization: 0.92" in said("vllm")
    assert "priced like vllm" in said("orca")


def test_an_unknown_engine_or_version_is_refused() -> None:
    for words, message in (
        (["vlm"], "unknown engine 'vlm'"),
        (["orca", "--version", "1"], "no versions of orca are known"),
    ):
        with pytest.raises(UserError, match=message):
            said(*words)
