"""A calibration in one command: its stages in order, what is kept of a killed one, and what its report says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from servesim.calibrate.chain import RECORD, Chain, Plan, Stage, stages
from servesim.calibrate.chain_report import Repeated, _repeats, repeated
from servesim.calibrate.journal import Journal
from servesim.calibrate.points import Shard
from servesim.calibrate.profile import Options, profile
from servesim.cli import app as cli
from servesim.cli import calibrate_all
from servesim.errors import UserError
from servesim.hardware import ModelSpec
from tests.support.devices import FormulaDevice, FormulaKernels

PLAN = Plan("tiny-llama", "cpu", dtype="fp32")
NAMES = ["profile", "steps", "engine", "validate", "left-out", "report"]


class Parts:
    """Stands in for the commands: writes the files of a stage, or gives the errors listed for it, one a try."""

    def __init__(self, folder: Path, plan: Plan = PLAN, **errors: list[str | BaseException]) -> None:
        self.chain = Chain(folder, stages(plan))
        self.errors = errors
        self.ran: list[str] = []
        self.lines: list[list[str]] = []
        self.kept = ""

    def __call__(self, arguments: Sequence[str], folder: Path) -> str | None:
        (stage,) = [s for s in self.chain.parts if list(arguments)[: len(s.arguments)] == list(s.arguments)]
        self.ran.append(stage.name)
        self.lines.append(list(arguments))
        if self.errors.get(stage.name):
            error = self.errors[stage.name].pop(0)
            if self.kept:
                (folder / "tables").mkdir(exist_ok=True)
                with (folder / "tables" / "points.jsonl").open("a") as file:
                    file.write(self.kept)
            if isinstance(error, BaseException):
                raise error
            return error
        for name in stage.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        return None

    def go(self) -> Parts:
        with self.chain.claimed():
            self.chain.run(self, lambda text: None)
        return self


def test_stages_run_in_order_and_once(tmp_path: Path) -> None:
    assert Parts(tmp_path / "c").go().ran == NAMES
    assert Parts(tmp_path / "c").go().ran == []


def test_a_killed_calibration_goes_on_with_the_stage_that_was_cut_off(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Parts(tmp_path / "c", engine=[KeyboardInterrupt()]).go()
    assert Parts(tmp_path / "c").go().ran == NAMES[2:]


def test_a_stage_that_fails_names_itself_and_what_follows_does_not_run(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "c", engine=["the engine stopped"])
    with pytest.raises(UserError, match=r"^engine: the engine stopped \(the same command goes on from here\)$"):
        parts.go()
    assert parts.ran == NAMES[:3]
    assert list(json.loads((tmp_path / "c" / RECORD).read_text())["stages"]) == NAMES[:2]


def test_a_stage_that_ends_without_its_files_has_failed(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "c", [Stage("one", "", ("x",), ("there",))])
    with chain.claimed(), pytest.raises(UserError, match="one: there was not written"):
        chain.run(lambda arguments, folder: None, lambda text: None)
    assert chain.todo() == chain.parts


def test_a_profile_is_tried_again_while_tries_keep_something(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "c", profile=["CUDA error", "the clock drifted"])
    parts.kept = "{}\n"
    assert parts.go().ran == ["profile", "profile", *NAMES]
    hopeless = Parts(tmp_path / "d", profile=["no space", "no space"])
    with pytest.raises(UserError, match="profile: no space"):
        hopeless.go()
    assert hopeless.ran == ["profile"]
    drifting = Parts(tmp_path / "e", profile=["the clock drifted"] * 9)
    drifting.kept = "{}\n"
    with pytest.raises(UserError, match="drifted"):
        drifting.go()
    assert drifting.ran == ["profile"] * 3


def test_a_changed_command_or_a_lost_file_runs_the_stage_and_all_after_it(tmp_path: Path) -> None:
    Parts(tmp_path / "c").go()
    longer = Plan("tiny-llama", "cpu", dtype="fp32", requests=99)
    assert Parts(tmp_path / "c", longer).go().ran == NAMES[2:]
    (tmp_path / "c" / "left-out.json").unlink()
    assert Parts(tmp_path / "c", longer).go().ran == NAMES[4:]
    assert Parts(tmp_path / "c", Plan("tiny-llama", "cpu", 720.0, dtype="fp32")).go().ran == NAMES


def test_budgets_of_the_measuring_stages_add_up(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "c", Plan("tiny-llama", "cpu", 100.0, dtype="fp32")).go()
    budgets = [line[line.index("--budget-s") + 1] for line in parts.lines if "--budget-s" in line]
    assert budgets == ["75", "25"]


def test_paths_are_those_of_the_user_wherever_a_stage_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("config.json", "t.csv", "lib.so"):
        Path(name).touch()
    plan = Plan("config.json", "cuda", engine="vllm", libraries=(Path("lib.so"),), trace="t.csv", rate=2.0)
    made = stages(plan)
    assert ["--model", str(tmp_path / "config.json")] == list(made[0].arguments[4:6])
    assert str(tmp_path / "lib.so") in made[1].arguments
    engine = list(made[2].arguments)
    assert engine[engine.index("--trace") + 1] == str(tmp_path / "t.csv")
    assert engine[engine.index("--rate") + 1] == "2"
    assert "--requests" not in engine
    assert "--clock" not in engine


def test_other_peoples_folders_and_running_calibrations_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="contains other files but no calibration"):
        Parts(tmp_path).go()
    parts = Parts(tmp_path / "c")
    with parts.chain.claimed(), pytest.raises(UserError, match="a calibration is running there"):
        Parts(tmp_path / "c").go()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--out .*file/c: Not a directory"):
        Parts(tmp_path / "file" / "c").go()
    (tmp_path / "c" / RECORD).write_text("[]")
    with pytest.raises(UserError, match="not the record of a calibration"):
        Parts(tmp_path / "c")


def test_the_error_of_a_part_is_the_error_of_the_stage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    chain = Chain(tmp_path / "c", [Stage("one", "", ("models", "no-such-model"), ())])
    with chain.claimed(), pytest.raises(UserError, match=r"^one: .*no-such-model"):
        chain.run(say=lambda text: None)
    assert "error" not in capfd.readouterr().err
    chain = Chain(tmp_path / "c", [Stage("one", "", ("gpus",), ())])
    with chain.claimed():
        chain.run(say=lambda text: None)
    assert "h100" in capfd.readouterr().out


@pytest.mark.medium
def test_an_interrupt_ends_the_part_that_runs(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from servesim.calibrate.chain import Chain, Stage\n"
        f"chain = Chain(Path({str(tmp_path / 'c')!r}), [Stage('one', '', ('models', '--help'), ())])\n"
        "import signal, sys, subprocess; real = subprocess.Popen\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a shell's background jobs ignore
        "up = 'import sys, time; print(1, file=sys.stderr, flush=True); time.sleep(1000)'\n"
        "sleeper = [sys.executable, '-c', up]\n"
        "subprocess.Popen = lambda command, **more: real(sleeper, **more)\n"
        "with chain.claimed(): chain.run()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        while running.stderr.readline() not in ("1\n", ""):
            pass  # until the part runs
        os.kill(running.pid, signal.SIGINT)
        running.communicate(timeout=600)
    with Chain(tmp_path / "c", []).claimed():
        pass  # nobody holds the folder


def test_prices_of_a_profile_lie_within_the_spread_of_its_repeats(tmp_path: Path) -> None:
    device = FormulaDevice()
    shard = Shard(ModelSpec.load("llama-3.1-8b"), 1, "bf16")
    profile(device, FormulaKernels(device), [shard], Options(tmp_path / "t", 600.0, None, 1024, 4096, 32))
    found = repeated(tmp_path / "t")
    assert {r.operator for r in found} >= {"gemm bf16", "attention_decode bf16", "attention_prefill bf16"}
    assert len(found) == len(Journal.load(tmp_path / "t").repeats)
    assert all(r.within for r in found)
    assert all(r.change == 0.0 for r in found)
    path = tmp_path / "t" / "points.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if not row["repeat"]:
            row["timing"] = {k: v * 1.5 if k.endswith("us") and v else v for k, v in row["timing"].items()}
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    slower = repeated(tmp_path / "t")
    assert {round(r.change, 3) for r in slower} == {-0.333}
    assert all(r.within for r in slower), "of both measurements"
    for row in rows:
        row["timing"] = row["timing"] | {"p10_us": 1e6, "p90_us": 2e6}
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert not any(r.within for r in repeated(tmp_path / "t"))


def test_the_report_says_what_limits_an_operator() -> None:
    points = [Repeated("gemm bf16", c, 9.0, 11.0, p) for c, p in ((0.01, 10.0), (-0.03, 12.0))]
    rows = _repeats(points, {"gemm bf16": 0.02, "norm bf16": 0.5})
    assert rows[-2:] == [
        "| gemm bf16 | 2 | 2.0% | 3.0% | 1 of 2 | 2.0% | its repeats |",
        "| norm bf16 | 0 | - | - | 0 of 0 | 50.0% | unknown |",
    ]
    assert _repeats(points, {"gemm bf16": 0.04})[-1].endswith("| 4.0% | sizes in between |")


def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["servesim", "calibrate", "all", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        assert (caught.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
        return printed.err

    tiny = ("--model", "tiny-llama", "--device", "cpu", "--out", str(tmp_path / "c"))
    assert "--budget-s is 0" in said(*tiny, "--budget-s", "0")
    assert "unknown device 'gpu'" in said("--model", "tiny-llama", "--device", "gpu", "--out", "c")
    assert '(did you mean "vllm"?)' in said(*tiny, "--engine", "vlm")
    assert "--library x.so: no such file" in said(*tiny, "--library", "x.so")
    assert "qwen3-30b-a3b" in said("--model", "qwen3-30b-a3b", "--out", "c")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "this needs torch" in said(*tiny)
    assert not (tmp_path / "c").exists()


def test_a_dry_run_lists_the_stages_and_which_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(KeyboardInterrupt):
        Parts(tmp_path / "c", engine=[KeyboardInterrupt()]).go()
    calibrate_all.all_("tiny-llama", tmp_path / "c", "cpu", dry_run=True)
    printed = capsys.readouterr().out
    done = {line.split()[0]: line.split()[-1] for line in printed.splitlines()[1:7]}
    assert done == dict(zip(NAMES, ["yes", "yes", "no", "no", "no", "no"], strict=True))
    assert "  servesim validate log --kernel-tables tables --host log/host.yaml --json errors.json" in printed
