"""Presets of serving systems: complete, documented, and under what the user says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from servesim.contracts import build_params, kv_allocators, schedulers
from servesim.errors import UserError
from servesim.run.presets import engine_presets
from servesim.run.scenario import Scenario
from servesim.run.setting_names import override
from servesim.run.simulate import simulate

ROOT = Path(__file__).resolve().parents[3]
BASE = {"trace": "preset:azure-conv-2023", "model": "llama-3.1-8b", "gpu": "h200"}


@pytest.mark.parametrize("name", engine_presets())
def test_each_preset_names_policies_and_parameters_that_exist(name: str) -> None:
    scenario = Scenario.of({**BASE, "preset": name})
    for registry, settings in ((schedulers, scenario.scheduler), (kv_allocators, scenario.kv)):
        values = {key: value for key, value in settings.items() if key != "name"}
        build_params(name, registry.resolve(settings["name"])[0].Params, values)  # type: ignore[attr-defined]


def test_the_page_on_engines_and_the_help_name_every_preset() -> None:
    page = (ROOT / "docs" / "engines.md").read_text()
    code = (ROOT / "servesim" / "run" / "scenario.py").read_text()
    for name, preset in engine_presets().items():
        assert f"| `{name}` |" in page
        assert name in code
        assert f"`{preset['settings']['scheduler']['name']}" in page


def techniques() -> list[tuple[str, list[str], str]]:
    """The table of techniques: (technique, settings, test)."""
    page = (ROOT / "docs" / "engines.md").read_text().partition("## Techniques by name")[2]
    rows = [line.strip("|\n ").split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    return [(row[0], re.findall(r"`([a-z_.]+=[^`]+)`", row[1]), row[4].strip("` ")) for row in rows]


@pytest.mark.medium
@pytest.mark.parametrize(("technique", "settings", "test"), techniques())
def test_every_technique_of_the_page_can_be_set_and_names_its_test(
    technique: str, settings: list[str], test: str
) -> None:
    known = ("any config.json with", "any config.json that", "part of the decode kernels")
    page = (ROOT / "docs" / "engines.md").read_text()
    assert settings or any(f"| {technique} | {words}" in page for words in known)
    base = {"trace": "synth:prompt=64,output=8", "requests": 3, "model": "llama-3.1-8b", "gpu": "h200"}
    for setting in settings:
        done = simulate(override({**base, "engine": {"ignore_memory": True}}, [setting]))
        assert done.summary["requests"]["completed"] == 3, setting
    defined = f"def {test}("
    assert any(defined in path.read_text() for path in (ROOT / "tests").rglob("test_*.py")), test


def test_the_table_of_techniques_is_read() -> None:
    named = {technique for technique, _, _ in techniques()}
    assert {"PagedAttention", "RadixAttention", "MLA", "NF4", "FlashDecoding", "pipeline parallelism"} <= named


def test_exllamav2_sets_the_longest_output_aside_and_nobody_is_preempted() -> None:
    """Four pages of 256 tokens. A request of 300 + 200 tokens takes two, so that the third one waits; mlx lets all
    three in, whose 900 tokens grow to 1,500, and one gives way."""

    def run(preset: str, blocks: int, mode: str = "fast") -> Any:
        engine = {"num_gpu_blocks": 1 + blocks, "max_model_len": 512}
        return simulate(
            trace="synth:prompt=300,output=200",
            rate="inf",
            requests=3,
            model="llama-3.1-8b",
            gpu="h100",
            host="none",
            preset=preset,
            engine=engine,
            mode=mode,
            check=True,
        )

    reserved, shared = run("exllamav2", 4), run("mlx", 64)
    assert reserved.steps["decode_count"].max() == 2
    assert shared.steps["decode_count"].max() == 3
    assert reserved.requests.equals(run("exllamav2", 4, "reference").requests)
    assert reserved.requests["num_preemptions"].sum() == 0 < shared.requests["num_preemptions"].sum()


def test_mlx_runs_on_apple_s_chip_by_formula() -> None:
    """A step reads 16.06 GB of weights (the embedding aside) at 0.8 of 800 GB/s: 23 ms and more."""
    done = simulate(
        trace="synth:prompt=64,output=32", requests=1, model="llama-3.1-8b", gpu="m2-ultra", preset="mlx", host="none"
    )
    assert done.summary["cost_shares"]["roofline"] == 1.0
    assert 23 < done.summary["latency_ms"]["tpot"]["mean"] < 28


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


@pytest.mark.parametrize(
    ("settings", "kv_dtype"),
    [
        ({"dtype": "fp8"}, "fp8"),
        ({"dtype": "fp8", "kv_dtype": "bf16"}, "bf16"),
        ({"dtype": "bf16"}, "bf16"),
        ({"dtype": "fp8", "model": "deepseek-v3"}, "bf16"),
        ({"dtype": "fp8", "preset": "vllm"}, "bf16"),
    ],
)
def test_tensorrt_llm_keeps_fp8_keys_beside_fp8_weights_of_dense_models(
    settings: dict[str, str], kv_dtype: str
) -> None:
    assert Scenario.of({**BASE, "preset": "tensorrt-llm", **settings}).kv_dtype == kv_dtype


@pytest.mark.parametrize(
    ("preset", "lists"), [("tgi", ["warnings"]), ("mlx", ["warnings"]), ("tensorrt-llm", ["notes"]), ("sglang", [])]
)
def test_rules_known_from_documentation_alone_are_said_to_be(preset: str, lists: list[str]) -> None:
    """A warning, or a note where kernels and host terms of the engine were measured."""
    given = {"trace": "synth:prompt=64,output=4", "requests": 2, "model": "llama-3.1-8b", "gpu": "h100"}
    summary = simulate(**given, preset=preset).summary
    assert [name for name in ("warnings", "notes") if "documentation alone" in str(summary[name])] == lists
