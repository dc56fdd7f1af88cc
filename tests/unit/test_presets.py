"""Presets of serving systems: complete, documented, and under what the user says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servesim.contracts import build_params, kv_allocators, schedulers
from servesim.errors import UserError
from servesim.presets import engine_presets
from servesim.scenario import Scenario, override

ROOT = Path(__file__).resolve().parents[2]
BASE = {"trace": "preset:azure-conv-2023", "model": "llama-3.1-8b", "gpu": "h200"}


@pytest.mark.parametrize("name", engine_presets())
def test_each_preset_names_policies_and_parameters_that_exist(name: str) -> None:
    scenario = Scenario.of({**BASE, "preset": name})
    for registry, settings in ((schedulers, scenario.scheduler), (kv_allocators, scenario.kv)):
        values = {key: value for key, value in settings.items() if key != "name"}
        build_params(name, registry.resolve(settings["name"])[0].Params, values)  # type: ignore[attr-defined]


def test_the_page_on_engines_and_the_help_name_every_preset() -> None:
    page = (ROOT / "docs" / "engines.md").read_text()
    code = (ROOT / "servesim" / "cli.py").read_text()
    for name, preset in engine_presets().items():
        assert f"| `{name}` |" in page
        assert name in code
        assert f"`{preset['settings']['scheduler']['name']}" in page


def test_what_the_user_says_stands_over_the_preset() -> None:
    def of(**settings: Any) -> Scenario:
        return Scenario.of({**BASE, "preset": "tgi", **settings})

    assert of().scheduler == {"name": "continuous", "reserve_output": True, "watermark": 0.0, "max_num_seqs": 128}
    assert of(scheduler="continuous:max_num_seqs=4").scheduler["reserve_output"] is True
    assert of(scheduler="continuous:max_num_seqs=4").scheduler["max_num_seqs"] == "4"
    assert of(scheduler="vllm").scheduler == {"name": "vllm"}
    assert of(engine={"block_size": 8}).engine.block_size == 8
    assert of(engine={"block_size": 8}).engine.async_scheduling is False


def test_single_parameters_are_set_on_the_presets_policy() -> None:
    settings = override({**BASE, "preset": "sglang"}, ["scheduler.schedule_policy=lpm"])
    assert Scenario.of(settings).scheduler == {"name": "sglang", "schedule_policy": "lpm"}


def test_a_resolved_scenario_carries_the_settings_and_means_the_same_again() -> None:
    once = Scenario.of({**BASE, "preset": "llama.cpp"})
    again = Scenario.of(once.model_dump())
    assert again == once
    assert once.kv["reservation"] == "max"


def test_unknown_presets_are_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match='did you mean "sglang"'):
        Scenario.of({**BASE, "preset": "sglan"})
