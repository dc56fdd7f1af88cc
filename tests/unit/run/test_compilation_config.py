"""Keys of vLLM's --compilation-config in a command that starts a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.serve_command import served

SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2"
FUSED, APART = {"fuse_allreduce_rms": True}, {"fuse_allreduce_rms": False}


def written(config: dict[str, Any]) -> str:
    return f"{SERVE} --compilation-config '{json.dumps(config)}'"


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        (written({"pass_config": {"fuse_allreduce_rms": True}}), FUSED),
        (written({"pass_config": {"fuse_allreduce_rms": False}, "cudagraph_mode": "FULL_AND_PIECEWISE"}), APART),
        (written({"pass_config": {"enable_fi_allreduce_fusion": True, "enable_noop": True}, "level": 3}), FUSED),
        (f"{SERVE} -cc.pass_config.fuse_allreduce_rms=false", APART),
        (f"{SERVE} --compilation_config.pass_config.enable_fi_allreduce_fusion true", FUSED),
        (f'{SERVE} -cc \'{{"mode": "NONE"}}\'', APART),
        (f"{SERVE} -O1", APART),
        (f"{SERVE} -O 1", APART),
        (f"{SERVE} --optimization-level 0 -cc.pass_config.fuse_allreduce_rms=true", {**FUSED, "enforce_eager": True}),
        (f"{SERVE} -O3", None),
        (f"{SERVE} --optimization-level 2", None),
        (f"{SERVE} --compilation-config 3", None),
        (f'{SERVE} -O \'{{"pass_config": {{"enable_fi_allreduce_fusion": true}}}}\'', FUSED),
    ],
)
def test_the_keys_that_are_priced_are_settings(command: str, engine: dict[str, bool] | None) -> None:
    found = served(command)
    assert found.settings.get("engine") == engine
    assert found.unknown == []
    Scenario.of({**found.settings, "trace": "synth:rate=1", "gpu": "b200"})


def test_other_keys_are_named_one_by_one() -> None:
    found = served(written({"custom_ops": ["+rms_norm"], "pass_config": {"fuse_attn_quant": True}, "cache_dir": "/x"}))
    assert found.unknown == [
        '--compilation-config.custom-ops ["+rms_norm"]',
        "--compilation-config.pass-config.fuse-attn-quant true",
    ]
    assert found.nothing == ["--compilation-config.cache-dir /x"]
    (misspelled,) = served(f"{SERVE} -cc.pass_config.fuse_allreduce_rm true").unknown
    assert misspelled.endswith("(did you mean --compilation-config.pass-config.fuse-allreduce-rms?)")


@pytest.mark.parametrize("config", ['--compilation-config \'{"cudagraph_mode": "NONE"}\'', "-O0"])
def test_steps_without_graphs_are_eager_mode(config: str) -> None:
    found = served(f"{SERVE} {config}")
    assert found.settings["engine"]["enforce_eager"] is True
    assert "one model on one H100" in found.notes()[-1]


def test_sizes_of_captured_graphs_say_that_every_size_is_priced_as_one() -> None:
    found = served(written({"cudagraph_capture_sizes": [1, 2, 4]}))
    assert "priced as CUDA graphs at every batch size" in found.notes()[-1]
    assert found.unknown == []


def test_a_file_of_flags_holds_the_configuration_as_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("compilation-config: {pass_config: {fuse_allreduce_rms: false}}\n")
    assert served(f"{SERVE} --config {tmp_path / 'c.yaml'}").settings["engine"] == APART


@pytest.mark.parametrize(("value", "says"), [("x", "is not JSON"), ("true", "must be a JSON object")])
def test_a_configuration_of_another_form_is_refused(value: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        served(f"{SERVE} --compilation-config {value}")
