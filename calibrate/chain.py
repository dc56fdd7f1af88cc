"""Whole calibration of one model on one device: its stages, and a record of those that are done.

A stage is a command of servesim in a process of its own, run in the folder of the calibration: an error of a GPU ends a
process, and the next one starts clean. `chain.json` records what is done; a stage runs again if its command differs, if
a file of it is missing, or if a stage before it ran.
"""

from __future__ import annotations

import fcntl
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.run.result_files import write_text

RECORD, LOCK, REPORT = "chain.json", "chain.lock", "report.md"
BUDGET_S = {"cuda": 3000.0, "cpu": 360.0}
"""Default seconds for profile and steps together, which stop at their budgets. The rest has none: engine, validate,
left-out and report took under two minutes for tiny-llama on a processor; vLLM's start and two minutes of arrivals come
on a GPU."""
_PROFILE = 0.75
"""Share of the budget for the profile; whole steps have the rest."""
_TRIES, _LEAST_S = 3, 15.0
"""Maximum number of processes for a stage that measures, and seconds below which no other one starts."""
_TRACE = {
    "cuda": ("preset:azure-conv-2023", 240, 4.0),
    "cpu": ("synth:rate=20,prompt=uniform(32,160),output=uniform(8,32)", 24, None),
}
"""Default traces for the engine: trace, requests, and requests/s if other than the trace's."""


@dataclass(frozen=True)
class Plan:
    """Settings of a calibration."""

    model: str
    device: str = "cuda"
    budget_s: float | None = None
    engine: str | None = None
    dtype: str = "bf16"
    libraries: tuple[Path, ...] = ()
    trace: str | None = None
    requests: int | None = None
    rate: float | None = None
    max_drift: float | None = None


@dataclass(frozen=True)
class Stage:
    """One part of a calibration."""

    name: str
    why: str
    arguments: tuple[str, ...]
    """Arguments of `servesim`, with paths relative to the calibration's folder."""
    files: tuple[str, ...]
    """Files that exist when it is done."""
    budget_s: float | None = None
    """Seconds to measure, for stages that stop by themselves and are tried again if they kept something."""

    def command(self, seconds: float | None = None) -> list[str]:
        """Return the arguments with a budget of `seconds`, or its own."""
        if self.budget_s is None:
            return list(self.arguments)
        return [*self.arguments, "--budget-s", f"{seconds or self.budget_s:.0f}"]


Run = Callable[[Sequence[str], Path], str | None]
"""Runs `servesim` with these arguments in a folder; returns None, or the error that ended it."""


def stages(plan: Plan) -> list[Stage]:
    """Return the stages of a calibration in order."""
    trace, requests, rate = _TRACE[plan.device]
    if plan.trace is not None:
        trace, requests, rate = _absolute(plan.trace), 0, None
    requests, rate = plan.requests or requests, plan.rate or rate
    budget = plan.budget_s or BUDGET_S[plan.device]
    engine = plan.engine or ("vllm" if plan.device == "cuda" and find_spec("vllm") else "transformers")
    model = ("--device", plan.device, "--model", _absolute(plan.model))
    kernels = (*model, "--dtype", plan.dtype, *(w for path in plan.libraries for w in ("--library", _absolute(path))))
    drift = () if plan.max_drift is None else ("--max-drift", f"{plan.max_drift:g}")
    tables = ("--kernel-tables", "tables")
    served = [*model, *tables, "--engine", engine, "--trace", trace]
    served += ["--requests", str(requests)] if requests else []
    served += ["--rate", f"{rate:g}"] if rate else []
    served += ["--clock", "cpu"] if (plan.device, engine) == ("cpu", "transformers") else []
    judged = ("log", *tables, "--host", "log/host.yaml", "--json", "errors.json")
    return [
        Stage(
            "profile",
            "times the kernels one by one",
            ("calibrate", "profile", *kernels, *drift, "--out", "tables"),
            ("tables/profile.json", "tables/measured-gemm.parquet"),
            budget * _PROFILE,
        ),
        Stage(
            "steps",
            "holds whole steps against the sum of their kernels",
            ("calibrate", "steps", *kernels, *tables, "--out", "steps"),
            ("steps",),
            budget * (1 - _PROFILE),
        ),
        Stage(
            "engine",
            "serves a trace by a real engine, and fits host terms to its warm-up",
            ("calibrate", "engine", *served, "--out", "log"),
            ("log/requests.jsonl", "log/host.yaml"),
        ),
        Stage("validate", "replays the log with these tables and host terms", ("validate", *judged), ("errors.json",)),
        Stage(
            "left-out",
            "looks up rows in tables without them",
            ("calibrate", "left-out", "tables", "--json", "left-out.json"),
            ("left-out.json",),
        ),
        Stage(
            "report",
            "makes a page of the tables",
            ("calibrate", "report", "tables", "-o", "tables.html"),
            ("tables.html",),
        ),
    ]


def _absolute(path: str | Path) -> str:
    """Return a path that is the same in any folder, and names as they are."""
    return str(Path(path).resolve()) if Path(path).exists() else str(path)


class Chain:
    """Folder of a calibration, and which stages are done in it."""

    def __init__(self, folder: Path, parts: Sequence[Stage]) -> None:
        self.folder, self.parts = folder, list(parts)
        self.record: dict[str, Any] = {}
        path = folder / RECORD
        if path.is_file():
            try:
                self.record = dict(json.loads(path.read_text())["stages"])
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path} is not the record of a calibration: {error}") from None

    def todo(self) -> list[Stage]:
        """Return the stages from the first one that is not done."""
        for i, stage in enumerate(self.parts):
            there = all((self.folder / name).exists() for name in stage.files)
            if not there or self.record.get(stage.name, {}).get("command") != stage.command():
                return self.parts[i:]
        return []

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder and hold it: two calibrations at once would mix their measurements. The parts inherit the
        lock, so that one whose parent was killed keeps the folder until it ends."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / LOCK).exists() and any(self.folder.iterdir()):
                raise UserError(f"--out {self.folder}: contains other files but no calibration: choose another folder")
            file = (self.folder / LOCK).open("w")
        except OSError as error:
            raise UserError(f"--out {self.folder}: {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"--out {self.folder}: a calibration is running there") from None
            self._lock = file.fileno()
            yield

    def run(self, run: Run | None = None, say: Callable[[str], object] = print) -> None:
        """Run the stages that are not done; raise UserError with the first one that fails."""
        for stage in self.todo():
            say(f"{stage.name}: {stage.why}")
            say(f"  servesim {shlex.join(stage.command())}")
            began = time.monotonic()
            error = self._tried(stage, run or self._process)
            missing = [name for name in stage.files if not (self.folder / name).exists()]
            if error is None and missing:
                error = f"{missing[0]} was not written"
            if error is not None:
                raise UserError(f"{stage.name}: {error} (the same command goes on from here)")
            finished = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            seconds = round(time.monotonic() - began, 1)
            self.record[stage.name] = {"command": stage.command(), "seconds": seconds, "finished": finished}
            write_text(self.folder / RECORD, json.dumps({"stages": self.record}, indent=1) + "\n", "--out")

    def _tried(self, stage: Stage, run: Run) -> str | None:
        """Run a stage; return its error. One that measures is tried again if it kept something: points lost to an error
        of the GPU are left out, and points measured while the clock drifted are measured again."""
        if stage.budget_s is None:
            return run(stage.command(), self.folder)
        began, left = time.monotonic(), stage.budget_s
        for _ in range(_TRIES):
            before = self._kept()
            error = run(stage.command(left), self.folder)
            left = stage.budget_s - (time.monotonic() - began)
            if error is None or left < _LEAST_S or self._kept() == before:
                break
        return error

    def _kept(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("tables/*.json*"))

    def _process(self, arguments: Sequence[str], folder: Path) -> str | None:
        command = [sys.executable, "-P", "-m", "servesim", *arguments]
        popen = subprocess.Popen(
            command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True, pass_fds=(self._lock,)
        )
        error = None
        with popen as process:
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    if line.startswith("error: "):
                        error = line.removeprefix("error: ").strip()
                    else:
                        sys.stderr.write(line)
            except BaseException:
                process.terminate()  # the parts take it as Ctrl-C and keep what they have
                raise
        return None if process.returncode == 0 else error or f"ended with exit code {process.returncode}"
