"""Processes of the live benchmark: a server whose CPU and memory are read, its client, the stub, and an idle process
whose timer tells how late this machine wakes what sleeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.live_client import Load

ROOT = Path(__file__).resolve().parents[1]
START_S = 120
"""Time in s that a server has to listen."""
TICKS = os.sysconf("SC_CLK_TCK")
TIMER = """
import json, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background ignores
late, due = [], time.monotonic()
try:
    while True:
        due += 0.007
        time.sleep(max(0.0, due - time.monotonic()))
        late.append(time.monotonic() - due)
        due = max(due, time.monotonic())
except KeyboardInterrupt:
    print(json.dumps(late))
"""


class Server:
    """A `servesim serve` that listens on a free port."""

    def __init__(self, arguments: Sequence[str], python: str | Path = sys.executable) -> None:
        """Start it, and wait until it listens. RuntimeError with its last words if it does not."""
        command = [str(python), "-m", "servesim", "serve", "--port", "0", *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes, cwd=ROOT)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if "http://" not in said:
            raise RuntimeError(f"{' '.join(command)}: {self.process.communicate(timeout=START_S)[1].strip()}")
        self.url = said.split("at ")[-1].split()[0]
        self.port = int(self.url.rpartition(":")[2])
        self.model = said.removeprefix("serving ").split()[0]

    def cpu_s(self) -> float:
        """Return the CPU seconds that it has used, from Linux's /proc."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mb(self) -> float:
        """Return its resident memory in MB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self, timeout: float = 90) -> tuple[str, str]:
        """Stop it as a user does, and return what it said on stdout and stderr. RuntimeError if it failed or hung."""
        self.process.send_signal(signal.SIGTERM)
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the server did not end within {timeout:g} s of SIGTERM") from None
        if self.process.returncode:
            raise RuntimeError(f"the server ended with code {self.process.returncode}: {err.strip()}")
        return out, err

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def server(arguments: Sequence[str], python: str | Path = sys.executable) -> Iterator[Server]:
    """Run a server, which is killed at the end if it was not stopped before."""
    started = Server(arguments, python)
    try:
        yield started
    finally:
        started.kill()


def client(load: Load) -> subprocess.Popen[str]:
    """Start a client of its own process."""
    command = [sys.executable, "-m", "benchmarks.live_client", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(load)))
    process.stdin.close()
    process.stdin = None
    return process


def seen_by(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a client, and return what it saw. RuntimeError if it failed."""
    out = process.communicate()[0]
    if process.returncode:
        raise RuntimeError(f"the client ended with code {process.returncode}")
    return dict(json.loads(out))


def send(load: Load) -> dict[str, Any]:
    """Run a client to its end, and return what it saw. RuntimeError if a request got no whole answer."""
    seen = seen_by(client(load))
    failed = [each["error"] for each in seen["requests"] if each["error"]]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(seen['requests'])} requests failed: {failed[0]}")
    return seen


@contextmanager
def timer() -> Iterator[list[float]]:
    """Run an idle process beside the body, and fill the list with how late in s its timers of 7 ms were."""
    late: list[float] = []
    process = subprocess.Popen([sys.executable, "-c", TIMER], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(0.3)  # its start
        yield late
        process.send_signal(signal.SIGINT)
        late.extend(json.loads(process.communicate()[0])[5:])
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@contextmanager
def stub(ttft_ms: float, itl_ms: float) -> Iterator[int]:
    """Run the constant-delay stub, and give its port."""
    command = [sys.executable, "-m", "benchmarks.live_stub", str(ttft_ms), str(itl_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
