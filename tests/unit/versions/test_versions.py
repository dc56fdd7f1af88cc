"""Facts about engine versions: which entry holds, and what a scenario makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts.warn import Warn
from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.setting_names import override
from servesim.run.setup import set_up
from servesim.versions import engine_facts, engines, recorded_engine
from servesim.versions.table import _ABOUT, _holding, _table, parse_version

ENTRIES: list[dict[str, Any]] = [
    {"value": "now", "source": "a"},
    {"value": "since 2", "since": "0.2", "source": "b"},
    {"value": "before 1", "before": "0.1", "source": "c"},
    {"value": "h100 from 3 to 4", "since": "0.3", "before": "0.4", "gpus": ["h100"], "source": "d"},
]


@pytest.mark.parametrize(
    ("version", "gpu", "value"),
    [
        ("0.0.9", "h100", "before 1"),
        ("0.1", "h100", "now"),
        ("0.2.0", "h100", "since 2"),
        ("0.3.5", "h100", "h100 from 3 to 4"),
        ("0.3.5", "a100", "since 2"),
        ("0.4", "h100", "since 2"),
        ("0.10", "h100", "since 2"),
    ],
)
def test_the_entry_that_says_most_about_gpu_and_version_holds(version: str, gpu: str, value: str) -> None:
    found = _holding(ENTRIES, parse_version(version), gpu)
    assert found is not None
    assert found["value"] == value


def test_a_fact_without_an_entry_is_not_known() -> None:
    assert _holding(ENTRIES[3:], parse_version("0.3"), "a100") is None
    assert engine_facts("vllm", "0.23.0", "a100").get("mxfp4_experts", "unknown") == "unknown"


@pytest.mark.parametrize("engine", engines())
def test_every_entry_states_its_source_and_an_order_of_versions(engine: str) -> None:
    table = _table(engine)
    assert (table["engine"], parse_version(table["newest"]) > parse_version("0")) == (engine, True)
    for name, entries in table.items():
        for entry in entries if name not in _ABOUT else ():
            assert len(entry["source"]) > 10, name
            if "since" in entry and "before" in entry:
                assert parse_version(entry["since"]) < parse_version(entry["before"]), name


def test_a_recording_s_engine_is_looked_up_where_it_is_known() -> None:
    found = recorded_engine("vLLM 0.15.1", "h100")
    assert found is not None
    assert (found.get("gpu_memory_utilization"), found.get("symm_mem_all_reduce_mib")) == (0.9, {})
    assert recorded_engine("transformers 5.17", "h100") is None


def _scenario(**settings: Any) -> Scenario:
    return Scenario.of({"trace": "synth:n=3", "requests": 3, "model": "llama-3.1-8b", "gpu": "h100", **settings})


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize("preset", ["vllm", "sglang", "tensorrt-llm"])
def test_a_run_without_a_version_is_that_of_the_version_it_states(preset: str, gpu: str) -> None:
    plain = set_up(_scenario(preset=preset, gpu=gpu))
    stated = plain.scenario.engine.version
    assert stated == engine_facts(preset).version
    named = set_up(_scenario(preset=preset, gpu=gpu, engine={"version": stated}))
    assert named.scenario.host == plain.scenario.host
    assert named.provenance == plain.provenance  # kernel tables and host terms


def test_the_version_decides_what_the_scenario_leaves_open() -> None:
    newest, old = _scenario().engine, _scenario(engine={"version": "0.13.0"}).engine
    assert (newest.gpu_memory_utilization, newest.async_scheduling) == (0.92, True)
    assert (old.gpu_memory_utilization, old.async_scheduling) == (0.9, False)
    blocks = [set_up(_scenario(engine={"version": v})).deployment.num_blocks for v in ("0.15.1", "0.23.0")]
    assert blocks[0] < blocks[1]  # .9 of the memory and a sampler that sorts
    own = _scenario(engine={"version": "0.13.0", "gpu_memory_utilization": 0.8}).engine
    assert (own.gpu_memory_utilization, own.async_scheduling) == (0.8, False)
    sglang = _scenario(preset="sglang").engine
    assert (sglang.gpu_memory_utilization, sglang.async_scheduling) == (0.9, True)


def test_a_version_that_looks_like_a_number_stays_the_version_it_is() -> None:
    assert override({}, ["engine.version=0.30"]) == {"engine": {"version": "0.30"}}


def test_a_resolved_scenario_names_the_version_and_resolves_to_itself() -> None:
    resolved = set_up(_scenario()).scenario
    assert resolved.engine.version == engine_facts("vllm").version
    assert set_up(resolved).scenario == resolved
    assert set_up(_scenario(preset="orca")).scenario.engine.version is None


def test_terms_of_synchronous_steps_say_that_they_hold_sampling_by_top_p() -> None:
    """Those without an engine, which are chosen by name, do not say that another engine's are used."""

    def notes(version: str, **settings: Any) -> list[str]:
        found = set_up(_scenario(engine={"version": version}, **settings)).notes
        return [note for note in found if "host terms" in note]

    assert any("temperature 0 use --host vllm-0.12-greedy" in note for note in notes("0.12.0"))
    assert not any("temperature" in note for note in notes("0.15.1"))
    assert notes("0.12.0", host="vllm-0.12-greedy") == []


@pytest.mark.parametrize(
    ("preset", "used"),
    [
        ("vllm", "vllm 0.33.0, host terms those of vllm 0.23.0"),
        ("tensorrt-llm", "tensorrt-llm 1.4.0rc1, host terms those of tensorrt-llm 1.1.0rc2"),
    ],
)
def test_a_version_newer_than_all_known_is_a_warning_that_says_whose_constants_are_used(preset: str, used: str) -> None:
    said = set_up(_scenario(preset=preset, engine={"version": "99.0"})).notes
    (warning,) = (note for note in said if "newer than" in note)
    assert isinstance(warning, Warn)
    assert f"newer than every known version: settings and kernels are those of {used}." in warning


@pytest.mark.parametrize("version", ["0.33.0", "0.33", "0.33.0+cu128", "0.12.0"])
def test_a_build_of_a_known_version_is_not_newer_than_it(version: str) -> None:
    assert not engine_facts("vllm", version).beyond


def test_an_unmeasured_version_says_so() -> None:
    def notes(**settings: Any) -> str:
        return "\n".join(set_up(_scenario(**settings)).notes)

    assert "no host terms were measured for vllm 0.15.1, so the host terms of vllm 0.12.0 are used" in notes(
        engine={"version": "0.15.1"}
    )
    assert "no host terms were measured for sglang 0.5.23, so the host terms of sglang 0.5.6 are used" in notes(
        preset="sglang"
    )
    assert "host terms" not in notes(engine={"version": "0.23.0"})
    assert "no host terms were measured for vllm 0.33.0" in notes()
    assert "no host terms were measured for orca" in notes(preset="orca")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": {"version": "new"}}, "engine.version is 'new' but must be a version such as 0.23.0"),
        ({"engine": {"version": 0.3}}, "write it in quotes"),
        ({"preset": "orca", "engine": {"version": "1.0"}}, "no versions of orca are known"),
    ],
)
def test_a_wrong_version_is_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        _scenario(**settings)
    assert "\n" not in str(raised.value)
