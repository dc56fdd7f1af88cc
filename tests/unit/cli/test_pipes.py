"""Pipes as inputs, and interrupts while a policy or a pipe is waited for."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from servesim.cli import app as cli
from servesim.errors import UserError
from servesim.experiments.input_files import digest_of
from servesim.traces import load_trace

ROWS = b"arrival_ns,prompt_len,output_len\n0,10,5\n1000000,20,5\n"
RUN = ["--model", "llama-3.1-8b", "--gpu", "h200"]
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command; return exit code and errors."""

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["servesim", *words])
        return cli._guarded(), capsys.readouterr().err

    return run


@contextmanager
def pipe(folder: Path, data: bytes) -> Iterator[str]:
    """A named pipe through which data comes once."""
    path = folder / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,), daemon=True)
    writer.start()
    yield str(path)
    writer.join(100)
    assert not writer.is_alive()
    path.unlink()


@pytest.mark.parametrize("data", [ROWS, gzip.compress(ROWS)], ids=["plain", "gzip"])
def test_a_trace_comes_through_a_pipe(call: Call, tmp_path: Path, data: bytes) -> None:
    with pipe(tmp_path, data) as path:
        assert call("run", "--trace", path, *RUN, "-q") == (0, "")
    with pipe(tmp_path, data) as path:
        assert len(load_trace(path)) == 2


def test_experiments_read_a_trace_from_a_pipe_once_for_all_runs(call: Call, tmp_path: Path) -> None:
    more = ["--kv", "paged,prefix-hash", "--replicates", "1", "--jobs", "1", "--no-intervals", "-q"]
    with pipe(tmp_path, ROWS) as path:
        assert call("compare", "--trace", path, *RUN, *more) == (0, "")


@pytest.mark.parametrize("command", ["run", "sweep", "compare"])
def test_a_scenario_comes_through_a_pipe(call: Call, tmp_path: Path, command: str) -> None:
    settings = {"trace": "synth:rate=10", "requests": 5, "model": "llama-3.1-8b", "gpu": "h200"}
    more = [] if command == "run" else ["--kv", "paged,prefix-hash", "--replicates", "1", "--no-intervals"]
    with pipe(tmp_path, yaml.safe_dump(settings).encode()) as path:
        assert call(command, path, *more, "-q") == (0, "")


def test_a_pipe_that_runs_would_have_to_read_again_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is a pipe, which can be read only once"):
        digest_of(tmp_path / "pipe")


@pytest.mark.parametrize("waits", ["a pipe", "a policy"])
def test_an_interrupt_ends_a_wait_with_one_line_that_names_the_policy(tmp_path: Path, waits: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sleepy.py").write_text(
        "import pathlib, time\n"
        "from servesim.policies.scheduling.vllm import Vllm\n"
        "class Sleepy(Vllm):\n"
        "    def plan(self, ctx):\n"
        "        self.rest()\n"
        "    def rest(self):\n"
        "        pathlib.Path('begun').touch()\n"
        "        time.sleep(600)\n"
    )
    asked = ["--trace", "pipe"] if waits == "a pipe" else ["--trace", "synth:", "--scheduler", "sleepy.py:Sleepy"]
    command = [sys.executable, "-m", "servesim", "run", *asked, *RUN, "-q"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    ) as process:
        while not ((tmp_path / "begun").exists() if waits == "a policy" else _waits(tmp_path / "pipe")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == 130
    during = "during Sleepy.plan (sleepy.py line 5); " if waits == "a policy" else ""
    assert said == f"interrupted: {during}nothing was written\n"


def _waits(path: Path) -> bool:
    """Return whether a process reads from a pipe, to which nothing is written."""
    try:
        os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    return True


def test_a_compressed_scenario_comes_through_a_pipe(call: Call, tmp_path: Path) -> None:
    settings = {"trace": "synth:rate=10", "requests": 5, "model": "llama-3.1-8b", "gpu": "h200"}
    with pipe(tmp_path, gzip.compress(yaml.safe_dump(settings).encode())) as path:
        assert call("run", path, "-q") == (0, "")
