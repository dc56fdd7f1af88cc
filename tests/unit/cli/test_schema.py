"""What every --json prints is as `servesim schema` says."""

from __future__ import annotations

import copy
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from servesim.cli import app as cli
from servesim.cli.schema import __file__ as schema_file
from servesim.cli.schema import names, schema_of
from servesim.contracts.feature import features, installed
from servesim.errors import UserError
from tests.support.figure_runs import ADDED, run_with

jsonschema = pytest.importorskip("jsonschema")

SMALL = "--trace synth:rate=20,prompt=200,output=20 --model llama-3.1-8b --gpu h200 --requests 20"
CHEAP = f"{SMALL} --replicates 2 --jobs 1"
SECONDS = ("compare", "capacity", "worth", "recommend", "policies check")
"""Beginnings of lines that take seconds: run by `make slow`."""
COMMANDS = {
    "run": [f"run {SMALL}", f"run {SMALL} --slo ttft:500,tpot:50 --speculation ngram --tp 2"],
    "compare": [f"compare {CHEAP} --kv paged,prefix-hash"],
    "sweep": [f"sweep {SMALL} --jobs 1 --rate 2,4"],
    "capacity": [f"capacity {CHEAP} --slo ttft:500 --tolerance 0.5"],
    "worth": [f"worth {CHEAP} --slo ttft:500 --tolerance 0.5 --of fp8"],
    "recommend": [f"recommend {SMALL} --jobs 1 --slo ttft:500 --engine vllm --tp 1 --dtype bf16 --no-intervals"],
    "roofline": ["roofline result"],
    "size": ["size llama-3.1-8b qwen3-8b --gpu h200"],
    "trace inspect": [
        "trace inspect preset:mooncake-conversation --requests 50",
        "trace inspect synth:rate=5,prompt=8 --requests 9",
    ],
    "trace list": ["trace list"],
    "policies": ["policies", "policies sarathi", "policies check static --worlds 1"],
    "reproduce": ["reproduce --list", "reproduce batching-steps"],
    "settings": ["settings", "settings max_num_seqs"],
    "figures": ["figures", "figures ttft"],
    "models": ["models", "models llama-68m --matrix"],
    "gpus": ["gpus"],
    "doctor": ["doctor"],
}
"""Command lines of each; --json is added."""
LINES = [
    pytest.param(name, line, marks=[pytest.mark.slow] if line.startswith(SECONDS) else [])
    for name, lines in COMMANDS.items()
    for line in lines
]
TO_FILES = {
    "accuracy": "measured cells: tests/unit/experiments/accuracy/test_study.py",
    "validate": "below, of a recording",
    "calibrate left-out": "tables of its own: tests/unit/calibrate/test_table_accuracy.py",
}


def walk(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, f"{path} {name}".strip())


def test_every_command_that_prints_json_has_a_schema() -> None:
    found = {
        path
        for path, command in walk(typer.main.get_command(cli.app))
        if not command.hidden and any("--json" in p.opts for p in getattr(command, "_params", command.params))
    }
    assert found == set(names()) - {"scenario"} == {*COMMANDS, *TO_FILES}


@pytest.mark.parametrize("name", names())
def test_a_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of(name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schema")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["servesim", *shlex.split(f"run {SMALL} --out result")])
        assert cli._guarded() == 0
    return folder


@pytest.mark.medium
@pytest.mark.parametrize(("name", "line"), LINES)
def test_what_a_command_prints_is_as_its_schema_says(
    name: str, line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["servesim", *shlex.split(line), "--json"])
    capsys.readouterr()
    assert cli._guarded() == 0
    document = json.loads(capsys.readouterr().out)
    check = jsonschema.Draft202012Validator(schema_of(name))
    check.validate(document)
    optional = {group.section for feature in installed() for group in feature.groups()} if name == "run" else set()
    for key in document.keys() - optional if name in ("run", "compare", "capacity", "settings") else ():
        without = {other: value for other, value in document.items() if other != key}
        required = key in json.dumps(schema_of(name))
        assert not required or not check.is_valid(without), f"{key} could go unnoticed"


@pytest.mark.parametrize("section", ADDED)
def test_a_section_that_a_feature_adds_is_as_its_folder_says(section: str, tmp_path: Path) -> None:
    summary = run_with(section, tmp_path).summary
    document, schema = json.loads(json.dumps(summary)), schema_of("run")
    check = jsonschema.Draft202012Validator(schema)
    check.validate(document)
    assert set(document) <= set(schema["properties"]), "a section without a schema"
    inside = document[section][0] if isinstance(document[section], list) else document[section]
    for key in schema["properties"][section].get("required", ()):
        without = copy.deepcopy(document)
        del without[section][key]
        assert not check.is_valid(without), f"{section}.{key} could go unnoticed"
    assert inside
    for wrong in (None, 3, "text"):
        assert not check.is_valid(document | {section: wrong})


def test_every_section_that_a_feature_describes_is_there_in_a_run() -> None:
    described = {group.section: feature.name for feature in installed() for group in feature.groups()}
    assert described == {section: feature for section, (feature, _) in ADDED.items() if feature in features.names()}


def test_the_command_line_names_no_section_of_a_feature() -> None:
    source = Path(schema_file).read_text()
    assert not [section for section in ADDED if section in source]


def test_the_schema_of_a_run_with_a_feature_of_ones_own_has_its_sections_and_that_of_a_scenario_its_keys() -> None:
    own = ["tests/support/energy.py:Energy"]
    assert "energy" not in schema_of("run")["properties"]
    energy = schema_of("run", own)["properties"]["energy"]
    assert energy["required"] == ["joules", "joules_per_request"]
    assert energy["properties"]["joules"]["description"] == "energy of all GPUs (J)"
    scenario = {"trace": "t.csv", "model": "qwen3-8b", "gpu": "h200", "energy": {"busy_w": 500}}
    assert jsonschema.Draft202012Validator(schema_of("scenario", own)).is_valid(scenario)
    assert not jsonschema.Draft202012Validator(schema_of("scenario")).is_valid(scenario)
    with pytest.raises(UserError, match="does not exist"):
        schema_of("run", ["nowhere.py:Energy"])


def test_a_recording_validated_is_as_the_schema_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "send_time_us,first_chunk_time_us,last_chunk_time_us,server_input_tokens,output_tokens\n"
    rows = "".join(f"{10**6 * i},{10**6 * i + 50_000},{10**6 * i + 250_000},64,20\n" for i in range(4))
    (tmp_path / "run.csv").write_text(head + rows)
    (tmp_path / "server_config.json").write_text(json.dumps({"model": "llama-3.1-8b", "gpu": "h200"}))
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["servesim", "validate", str(tmp_path / "run.csv"), "--json", str(out)])
    assert cli._guarded() == 0
    jsonschema.validate(json.loads(out.read_text()), schema_of("validate"))


def test_a_scenario_that_runs_fits_its_schema_and_a_misspelt_one_does_not() -> None:
    check = jsonschema.Draft202012Validator(schema_of("scenario"))
    scenario = yaml.safe_load(
        "{trace: preset:azure-conv-2023, model: qwen3-8b, gpu: h200, tp: 2, engine: {block_size: 32}, rate: 3,"
        " scheduler: {name: vllm, max_num_seqs: 64}, clients: {max_concurrency: 8}, slo: {ttft: 500}}"
    )
    check.validate(scenario)
    for key, value in (("tpp", 2), ("tp", 0), ("gpu", 5), ("engine", {"blok_size": 3})):
        wrong = copy.deepcopy(scenario) | {key: value}
        assert not check.is_valid(wrong), key
    del scenario["gpu"]
    assert not check.is_valid(scenario)


def test_an_unknown_schema_names_the_close_one(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["servesim", "schema", "compar"])
    assert cli._guarded() == 2
    assert 'did you mean "compare"' in capsys.readouterr().err
