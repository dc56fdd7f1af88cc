"""Executors of cells: in this process, in worker processes on this machine, or on a Ray cluster.

Every executor takes cells and a store. As each cell ends, it calls `on_done(cell, error)` in the caller's thread;
`error` is None or a one-line description. If a worker dies, its cell is retried once and fails for good if that kills a
worker, too.

Run as a module, this is a worker process: it reads cells as lines of JSON and writes the outcome of each as another
such line. It ends immediately, even in the middle of a cell, when the process that feeds it is gone.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.experiments.store import Cell, Store, compute

OnDone = Callable[[Cell, str | None], None]
Executor = Callable[[Sequence[Cell], Store, OnDone], None]
Process = subprocess.Popen[str]

DIED = "the worker process died twice computing this cell (out of memory?)"


def executor(name: str = "local", jobs: int | None = None) -> Executor:
    """Return the executor named `local` (`jobs` processes, by default one per core) or `ray[:address]`."""
    kind, _, address = name.partition(":")
    if kind == "ray":
        from servesim.experiments.ray_executor import RayExecutor

        return RayExecutor(address or None)
    if name != "local":
        raise UserError(f"executor {name!r}: must be local, ray or ray:ADDRESS")
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs is {jobs} but must be at least 1")
    return Processes(jobs or os.cpu_count() or 1)


class Processes:
    """Worker processes on this machine, each a `python -m servesim.experiments.executors`. With a single job, none are
    used."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._idle: list[Process] = []
        """Processes waiting for the next cell. They have already set up the state shared by runs."""

    def close(self) -> None:
        """Stop the processes."""
        while self._idle:
            _end(self._idle.pop())

    def __call__(self, cells: Sequence[Cell], store: Store, on_done: OnDone) -> None:
        """Compute all cells; see the module's docstring."""
        jobs = min(self.jobs, len(cells))
        if jobs <= 1:
            for cell in cells:
                on_done(cell, compute(cell, store.folder(cell.address)))
            return
        todo, died = deque(cells), set()
        busy: dict[Any, tuple[Process, Cell]] = {}  # by the pipe of their answers
        try:
            while todo or busy:
                while todo and len(busy) < jobs:
                    cell = todo.popleft()
                    try:
                        process = self._idle.pop() if self._idle else _started()
                    except OSError as error:
                        on_done(cell, f"no answer from a worker process: {error}")
                        continue
                    busy[process.stdout] = process, cell
                    asked = [cell.address, cell.settings, str(store.folder(cell.address).absolute())]
                    with suppress(BrokenPipeError):  # it died meanwhile
                        print(json.dumps(asked), file=process.stdin, flush=True)
                ready: list[Any] = wait(list(busy))
                for pipe in ready:
                    answer = pipe.readline()  # cut short if the process died
                    process, cell = busy.pop(pipe)
                    if answer.endswith("\n"):
                        self._idle.append(process)
                        on_done(cell, json.loads(answer)["error"])
                        continue
                    _end(process)
                    if cell.address in died:
                        on_done(cell, DIED)
                    else:
                        died.add(cell.address)
                        todo.appendleft(cell)
        finally:
            for process, _ in busy.values():
                _end(process)


def _started() -> Process:
    command = [sys.executable, "-m", "servesim.experiments.executors"]
    # A worker process inherits this mask, so only this process handles interrupts, even during the worker's imports.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: Process) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:  # closes the pipes and waits
        pass


def work() -> None:
    """Compute cells from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keep a policy's prints out of answers
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        address, settings, folder = json.loads(lines.get())
        answers.write(json.dumps({"error": compute(Cell(address, settings), Path(folder))}) + "\n")


def _read(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    work()
