"""The whole chain on a processor: profile, held-out steps, a real engine, and its replay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra calibrate is not installed")
pytest.importorskip("transformers", reason="the extra calibrate is not installed")

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
def test_the_chain_from_a_profile_to_a_replayed_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables, log = str(tmp_path / "tables"), str(tmp_path / "log")
    said = servesim("calibrate", *PROFILE, *SMALL, "--out", tables)
    common = ("--device", "cpu", "--model", "tiny-llama", "--kernel-tables", tables)
    said += servesim("calibrate", "steps", *common, "--count", "24", "--budget-s", "40", "--out", str(tmp_path / "s"))
    trace = "synth:rate=20,prompt=uniform(32,160),output=uniform(8,32)"
    engine = ("--engine", "transformers", "--clock", "cpu", "--trace", trace, "--requests", "24", "--out", log)
    said += servesim("calibrate", "engine", *common, *engine)
    replay = ("validate", log, "--kernel-tables", tables, "--host", f"{log}/host.yaml")
    said += servesim(*replay, "--json", str(tmp_path / "errors.json"))
    with capsys.disabled():
        print(f"\n{said}")
    steps = json.loads((tmp_path / "s" / "tiny-llama-tp1-fp32.json").read_text())
    assert np.isfinite(steps["kinds"]["all"]["mape"])
    assert 1 / FACTOR < 1 + steps["kinds"]["all"]["bias"] < FACTOR
    (run,) = json.loads((tmp_path / "errors.json").read_text())["runs"]
    for metric in ("ttft", "tpot", "e2el"):
        assert np.isfinite(run["error"][metric]["mean"])
    assert 1 / FACTOR < 1 + run["error"]["e2el"]["mean"] < FACTOR
    simulated = servesim(
        *("run", "--trace", trace, "--requests", "24", "--model", "tiny-llama", "--gpu", f"{tables}/device.yaml"),
        *("--kernel-tables", tables, "--dtype", "fp32", "--kv-dtype", "fp32", "--host", f"{log}/host.yaml"),
        *("--scheduler", "transformers", "--kv", "paged", "--set", "engine.num_gpu_blocks=129", "--json"),
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
