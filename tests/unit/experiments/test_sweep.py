"""`servesim sweep`: every combination once, whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import servesim
from servesim import UserError
from servesim.experiments.executors import DIED
from servesim.experiments.ranking import pareto_front
from servesim.experiments.runner import Progress
from servesim.experiments.store import Cell, Store, address_of
from servesim.experiments.sweep import sweep

WORKLOAD: dict[str, Any] = {
    "trace": "synth:rate=40,prompt=300,output=30",
    "requests": 40,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "jobs": 1,
}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the timings."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != "timing.json")
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def test_a_sweep_is_a_table_of_every_combination(tmp_path: Path) -> None:
    frame = servesim.sweep(**WORKLOAD, scheduler="vllm,vllm:max_num_seqs=2", rate=[20, 60], out=tmp_path)
    assert list(frame["label"])[:2] == ["vllm / rate=20", "vllm / rate=60"]
    assert list(frame.columns)[:5] == ["label", "scheduler", "rate", "replicate", "address"]
    assert set(frame["status"]) == {"ok"}
    assert frame["ttft_p99"].iloc[1] < frame["ttft_p99"].iloc[3]
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "sweep.parquet"), frame, check_dtype=False)
    document = json.loads((tmp_path / "sweep.json").read_text())
    assert document["axes"] == {"scheduler": ["vllm", "vllm:max_num_seqs=2"], "rate": [20, 60]}
    assert sorted(p.name for p in (tmp_path / "cells").iterdir()) == sorted(frame["address"])
    assert document["best"]["metric"] == "e2el_mean"


def test_a_grid_in_yaml_is_the_same_sweep(tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        "trace: synth:rate=40,prompt=300,output=30\nrequests: 40\nmodel: llama-3.2-1b\n"
        "axes: {gpu: [h100, h200], engine.block_size: [16, 32]}\n"
    )
    frame = sweep(grid, jobs=1)
    assert list(frame["label"]) == [
        f"{gpu} / engine.block_size={size}" for gpu in ("h100", "h200") for size in (16, 32)
    ]
    same = sweep(**WORKLOAD | {"gpu": "h100,h200", "engine.block_size": "16,32"})
    assert list(frame["address"]) == list(same["address"])


def test_a_cell_that_fails_is_recorded_and_the_rest_goes_on() -> None:
    seen: list[Progress] = []
    frame = sweep(**WORKLOAD, kv="paged,prefix-hash", tp="1,3", on_progress=seen.append)
    failed = frame[frame["status"] == "failed"]
    assert list(failed["label"]) == ["paged / tp=3", "prefix-hash / tp=3"]
    assert failed["error"].iloc[1].startswith("tp = 3 does not divide")
    assert failed["e2el_mean"].isna().all()
    assert [p.done for p in seen] == [1, 2, 3, 4]
    assert "best e2el_mean" in seen[-1].best
    assert "paged / tp=1" in seen[-1].best


@pytest.fixture
def ends_only(tmp_path: Path) -> dict[str, Any]:
    """Two requests, of which none arrives between warmup and cooldown."""
    path = tmp_path / "two.csv"
    path.write_text("arrival_ns,prompt_len,output_len\n0,10,1\n1000000000,10,1\n")
    known = {"model": "llama-3.2-1b", "gpu": "h200", "tp": "1,2", "slo": {"ttft": 500}, "jobs": 1}
    return {**known, "trace": str(path), "warmup": 0.3, "cooldown": 0.3}


def test_runs_without_a_request_in_the_window_fail_and_none_is_best(ends_only: dict[str, Any]) -> None:
    seen: list[Progress] = []
    frame = sweep(**ends_only, on_progress=seen.append)
    assert set(frame["status"]) == {"failed"}
    assert frame["error"].str.startswith("no request arrives in the steady window").all()
    assert not any(progress.best for progress in seen)
    assert frame.attrs["document"]["best"] is None
    with pytest.raises(UserError, match="cannot run: no request arrives in the steady window"):
        servesim.compare(**ends_only, replicates=1)


def test_a_variant_without_a_value_is_never_the_best_so_far(ends_only: dict[str, Any]) -> None:
    seen: list[Progress] = []
    sweep(**ends_only | {"warmup": 0, "cooldown": 0}, best_by="tpot_p99", on_progress=seen.append)
    assert [progress.best for progress in seen] == ["", ""]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"scheduler": "vllm,nonsense"}, "unknown scheduler 'nonsense'"),
        pytest.param({"scaler": "hpa,nonsense"}, "unknown scaler 'nonsense'", marks=pytest.mark.feature("scaling")),
        ({"kv": "paged:blocks=3"}, "unknown parameter 'blocks'"),
        ({"model": "llama-3.2-1b,lama"}, "unknown model 'lama'"),
        ({"gpu": "h200,h2000"}, "unknown GPU 'h2000'"),
        ({"trace": ["synth:rate=40,prompt=300,output=30", "missing.csv"]}, "missing.csv"),
        ({"host": "auto,nowhere"}, "no host terms 'nowhere'"),
        ({"kernel_tables": "roofline,nowhere"}, "nowhere contains no kernel tables"),
        ({"speculation": "none,eagle33"}, "unknown speculation 'eagle33'"),
        ({"speculation": "eagle3", "acceptance": "recorded:path=nowhere.jsonl"}, "file 'nowhere.jsonl' does not exist"),
        ({"predictor": "max_tokens,oracle"}, "unknown predictor 'oracle'"),
        ({"tp": "1,0"}, "tp is 0"),
    ],
)
def test_a_name_that_leads_nowhere_stops_every_experiment_before_it_runs(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    for command in (servesim.sweep, servesim.compare, servesim.capacity):
        with pytest.raises(UserError, match=re.escape(said)):
            command(**WORKLOAD | {"slo": "ttft:500"} | wrong, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_run_takes_for_kernel_tables_an_experiment_takes() -> None:
    frame = servesim.sweep(**WORKLOAD | {"kernel_tables": "roofline,ideal"})
    assert list(frame["status"]) == ["ok", "ok"]


@pytest.mark.medium
def test_on_the_command_line_it_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    words = [word for key, value in WORKLOAD.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "servesim", "sweep", *words, "--kv", "paged,page", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown kv 'page' (did you mean \"paged\"?)\n"


@pytest.mark.slow
def test_killed_and_run_again_only_what_is_missing_is_computed_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    asked = WORKLOAD | {"requests": 600, "scheduler": "vllm,vllm:max_num_seqs=8", "rate": "20,30,40,60,80,120"}
    words = [word for key, value in asked.items() for word in (f"--{key}", str(value)) if key != "jobs"]
    out, cells = tmp_path / "killed", tmp_path / "killed" / "cells"
    command = [sys.executable, "-m", "servesim", "sweep", *words, "--jobs", "2", "--out", str(out)]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as running:
        while len([p for p in cells.glob("*") if "." not in p.name]) < 3:
            assert running.poll() is None, "ended by itself"
            time.sleep(0.02)
        os.kill(running.pid, signal.SIGKILL)
        assert running.stdout is not None
        running.stdout.read()  # its workers notice that nobody listens any more, and the last one closes this
    there = {p.name for p in cells.iterdir() if "." not in p.name}
    assert 3 <= len(there) < 12
    seen: list[Progress] = []
    frame = sweep(**asked, out=out, on_progress=seen.append)
    assert {p.cell.address for p in seen if not p.computed} == there
    assert len({p.cell.address for p in seen if p.computed}) == len(frame) - len(there)
    sweep(**asked | {"jobs": 2}, out=tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.medium
def test_a_worker_that_dies_takes_only_its_cell(tmp_path: Path) -> None:
    deadly = tmp_path / "deadly.py"
    deadly.write_text(
        "import os, signal\n"
        "from servesim.policies.scheduling.vllm import Vllm\n"
        "class Deadly(Vllm):\n"
        "    def on_arrival(self, request):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    frame = sweep(**WORKLOAD | {"jobs": 2}, scheduler=["vllm", f"{deadly}:Deadly", "vllm:max_num_seqs=9"])
    assert list(frame["status"]) == ["ok", "failed", "ok"]
    assert frame["error"].iloc[1] == DIED


@pytest.mark.medium
@pytest.mark.usefixtures("interrupted_start")
def test_an_interrupt_is_not_for_the_workers() -> None:
    frame = sweep(**WORKLOAD | {"jobs": 2}, scheduler=["vllm", "sarathi"])
    assert list(frame["status"]) == ["ok", "ok"]


@pytest.mark.medium
@pytest.mark.parametrize(
    "file", ["summary.json", "requests.parquet", "steps.parquet", "deliveries.parquet", "scenario.yaml", "timing.json"]
)
def test_a_damaged_run_of_an_earlier_sweep_is_computed_again_and_named(file: str, tmp_path: Path) -> None:
    sweep(**WORKLOAD, out=tmp_path, rate=[10, 20])
    before = contents(tmp_path)
    cell = sorted((tmp_path / "cells").iterdir())[0]
    (cell / file).write_bytes((cell / file).read_bytes()[:20])
    seen: list[Progress] = []
    sweep(**WORKLOAD, out=tmp_path, rate=[10, 20], on_progress=seen.append)
    assert {p.cell.address: p.computed for p in seen} == {c.name: c == cell for c in (tmp_path / "cells").iterdir()}
    assert [p.damage.partition(":")[0].startswith(str(cell)) for p in seen if p.damage is not None] == [True]
    assert contents(tmp_path) == before


def test_a_run_whose_figures_were_changed_is_computed_again(tmp_path: Path) -> None:
    sweep(**WORKLOAD, out=tmp_path, rate=[10])
    before = contents(tmp_path)
    (cell,) = (tmp_path / "cells").iterdir()
    text = (cell / "summary.json").read_text()
    assert '"completed": ' in text
    (cell / "summary.json").write_text(text.replace('"completed": ', '"completed": 1', 1))
    seen: list[Progress] = []
    sweep(**WORKLOAD, out=tmp_path, rate=[10], on_progress=seen.append)
    assert [p.damage for p in seen] == [f"{cell}: damaged result: its files were changed after they were written"]
    assert contents(tmp_path) == before


@pytest.mark.medium
def test_a_run_that_was_made_again_is_named_on_the_command_line(tmp_path: Path) -> None:
    asked = {key: value for key, value in WORKLOAD.items() if key != "jobs"} | {"rate": "10,20"}
    words = [word for key, value in asked.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "servesim", "sweep", *words, "--jobs", "1", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    cell = sorted((tmp_path / "cells").iterdir())[0]
    (cell / "requests.parquet").write_bytes(b"")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (told,) = (line for line in done.stderr.splitlines() if not line.startswith("sweep: "))  # progress, if it is slow
    assert told.startswith(f"computed again: {cell / 'requests.parquet'}: damaged result")


@pytest.mark.parametrize("command", [servesim.sweep, servesim.compare, servesim.capacity])
def test_a_folder_with_other_files_is_left_alone(command: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"exists and is not a servesim experiment \(it contains thesis.tex\)"):
        command(**WORKLOAD, kv="paged,prefix-hash", slo="ttft:500", out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_sweep_does_not_go_into_the_folder_of_a_comparison(tmp_path: Path) -> None:
    servesim.compare(**WORKLOAD, kv="paged,prefix-hash", replicates=2, out=tmp_path)
    with pytest.raises(UserError, match=r"contains a different kind of experiment \(comparison.json;"):
        sweep(**WORKLOAD, kv="paged,prefix-hash", out=tmp_path)


def test_of_an_experiment_that_fails_before_a_run_has_ended_nothing_is_left(tmp_path: Path) -> None:
    def fail(root: Path, ended: dict[str, bytes]) -> None:
        with Store(root).open() as store:
            if ended:
                store.put("cell", ended)
            raise UserError("no such trace")

    for root in (tmp_path / "a" / "b", tmp_path):
        with pytest.raises(UserError, match="no such trace"):
            fail(root, {})
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="no such trace"):
        fail(tmp_path / "a", {"summary.json": b"{}"})
    assert "cell" in Store(tmp_path / "a")


def test_one_directory_belongs_to_one_experiment_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path).open(), pytest.raises(UserError, match="another experiment is writing to this directory"):
        sweep(**WORKLOAD, out=tmp_path)


def test_addresses_change_with_whatever_could_change_a_result(tmp_path: Path) -> None:
    policy = tmp_path / "mine.py"
    policy.write_text("from servesim.policies.scheduling.vllm import Vllm\nclass Mine(Vllm):\n    pass\n")
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp":0,"input_length":20,"output_length":9}\n')
    settings = {"trace": str(trace), "model": "llama-3.2-1b", "gpu": "h200", "scheduler": f"{policy}:Mine"}
    first = address_of(settings)
    assert address_of(settings | {"seed": 0}) == first  # the default, spelt out
    assert address_of(settings | {"seed": 1}) != first
    policy.write_text(policy.read_text() + "# changed\n")
    second = address_of(settings)
    assert second != first
    trace.write_text('{"timestamp":0,"input_length":21,"output_length":9}\n')
    assert address_of(settings) not in (first, second)


def test_a_result_from_other_code_is_refused(tmp_path: Path) -> None:
    from servesim.experiments.store import compute

    settings = {key: value for key, value in WORKLOAD.items() if key != "jobs"}
    said = compute(Cell("0" * 20, settings), tmp_path / "x")
    assert said is not None
    assert "the code or files of this machine differ" in said
    assert not (tmp_path / "x").exists()


def test_what_misses_the_slo_is_on_no_front() -> None:
    busy = {"trace": "synth:rate=20,prompt=600,output=50", "requests": 60, "model": "llama-3.2-1b", "gpu": "h100"}
    slots = {"scheduler.max_num_seqs": [2, 64], "jobs": 1}

    def marked(**more: Any) -> dict[int, tuple[bool | None, bool]]:
        found = sweep(**busy, **slots, **more).attrs["document"]
        on = {entry["label"] for entry in found["model_error"]["front"]}
        assert not on & {v["label"] for v in found["variants"] if v["meets_slo"] is False}
        return {v["axes"]["scheduler.max_num_seqs"]: (v["meets_slo"], v["pareto"]) for v in found["variants"]}

    assert {meets for meets, _ in marked().values()} == {None}
    late = marked(slo="ttft:100")
    assert late[2] == (False, False)
    assert late[64] == (True, True)
    assert set(marked(slo="ttft:0.001").values()) == {(False, False)}


def test_the_pareto_front_is_what_nothing_beats_in_everything() -> None:
    points = {"cheap": (1, 9, 5), "quick": (3, 2, 5), "beaten": (3, 3, 5), "twin": (3, 2, 5), "full": (9, 9, 6)}
    names = ("usd_per_million_tokens", "e2el_p99", "output_throughput")
    variants = [{"label": k, "values": dict(zip(names, v, strict=True))} for k, v in points.items()]
    assert pareto_front(variants) == {"cheap", "quick", "twin", "full"}
    assert pareto_front([{"label": "none", "values": dict.fromkeys(names)}]) == set()


def test_optuna_tries_some_combinations_and_none_twice() -> None:
    frame = sweep(**WORKLOAD, rate="10,20,40,80", scheduler="vllm,vllm:max_num_seqs=2", trials=5)
    assert len(frame) == len(set(frame["label"])) == 5
    again = sweep(**WORKLOAD, rate="10,20,40,80", scheduler="vllm,vllm:max_num_seqs=2", trials=5)
    assert list(again["label"]) == list(frame["label"])
    everything = sweep(**WORKLOAD, rate="10,20", best_by="usd_per_million_tokens,e2el_p99", trials=50)
    assert len(everything) == 2


def test_an_interrupt_while_the_page_is_made_says_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from servesim.cli import app as cli
    from servesim.reports import report as page

    def interrupted(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "report", interrupted)
    out = tmp_path / "out"
    words = [word for key, value in WORKLOAD.items() for word in (f"--{key}", str(value))]
    for command in (["sweep", *words], ["run", *words[:-2]]):
        monkeypatch.setattr(sys, "argv", ["servesim", *command, "--out", str(out)])
        assert cli._guarded() == 130
        said = capsys.readouterr().err
        assert said == (
            f"interrupted: {out} is complete except for its report. To write the report, run servesim report {out}\n"
        )
        assert (out / ("sweep.json" if command[0] == "sweep" else "summary.json")).is_file()
        out = tmp_path / "run"


def test_a_sweep_says_how_sure_its_front_and_its_best_are_unless_told_not_to(tmp_path: Path) -> None:
    server = {**WORKLOAD, "model": "gpt-oss-120b", "engine": {"version": "0.18.0"}, "tp": [1, 2]}
    document = sweep(**server, out=tmp_path).attrs["document"]
    error, variants = document["model_error"], document["variants"]
    assert {entry["label"] for entry in error["front"] if entry["on"]} == {v["label"] for v in variants if v["pareto"]}
    assert 0.5 < document["best"]["sure"] <= 0.975
    assert document["best"]["against"] in {v["label"] for v in variants}
    for v in variants:
        ends = v["bars"]["e2el_mean"]
        assert ends["low"] < ends["high"]
    html = servesim.report(tmp_path)
    assert "How sure" in html
    assert "given the model&#39;s error" in html
    plain = sweep(**server, out=tmp_path, intervals=False).attrs["document"]
    assert plain["model_error"] is None
    assert "sure" not in plain["best"]
    assert "How sure" not in servesim.report(tmp_path)


def test_two_combinations_that_are_one_run_have_one_error_and_either_may_be_the_best(tmp_path: Path) -> None:
    document = sweep(**WORKLOAD, scheduler=["vllm", "vllm:"], out=tmp_path).attrs["document"]
    one, other = document["variants"]
    assert one["bars"] == other["bars"] is not None
    assert document["best"]["label"] == one["label"]
