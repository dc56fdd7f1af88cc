"""Conditions that must not matter: the same worlds in a separate process with a different hash seed, clock, global
random state and object addresses."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from servesim.errors import PolicyError

CLOCKS = ((1_000_000_000.0, 1e-6), (2_000_000_001.5, 0.0137))
"""Start of a simulated clock and its increment per call, in seconds."""


@dataclass(frozen=True)
class Conditions:
    """Settings that differ from one process to the next."""

    hash_seed: int = 1
    clock: int = 0
    """Index into CLOCKS."""
    random_seed: int = 0
    ballast: int = 0
    """Number of requests created before each world; every other one is kept, so that the world's own requests have
    different addresses."""


class Elsewhere:
    """Worlds of a policy, run step by step in a separate process."""

    def __init__(self, spec: str, numbers: Sequence[int], conditions: Conditions) -> None:
        """Start the process, which runs in the background."""
        self._folder = tempfile.TemporaryDirectory(prefix="servesim-check-")
        self._out = Path(self._folder.name) / "attempts"
        task = {"spec": spec, "numbers": list(numbers), "conditions": asdict(conditions), "out": str(self._out)}
        code = f"import sys; sys.path[:] = {sys.path!r}; from servesim.checking.conditions import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": str(conditions.hash_seed)},
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task))
        self._process.stdin.close()
        self._process.stdin = None  # else communicate() closes it

    def attempts(self) -> dict[int, Any]:
        """Return the outcome of each world by its number once the process has ended. Raise PolicyError if it fails."""
        try:
            _, said = self._process.communicate()
            if self._process.returncode or not self._out.is_file():
                last = (said.strip().splitlines() or [f"exit code {self._process.returncode}"])[-1]
                raise PolicyError(f"the policy cannot be run in a separate process: {last}")
            found: dict[int, Any] = pickle.loads(self._out.read_bytes())
            return found
        finally:
            self.close()

    def close(self) -> None:
        """End the process if it is still running, and clean up."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        self._folder.cleanup()


def main() -> None:
    """Run the task read from standard input. `Elsewhere` calls this function in a separate process."""
    task = json.load(sys.stdin)
    conditions = Conditions(**task["conditions"])
    from servesim.checking.attempt import attempt
    from servesim.checking.placed import world_of
    from servesim.checking.subject import Subject
    from servesim.contracts import Request

    _set_clock(*CLOCKS[conditions.clock])  # before the policy's file imports functions from it
    subject = Subject.of(task["spec"])
    kept, found = [], {}
    for number in task["numbers"]:
        kept += [Request(i, "", 1, 1, 0) for i in range(conditions.ballast)][number % 3 :: 2]
        found[number] = attempt(world_of(number, subject), "reference", seed=conditions.random_seed)
    Path(task["out"]).write_bytes(pickle.dumps(found))


def _set_clock(start: float, each: float) -> None:
    """Make the functions of `time` and `datetime` return a simulated time that depends only on the number of calls."""
    import datetime
    import time

    asked = 0

    def now() -> float:
        nonlocal asked
        asked += 1
        return start + asked * each

    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, now)
        setattr(time, f"{name}_ns", lambda: int(now() * 1e9))
    local, greenwich = time.localtime, time.gmtime
    time.localtime = lambda seconds=None: local(now() if seconds is None else seconds)
    time.gmtime = lambda seconds=None: greenwich(now() if seconds is None else seconds)

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

    datetime.datetime = Datetime  # type: ignore[misc]
