"""Scenarios: YAML, --set and keywords, and the one line that says what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servesim.contracts.section import policy_settings
from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.setting_names import load_settings, override

LEAST = {"trace": "preset:azure-conv-2023", "model": "llama-3.1-8b", "gpu": "h200"}


def test_a_scenario_survives_yaml(tmp_path: Path) -> None:
    scenario = Scenario.of({**LEAST, "scheduler": "vllm:max_num_seqs=64", "slo": "ttft:500", "rate": 2})
    path = tmp_path / "scenario.yaml"
    path.write_text(scenario.to_yaml())
    assert Scenario.of(load_settings(path)) == scenario


def test_numbers_that_yaml_takes_for_strings_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text("trace: x.csv\nmodel: llama-3.1-8b\ngpu: h200\nrate: 1e-3\n")
    settings = load_settings(path)
    assert settings["rate"] == "1e-3"
    assert Scenario.of(settings).rate == 0.001


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("vllm", {"name": "vllm"}),
        ("vllm:max_num_seqs=64,policy=priority", {"name": "vllm", "max_num_seqs": "64", "policy": "priority"}),
        ("mine.py:Fair", {"name": "mine.py:Fair"}),
        ("a/mine.py:Fair:share=0.5", {"name": "a/mine.py:Fair", "share": "0.5"}),
        ({"name": "vllm", "max_num_seqs": 64}, {"name": "vllm", "max_num_seqs": 64}),
    ],
)
def test_policies_are_names_with_parameters(spec: Any, settings: dict[str, Any]) -> None:
    assert policy_settings(spec) == settings


def test_set_reaches_into_sections_and_policies() -> None:
    changed = override(
        {**LEAST, "scheduler": "vllm:policy=priority"},
        ["scheduler.max_num_seqs=8", "kv.name=paged", "engine.block_size=32", "slo.tpot=50", "tp=2"],
    )
    scenario = Scenario.of(changed)
    assert scenario.scheduler == {"name": "vllm", "policy": "priority", "max_num_seqs": 8}
    assert scenario.kv == {"name": "paged"}
    assert (scenario.engine.block_size, scenario.slo, scenario.tp) == (32, {"tpot": 50.0}, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replica": 2}, "unknown key 'replica' (did you mean \"replicas\"?)"),
        ({"engine": {"blocksize": 8}}, "unknown key 'engine.blocksize' (did you mean \"block_size\"?)"),
        ({"engine": {"block_size": "many"}}, "engine.block_size is 'many'"),
        ({"engine": {"max_model_len": "long"}}, 'must be a whole number of tokens or "auto"'),
        ({"replicas": 0}, "replicas is 0: input should be greater than or equal to 1"),
        ({"tp": 10**400}, "tp is "),
        ({"pp": 1025}, "pp is 1025: input should be less than or equal to 1024"),
        ({"mode": "quick"}, "mode is 'quick': input should be 'fast' or 'reference'"),
        ({"gpu": None}, "gpu is None: input should be a valid string"),
        ({"slo": "ttfp:5"}, 'did you mean "ttft"?'),
        ({"scheduler": 7}, "a policy must be a name"),
        ({"scheduler": ":max_num_seqs=3"}, "a policy must be a name"),
        ({"engine": 3}, "engine is 3 but must be a mapping"),
    ],
)
def test_wrong_settings_are_named_on_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Scenario.of({**LEAST, **settings})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match="model is missing: a bundled one such as"):
        Scenario.of({"trace": "x.csv", "gpu": "h200"})


def test_a_misspelt_key_is_named_before_the_one_it_leaves_missing() -> None:
    with pytest.raises(UserError, match="unknown key 'gpus'"):
        Scenario.of({"trace": "x.csv", "model": "llama-3.1-8b", "gpus": "h200"})


@pytest.mark.parametrize(
    ("text", "message"),
    [("trace: [", "line 1"), ("- a\n- b\n", "not a mapping"), ("", "not a mapping"), (b"\xff\xfe\x00", "")],
)
def test_files_that_are_no_scenario_are_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        load_settings(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_scenario_file_and_bad_assignments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_settings(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="write key=value"):
        override({}, ["engine.block_size"])
    with pytest.raises(UserError, match="which has no settings of its own"):
        override(LEAST, ["trace.layers=3"])
