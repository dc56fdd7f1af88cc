"""Code that only a file names does not run until it is trusted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import servesim
from servesim.cli import app as cli
from servesim.errors import UserError
from servesim.experiments.recording_formats import read_folder
from servesim.plugins.trust import code_in
from servesim.reports.explore.beginning import Beginning
from servesim.run.result import Result

SETTINGS: dict[str, Any] = {
    "trace": "synth:rate=20,prompt=100,output=5",
    "requests": 5,
    "model": "llama-3.1-8b",
    "gpu": "h200",
}
MINE = """
from pathlib import Path

from servesim.contracts.feature import Feature
from servesim.policies.scheduling.vllm import Vllm

Path(__file__).with_name("ran").touch()


class Mine(Vllm):
    pass


class Extra(Feature):
    pass
"""
NAMING: dict[str, dict[str, Any]] = {
    "a policy": {"scheduler": "./mine.py:Mine"},
    "a mapping": {"scheduler": {"name": "mine.py:Mine", "max_num_seqs": 4}},
    "a feature": {"features": ["mine.py:Extra"]},
    "a policy's parameter": {"router": "circuit-breaker:router=mine.py:Mine"},
    "a pool": {"pools": ["fast:replicas=1,scheduler=mine.py:Mine", {"name": "slow", "replicas": 1}]},
    "an axis": {"axes": {"scheduler": ["vllm", "mine.py:Mine"]}},
}
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command beside a stranger's mine.py, which leaves a file `ran`; return exit code and errors."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str]:
        Path("ran").unlink(missing_ok=True)
        for name in [name for name in sys.modules if name.startswith("servesim_policy_")]:
            del sys.modules[name]  # loaded once per process
        monkeypatch.setattr(sys, "argv", ["servesim", *line.split()])
        return cli._guarded(), capsys.readouterr().err

    return run


def scenario(**settings: Any) -> None:
    Path("stranger.yaml").write_text(yaml.safe_dump(SETTINGS | settings))


@pytest.mark.parametrize("command", ["run", "sweep", "compare", "play"])
@pytest.mark.parametrize("naming", NAMING)
def test_code_that_only_a_scenario_names_is_told_and_does_not_run(call: Call, naming: str, command: str) -> None:
    scenario(**NAMING[naming])
    code, said = call(
        f"{command} stranger.yaml --energy.busy-w 3" if naming == "a feature" else f"{command} stranger.yaml"
    )
    assert code == 2
    assert said.startswith(
        "error: scenario stranger.yaml refers to code that would run with your full permissions: mine.py. Read"
    )
    assert "--trust" in said
    assert not Path("ran").exists()


def test_explore_does_not_begin_with_it(call: Call) -> None:
    scenario(scheduler="mine.py:Mine")
    with pytest.raises(UserError, match="refers to code"):
        Beginning.of(Path("stranger.yaml"), {})


def test_all_files_are_told_before_the_first_runs(call: Call) -> None:
    Path("other.py").write_text(MINE)
    scenario(scheduler="mine.py:Mine", kv="other.py:Other")
    assert "other.py, mine.py. Read them" in call("run stranger.yaml")[1]
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "line",
    [
        "run stranger.yaml --trust -q",
        "run stranger.yaml --scheduler mine.py:Mine -q",
        "run stranger.yaml --scheduler ./mine.py:Mine:max_num_seqs=3 -q",
        "compare --trust stranger.yaml --kv paged,prefix-hash --replicates 1 --jobs 1 --no-intervals -q",
    ],
)
def test_code_runs_once_trusted_or_named_on_the_command_line(call: Call, line: str) -> None:
    scenario(scheduler="mine.py:Mine")
    assert call(line) == (0, "")
    assert Path("ran").exists()


def test_code_that_the_command_line_replaces_needs_no_trust(call: Call) -> None:
    scenario(scheduler="mine.py:Mine")
    assert call("run stranger.yaml --scheduler vllm -q") == (0, "")
    assert not Path("ran").exists()


def test_code_named_on_the_command_line_alone_runs_with_the_reports_of_its_result(call: Call) -> None:
    scenario()
    assert call("run stranger.yaml --features mine.py:Extra --out result -q") == (0, "")
    assert Path("result/report.html").exists()


@pytest.mark.parametrize("file", ["scenario.yaml", "summary.json"])
@pytest.mark.parametrize("command", ["report result", "why result 0", "export result --to csv -o x.csv"])
def test_the_features_of_a_strangers_result_do_not_run_when_it_is_read(call: Call, command: str, file: str) -> None:
    scenario()
    assert call("run stranger.yaml --out result -q --no-report")[0] == 0
    path = Path("result") / file
    if file == "scenario.yaml":
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"features": ["mine.py:Extra"]}))
    else:
        summary = json.loads(path.read_text())
        summary["scenario"]["features"] = ["mine.py:Extra"]
        path.write_text(json.dumps(summary))
    code, said = call(command)
    assert code == 2
    assert said.startswith(f"error: result/{file} refers to code that would run")
    assert not Path("ran").exists()
    with pytest.raises(UserError, match="refers to code"):
        Result.load("result")
    with pytest.raises(UserError, match="refers to code"):
        servesim.report("result")
    with pytest.raises(UserError, match="refers to code"):
        servesim.figure("result", "latency_cdf")
    assert call(f"{command} --trust")[0] == 0
    assert Path("ran").exists() == (file == "scenario.yaml" or command == "report result")
    assert Result.load("result", trust=True).summary["requests"]["arrived"] == 5
    assert "<html" in servesim.report("result", trust=True)  # type: ignore[call-arg]
    assert servesim.figure("result", "latency_cdf", trust=True).to_svg()  # type: ignore[call-arg]


def test_the_scheduler_of_ones_own_result_does_not_run_when_it_is_read_and_needs_no_trust(call: Call) -> None:
    scenario()
    assert call("run stranger.yaml --scheduler mine.py:Mine --out result -q --no-report") == (0, "")
    assert call("report result")[0] == 0
    assert not Path("ran").exists()
    assert call("run result/scenario.yaml -q")[0] == 2
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "naming",
    [
        {"scheduler": {"name": "mine.py:Mine"}},
        {"kv": {"name": "mine.py:Mine"}},
        {"router": {"name": "mine.py:Mine"}},
        {"router": {"name": "circuit-breaker", "router": "mine.py:Mine"}},
        {"scaler": {"name": "mine.py:Mine"}},
        {"acceptance": {"name": "mine.py:Mine"}},
        {"speculation": {"name": " mine.py:Mine"}},
        {"features": ["./mine.py:Extra"]},
        {"pools": [{"name": "a", "replicas": 1, "scheduler": {"name": "mine.py:Mine"}}]},
        {"pd": "1x1:1x1", "handoff": {"name": "mine.py:Mine"}},
        {"offload": {"name": "mine.py:Mine"}},
    ],
)
def test_a_strangers_result_runs_no_code_when_it_is_loaded_or_drawn(call: Call, naming: dict[str, Any]) -> None:
    scenario()
    assert call("run stranger.yaml --out result -q --no-report") == (0, "")
    settings = Path("result/scenario.yaml")
    settings.write_text(yaml.safe_dump(yaml.safe_load(settings.read_text()) | naming))
    summary = json.loads(Path("result/summary.json").read_text())
    summary["scenario"] |= naming
    del summary["intervals"]
    Path("result/summary.json").write_text(json.dumps(summary))
    try:
        found = Result.load("result")
        assert found.intervals
        assert repr(found)
        found.figure("latency_cdf")
        found.save("copy")
    except UserError:
        pass
    assert not Path("ran").exists()
    for command in ("report result", "why result 0", "export result --to csv -o x.csv", "roofline result"):
        assert call(command)[0] in (0, 2), command
        assert not Path("ran").exists()


def test_from_python_keywords_and_mappings_run_and_files_need_trust(call: Call) -> None:
    assert servesim.simulate(**SETTINGS, scheduler="mine.py:Mine").summary["requests"]["arrived"] == 5
    assert servesim.simulate({**SETTINGS, "scheduler": "mine.py:Mine"}).summary["requests"]["arrived"] == 5
    scenario(scheduler="mine.py:Mine")
    with pytest.raises(UserError, match=r"mine\.py\. Read it, then add --trust \(in Python, trust=True\)"):
        servesim.simulate("stranger.yaml")
    for experiment in (servesim.sweep, servesim.compare, servesim.capacity):
        with pytest.raises(UserError, match="refers to code"):
            experiment("stranger.yaml", rate=[1, 2])  # type: ignore[operator]
    with pytest.raises(UserError, match="refers to code"):
        servesim.worth("stranger.yaml", of="fp8")
    assert servesim.simulate("stranger.yaml", trust=True).summary["requests"]["arrived"] == 5
    assert servesim.simulate("stranger.yaml", scheduler="mine.py:Mine").summary["requests"]["arrived"] == 5
    assert len(servesim.sweep("stranger.yaml", trust=True, jobs=1, rate=[10, 20])) == 2
    with pytest.raises(UserError, match="refers to code"):  # trust ends with the call
        servesim.simulate("stranger.yaml")
    with pytest.raises(UserError, match="trust is 'yes' but must be True or False"):
        servesim.simulate("stranger.yaml", trust="yes")


def test_a_stored_sweep_of_ones_own_feature_continues(call: Call) -> None:
    own = {**SETTINGS, "features": ["mine.py:Extra"]}
    first, again = (servesim.sweep(own, jobs=1, rate=[10, 20], out="found", intervals=False) for _ in range(2))
    assert first.equals(again)


def test_the_scheduler_of_a_strangers_recording_does_not_run(call: Call) -> None:
    Path("recorded").mkdir()
    row = {"input_toks": 5, "output_toks": 3, "queued_ts": 0.0, "first_token_ts": 0.1, "last_token_ts": 0.2}
    Path("recorded/run.json").write_text(json.dumps(row))
    Path("recorded/meta.json").write_text(json.dumps({"scheduler": "mine.py:Mine", "model": "llama-3.1-8b"}))
    with pytest.raises(UserError, match="refers to code"):
        read_folder(Path("recorded"))
    assert not Path("ran").exists()


def test_code_is_found_at_any_depth_and_in_any_spelling(call: Call) -> None:
    for value in (
        "mine.py:Mine",
        "x:a=1,router=mine.py:Mine:b=2",
        {"a": [{"b": ("vllm", "mine.py:Mine")}]},
        {"mine.py:Mine": 1},
        "nowhere.py:X:router=mine.py:Mine",
    ):
        assert code_in(value) == [Path("mine.py")], value
    assert code_in("mine.py") == code_in("nowhere.py:Mine") == code_in(3) == code_in("a\0.py:X") == []


def test_a_file_whose_name_ends_in_a_named_ones_is_another(call: Call) -> None:
    Path("x=mine.py").write_text(MINE)
    scenario(scheduler="x=mine.py:Mine")
    code, said = call("run stranger.yaml --kv mine.py:Other")
    assert code == 2
    assert "x=mine.py" in said


@pytest.mark.parametrize(
    "text",
    [
        "scheduler: {name: ' evil.py:Mine'}",
        "axes: {scheduler.name: \"'evil.py:Mine'\"}",
        "axes: {scheduler.name: '\"\\x65vil.py:Mine\"'}",
    ],
)
def test_no_spelling_of_a_name_runs_code_that_was_not_allowed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("evil.py", " evil.py"):
        (tmp_path / name).write_text("open('ran', 'w')\nfrom servesim.policies.scheduling.vllm import Vllm as Mine\n")
    settings = "trace: synth:rate=10\nrequests: 3\nmodel: llama-3.2-1b\ngpu: h200\n"
    (tmp_path / "s.yaml").write_text(settings + text + "\n")
    for command in (servesim.simulate, servesim.sweep):
        with pytest.raises(UserError):
            command("s.yaml")
        assert not (tmp_path / "ran").exists()


def test_code_of_the_user_s_own_still_runs_by_any_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from servesim.policies.scheduling.vllm import Vllm\nclass Mine(Vllm):\n    pass\n"
    )
    settings = {"trace": "synth:rate=10", "requests": 3, "model": "llama-3.2-1b", "gpu": "h200"}
    for scheduler in ("mine.py:Mine", "./mine.py:Mine", f"{tmp_path}/mine.py:Mine", {"name": "mine.py:Mine"}):
        assert servesim.simulate(**settings, scheduler=scheduler).summary["requests"]["completed"] == 3
