"""Settings, models and GPUs can be looked up; an installation can be checked; shells complete."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from servesim.cli import app as cli
from servesim.cli import doctor
from servesim.cli.known import all_settings, matching
from servesim.hardware import ModelSpec, bundled_models, gpu_names
from servesim.hardware.model import read_config

Caught = pytest.CaptureFixture[str]


def out_of(patch: pytest.MonkeyPatch, caught: Caught, *arguments: str, code: int = 0) -> str:
    patch.setattr(sys, "argv", ["servesim", *arguments])
    caught.readouterr()
    assert cli._guarded() == code
    return caught.readouterr().out


def test_a_setting_says_where_it_lives(monkeypatch: pytest.MonkeyPatch, capsys: Caught) -> None:
    text = out_of(monkeypatch, capsys, "settings", "max_num_seqs")
    assert "scheduler.max_num_seqs" in text
    assert "--scheduler.max-num-seqs" in text
    assert "vllm" in text
    assert "block_size" not in text
    assert out_of(monkeypatch, capsys, "settings", "--", "--max-num-seqs") == text
    found = json.loads(out_of(monkeypatch, capsys, "settings", "block", "size", "--json"))["settings"]
    assert [(one["key"], one["default"]) for one in found if one["section"] == "engine"] == [
        ("engine.block_size", "16")
    ]


def test_every_setting_is_described_and_every_key_is_one_that_a_scenario_takes() -> None:
    from servesim.run.scenario import Scenario

    found = list(all_settings())
    assert [one["key"] for one in found if not one["doc"]] == []
    assert {one["key"].partition(".")[0] for one in found} == set(Scenario.model_fields)
    assert len({(one["key"], *one["policies"]) for one in found}) == len(found)


def test_words_are_looked_for_in_names_first_and_in_descriptions_then() -> None:
    found = [{"key": "a.rate", "doc": "one"}, {"key": "b", "doc": "the rate of it"}]
    assert matching(found, ["rate"]) == found[:1]
    assert matching(found, ["the", "rate"]) == found[1:]
    assert matching(found, ["nothing"]) == []


def test_a_setting_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Caught) -> None:
    monkeypatch.setattr(sys, "argv", ["servesim", "settings", "no_such_thing"])
    assert cli._guarded() == 2
    assert capsys.readouterr().err == "error: no setting has no_such_thing; `servesim settings` lists all\n"


def test_models_takes_every_name_that_run_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: Caught, tmp_path: Path
) -> None:
    def row(name: str) -> dict[str, Any]:
        (found,) = json.loads(out_of(monkeypatch, capsys, "models", name, "--json"))["models"]
        return dict(found)

    (whole,) = json.loads(out_of(monkeypatch, capsys, "models", "llama-3.1-70b", "--json"))["models"]
    assert row("meta-llama/Llama-3.3-70B-Instruct") == {**whole, "name": "meta-llama/Llama-3.3-70B-Instruct"}
    eighth = row("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8")
    assert eighth["dtype"] == "fp8"
    assert eighth["weight_bytes"] == ModelSpec.load("llama-3.1-70b").weight_bytes("fp8")
    assert row("llama-3.1-8b:num_hidden_layers=4")["layers"] == 4
    (tmp_path / "config.json").write_text(json.dumps(read_config("llama-3.1-8b")[0]))
    assert row(str(tmp_path))["layers"] == row(str(tmp_path / "config.json"))["layers"] == 32
    matrix = json.loads(out_of(monkeypatch, capsys, "models", "Qwen/Qwen3-32B", "--matrix", "--json"))["matrix"]
    assert {one["model"] for one in matrix} == {"qwen3-32b"}


def test_models_and_gpus_are_all_listed(monkeypatch: pytest.MonkeyPatch, capsys: Caught) -> None:
    models = json.loads(out_of(monkeypatch, capsys, "models", "--json"))["models"]
    assert [one["name"] for one in models] == list(bundled_models())
    (llama,) = (one for one in models if one["name"] == "llama-3.1-8b")
    assert (llama["layers"], llama["kv_bytes_per_token"], llama["max_position"]) == (32, 2 * 8 * 128 * 2 * 32, 131072)
    assert "16.1 GB bf16" in out_of(monkeypatch, capsys, "models", "llama-3.1-8b")
    gpus = json.loads(out_of(monkeypatch, capsys, "gpus", "--json"))["gpus"]
    assert [one["name"] for one in gpus] == gpu_names()
    assert "formula" in out_of(monkeypatch, capsys, "gpus")


@pytest.mark.medium
def test_an_installation_that_works_is_sound_and_one_that_does_not_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: Caught
) -> None:
    text = out_of(monkeypatch, capsys, "doctor")
    assert text.endswith("no problems found\n")
    assert "h200" in text
    monkeypatch.setattr(doctor, "_packages", lambda: {"numpy": {"installed": "1.0", "needed": ">=2.0", "ok": False}})
    monkeypatch.setattr(doctor, "_tables", lambda: {"h200": "no such file"})
    monkeypatch.setattr(doctor, "SELF_TEST", doctor.SELF_TEST | {"gpu": "h300"})
    monkeypatch.setattr(sys, "argv", ["servesim", "doctor", "--json"])
    assert cli._guarded() == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["sound"]
    assert [problem.partition(" ")[0] for problem in found["problems"]] == ["numpy", "kernel", "self"]
    assert "h300" in found["self_test"]["error"]


def completed(line: str, **more: str) -> list[str]:
    """What bash is offered at the end of a line."""
    words = line.split(" ")
    asked = {"_SERVESIM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "servesim"], env=os.environ | asked | more, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("servesim sett", ["settings"]),
        ("servesim run --engine.blo", ["--engine.block-size"]),
        ("servesim run --gpu h", ["h100", "h20", "h200"]),
        ("servesim compare --kv paged,prefix-h", ["paged,prefix-hash"]),
        ("servesim run --no.such 3 --gp", []),
    ],
)
def test_a_shell_completes_commands_options_and_values(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_scripts_for_shells_are_printed_however_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: Caught
) -> None:
    bash = out_of(monkeypatch, capsys, "--show-completion", "bash")
    assert "complete -o default -F _servesim_completion servesim" in bash
    assert "compdef" in out_of(monkeypatch, capsys, "--show-completion", "zsh")
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert out_of(monkeypatch, capsys, "--show-completion").startswith("complete --command servesim")
    monkeypatch.setattr(sys, "argv", ["servesim", "--show-completion", "tcsh"])
    assert cli._guarded() == 2
    assert "unknown shell 'tcsh'" in capsys.readouterr().err
    for asked in ("bash_source", "source_bash"):
        done: Any = subprocess.run(
            [sys.executable, "-m", "servesim"],
            env=os.environ | {"_SERVESIM_COMPLETE": asked},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "_completion()" in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script(monkeypatch: pytest.MonkeyPatch, capsys: Caught) -> None:
    script = out_of(monkeypatch, capsys, "--show-completion", "bash")
    done = subprocess.run(["bash", "-c", f"{script}\ncomplete -p servesim"], capture_output=True, text=True, check=True)
    assert done.stdout == "complete -o default -F _servesim_completion servesim\n"
