"""Time one case: `python -m benchmarks.measure CASE` prints its figures as JSON; the table calls it for each case."""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.cases import BASE, CASES, SHARED, Case
from benchmarks.instructions import Counter

MEASURE = "import servesim, sys; sys.path.insert(0, sys.argv.pop(1)); from benchmarks.measure import main; main()"
"""Code that a fresh interpreter runs: its own servesim with the benchmarks of this checkout, whose path comes first."""


class Meter:
    """CPU seconds, and instructions where they can be counted, between `start` and `stop`; the least of several."""

    def __init__(self) -> None:
        self.cpu_s = float("inf")
        self.instructions: int | None = None
        try:
            self._counter: Counter | None = Counter()
            self.reason = ""
        except OSError as error:
            self._counter, self.reason = None, str(error)

    def start(self) -> None:
        self._began = time.process_time()
        self._first = self._counter.read() if self._counter else 0

    def stop(self) -> None:
        if self._counter:
            count = self._counter.read() - self._first
            self.instructions = count if self.instructions is None else min(count, self.instructions)
        self.cpu_s = min(self.cpu_s, time.process_time() - self._began)


def settings_of(case: Case, requests: int | None = None) -> dict[str, Any]:
    """Return keywords of servesim.simulate. FileNotFoundError where the case's trace is not there."""
    settings = {**BASE, **case.settings}
    if case.file is not None:
        if not (SHARED / case.file).is_file():
            raise FileNotFoundError(f"{case.file} is not in {SHARED.name}/ (SERVESIM_SHARED names the folder)")
        settings["trace"] = str(SHARED / case.file)
    return settings | ({"requests": requests} if requests is not None else {})


def measure(name: str, requests: int | None = None, repeats: int | None = None) -> dict[str, Any]:
    """Return the figures of one case, by the quickest of several runs in this process."""
    case = CASES[name]
    settings = settings_of(case, requests)
    if case.process:
        return _whole_process(case, settings, repeats or case.repeats)
    import servesim
    from servesim.engine.cluster import Cluster

    loop, startup, wall = Meter(), [], []
    run = Cluster.run

    def metered(cluster: Cluster) -> None:
        loop.start()
        run(cluster)
        loop.stop()

    with patch.object(Cluster, "run", metered):
        for _ in range(repeats or case.repeats):
            gc.collect()
            began = time.process_time()
            result = servesim.simulate(settings)
            wall.append(time.process_time() - began)
            startup.append(result.timing["startup_cpu_s"])
            peak = peak_memory_mb()
            steps, count = result.summary["engine"]["steps"], result.summary["requests"]["arrived"]
            batch = result.summary["engine"]["batch_size"]
            del result
    return {
        "requests": count,
        "steps": steps,
        "mean_batch": batch["mean"] if batch else None,
        "loop_cpu_s": loop.cpu_s,
        "loop_instructions": loop.instructions,
        "startup_cpu_s": startup[0],  # later ones find kernel tables and imports in memory
        "total_cpu_s": min(wall),
        "peak_memory_mb": peak,
        "gc": f"{'on' if gc.isenabled() else 'off'} {','.join(map(str, gc.get_threshold()))}",
        "skipped": loop.reason or None,
    }


def _whole_process(case: Case, settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Return CPU seconds, user and system, of the command line from its start to its end."""
    best, peak = float("inf"), 0
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "scenario.yaml"
        scenario.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
        command = [sys.executable, "-m", "servesim", "run", str(scenario), *case.options]
        command += ["--out", str(Path(folder) / "out")] if case.writes else []
        for _ in range(repeats + 1):  # the first one warms the file cache
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError(f"servesim run ended with {process.returncode}")
            best, peak = min(best, usage.ru_utime + usage.ru_stime), usage.ru_maxrss
    return {
        "requests": settings["requests"],
        "process_cpu_s": best,
        "peak_memory_mb": peak / 2**10,
    }


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process since it began to run this program."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss also remembers the process that started this one
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def in_own_process(name: str, requests: int | None = None, repeats: int | None = None) -> dict[str, Any]:
    """Return the same figures from a fresh interpreter, of the servesim installed for it; `skipped` alone, with the
    reason, where there are none."""
    command = [sys.executable, "-P", "-c", MEASURE, str(Path(__file__).parents[1]), name]
    for option, value in (("--requests", requests), ("--repeats", repeats)):
        command += [option, str(value)] if value is not None else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"skipped": last}
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--requests", type=int, help="instead of the case's own number")
    parser.add_argument("--repeats", type=int, help="take the quickest of N runs")
    args = parser.parse_args()
    try:
        figures = measure(args.case, args.requests, args.repeats)
    except FileNotFoundError as error:
        sys.exit(str(error))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
