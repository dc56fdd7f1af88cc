"""The whole chain on a processor: profile, held-out steps, a real engine, and its replay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra calibrate is not installed")
pytest.importorskip("transformers", reason="the extra calibrate is not installed")

from servesim.calibrate.chain import REPORT  # noqa: E402
from servesim.calibrate.chain_report import repeated  # noqa: E402
from servesim.calibrate.journal import Journal  # noqa: E402

PROFILE = ("profile", "--device", "cpu", "--model", "tiny-llama", "--max-drift", "1000")
SMALL = ("--max-tokens", "128", "--max-context", "256", "--max-batch", "8", "--budget-s", "60")
FACTOR = 30.0
"""Between what is simulated and what is measured. How close they come depends on the machine and on what else it does;
a wrong unit is off by a thousand."""


def servesim(*arguments: str) -> str:
    command = [sys.executable, "-m", "servesim", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_one_command_calibrates_a_processor_and_goes_on_where_it_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all"
    command = ("calibrate", "all", "--device", "cpu", "--model", "tiny-llama", "--out", str(out))
    command += ("--budget-s", "120", "--max-drift", "1000")
    running = subprocess.Popen([sys.executable, "-m", "servesim", *command], stderr=subprocess.DEVNULL)
    journal = out / "tables" / "points.jsonl"
    while not journal.exists() or journal.read_text().count("\n") < 20:
        assert running.poll() is None
        time.sleep(0.05)
    running.terminate()
    assert running.wait(timeout=600) == 130
    kept = Journal.load(out / "tables").grid
    assert len(kept) >= 20
    said = servesim(*command)
    with capsys.disabled():
        print(f"\n{(out / REPORT).read_text()}")
    whole = Journal.load(out / "tables").grid
    assert {k: m.timing for k, m in whole.items() if k in kept} == {k: m.timing for k, m in kept.items()}
    points = repeated(out / "tables")
    assert len(points) > 10
    # a mixed call is priced by its decodes, its prompt and what it takes beyond them, each measured at its own time
    assert [p for p in points if not p.within and "mixed" not in p.operator] == []
    assert said.endswith(f"written to {out / REPORT}\n")
    assert "|  |" not in (out / REPORT).read_text()
    assert servesim(*command) == said[said.index("# Calibration") :], "nothing is left to do"
    steps = json.loads((out / "steps" / "tiny-llama-tp1-fp32.json").read_text())
    assert 1 / FACTOR < 1 + steps["kinds"]["all"]["bias"] < FACTOR
    (run,) = json.loads((out / "errors.json").read_text())["runs"]
    for metric in ("ttft", "tpot", "e2el"):
        assert 1 / FACTOR < 1 + run["error"][metric]["mean"] < FACTOR
    tables = f"{out}/tables"
    simulated = servesim(
        *("run", "--trace", "synth:rate=20,prompt=96,output=16", "--requests", "24", "--model", "tiny-llama"),
        *("--gpu", f"{tables}/device.yaml", "--kernel-tables", tables, "--host", f"{out}/log/host.yaml"),
        *("--dtype", "fp32", "--kv-dtype", "fp32", "--scheduler", "transformers", "--kv", "paged"),
        *("--set", "engine.num_gpu_blocks=129", "--json"),
    )
    assert json.loads(simulated)["requests"]["completed"] == 24


@pytest.mark.slow
def test_ctrl_c_keeps_a_table_says_so_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "servesim", "calibrate", *PROFILE, *SMALL, "--out", str(tmp_path / "t")]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    journal = tmp_path / "t" / "points.jsonl"
    while not journal.exists() or journal.read_text().count("\n") < 20:
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130
    assert said.splitlines()[-1].startswith("interrupted: ")
    assert "keeps the measurements" in said
    kept = Journal.load(tmp_path / "t").grid
    assert len(kept) >= 20
    assert (tmp_path / "t" / "measured-gemm.parquet").exists()
    servesim("calibrate", *PROFILE, *SMALL, "--out", str(tmp_path / "t"))
    whole = Journal.load(tmp_path / "t").grid
    assert {k: m.timing for k, m in whole.items() if k in kept} == {k: m.timing for k, m in kept.items()}
    assert len(whole) > len(kept)
