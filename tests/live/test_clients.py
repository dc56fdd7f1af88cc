"""Real clients end with figures, and their mean TPOT is that of the offline run of what the server recorded."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import servesim
from benchmarks.live_server import Server, server

pytestmark = pytest.mark.live
DEPLOYMENT = {"model": "llama-3.1-8b", "gpu": "h100"}
SPEED = 0.2
"""Slow enough for clients that take milliseconds for a chunk."""
COUNT, PER_S = 30, 4
"""Requests, and how many a simulated second."""
PROMPT, OUTPUT = 200, 64
HERE = Path(__file__).parent
Client = Callable[[Path, Server, Path], float]


def ran(command: Sequence[str | Path], folder: Path) -> str:
    """Run a client; return what it printed."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=400, check=False, cwd=folder, env=own
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def openai(environment: Path, running: Server, folder: Path) -> float:
    script = HERE / "openai_client.py"
    said = ran([environment / "bin" / "python", script, running.url, str(COUNT), str(PER_S * SPEED)], folder)
    return float(json.loads(said.splitlines()[-1])["mean_tpot_ms"])


def vllm(environment: Path, running: Server, folder: Path) -> float:
    """`vllm bench serve`."""
    ran(
        [
            *(environment / "bin" / "python", HERE / "bench_client.py", environment / "clients", "vllm"),
            *("--backend", "openai", "--base-url", running.url, "--model", running.model),
            *("--tokenizer", environment / "tokenizer", "--dataset-name", "random", "--ignore-eos"),
            *(f"--random-input-len={PROMPT}", f"--random-output-len={OUTPUT}", f"--num-prompts={COUNT}"),
            *(f"--request-rate={PER_S * SPEED}", "--save-result", "--result-filename=out.json"),
        ],
        folder,
    )
    found = json.loads((folder / "out.json").read_text())
    assert (found["completed"], found["total_output_tokens"]) == (COUNT, COUNT * OUTPUT)
    return float(found["mean_tpot_ms"])


def sglang(environment: Path, running: Server, folder: Path) -> float:
    """`sglang.bench_serving`."""
    ran(
        [
            *(environment / "bin" / "python", HERE / "bench_client.py", environment / "clients", "sglang"),
            *("--backend", "sglang-oai", "--host", "127.0.0.1", f"--port={running.port}", "--model", running.model),
            *("--tokenizer", environment / "tokenizer", "--dataset-name", "random-ids", "--random-range-ratio=1"),
            *(f"--random-input-len={PROMPT}", f"--random-output-len={OUTPUT}", f"--num-prompts={COUNT}"),
            *(f"--request-rate={PER_S * SPEED}", "--output-file=out.jsonl"),
        ],
        folder,
    )
    found = json.loads((folder / "out.jsonl").read_text())
    assert (found["completed"], found["total_output_tokens"]) == (COUNT, COUNT * OUTPUT)
    return float(found["mean_tpot_ms"])


def aiperf(environment: Path, running: Server, folder: Path) -> float:
    ran(
        [
            *(environment / "bin" / "aiperf", "profile", "--model", running.model, "--url", running.url),
            *("--endpoint-type", "chat", "--streaming", "--tokenizer", environment / "tokenizer"),
            *("--request-rate", f"{PER_S * SPEED}", "--request-count", f"{COUNT}", "--ui", "none"),
            *("--synthetic-input-tokens-mean", f"{PROMPT}", "--output-tokens-mean", f"{OUTPUT}"),
            *("--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--output-artifact-dir", "out"),
        ],
        folder,
    )
    (report,) = (folder / "out").rglob("profile_export_aiperf.json")
    found = json.loads(report.read_text())
    assert found["request_count"]["avg"] == COUNT
    return float(found["inter_token_latency"]["avg"])


@pytest.mark.parametrize("client", [openai, vllm, sglang, aiperf], ids=lambda client: client.__name__)
def test_a_real_client_sees_the_tpot_of_the_offline_run(
    client: Client, environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "seen.jsonl"
    deployment = [f"--{name}={value}" for name, value in DEPLOYMENT.items()]
    with server([*deployment, f"--speed={SPEED}", f"--record={record}"]) as running:
        seen = client(environment, running, tmp_path) * SPEED
        running.stop()
    requests = servesim.simulate(trace=str(record), **DEPLOYMENT, intervals=False).requests
    told = requests[requests.output_len == OUTPUT].tail(COUNT)  # without what clients ask before they begin
    assert len(told) == COUNT
    offline = told.tpot_ns.mean() / 1e6
    with capsys.disabled():
        print(f"\n{client.__name__}: mean TPOT {seen:.3f} ms, offline {offline:.3f} ms ({seen / offline - 1:+.2%})")
    assert seen == pytest.approx(offline, rel=0.01)
