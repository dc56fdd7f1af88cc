"""Executors of cells: in this process, in worker processes on this machine, or on a Ray cluster.

Every executor takes cells and a store. As each cell ends, it calls `on_done(cell, error)` in the caller's thread;
`error` is None or a one-line description. If a worker dies, its cell is retried once and fails for good if that kills a
worker, too.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from servesim.errors import UserError
from servesim.experiments.store import Cell, Store, compute

OnDone = Callable[[Cell, str | None], None]
Executor = Callable[[Sequence[Cell], Store, OnDone], None]

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
    """Worker processes on this machine, each a `python -m servesim.experiments.worker`. With a single job, none are
    used."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._idle: list[subprocess.Popen[str]] = []
        """Processes waiting for the next call. They have already set up the state shared by runs."""

    def close(self) -> None:
        """Stop the processes."""
        while self._idle:
            _ended(self._idle.pop())

    def __call__(self, cells: Sequence[Cell], store: Store, on_done: OnDone) -> None:
        """Compute all cells; see the module's docstring."""
        jobs = min(self.jobs, len(cells))
        if jobs <= 1:
            for cell in cells:
                on_done(cell, compute(cell, store.folder(cell.address)))
            return
        todo: queue.SimpleQueue[Cell | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[Cell, str | None]] = queue.SimpleQueue()
        for item in (*cells, *[None] * jobs):
            todo.put(item)
        workers = [_Worker(todo, done, store, self._idle) for _ in range(jobs)]
        try:
            for worker in workers:
                worker.start()
            for _ in cells:
                on_done(*done.get())
            for worker in workers:
                worker.join()
        finally:
            for worker in (w for w in workers if w.ident is not None):
                worker.stop()


class _Worker(threading.Thread):
    """Thread that feeds one worker process and replaces it if it dies."""

    def __init__(self, todo: Any, done: Any, store: Store, idle: list[subprocess.Popen[str]]) -> None:
        super().__init__(daemon=True)
        self._idle = idle
        self._todo, self._done, self._store = todo, done, store
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self) -> None:
        """Compute cells until none are left."""
        # A worker process inherits this mask, so only the process that feeds it handles interrupts, even during the
        # worker's imports.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        while (cell := self._todo.get()) is not None and not self._stopped:
            try:
                answer = self._ask(cell) or self._ask(cell) or {"error": DIED}
            except (OSError, ValueError) as error:
                answer = {"error": f"no answer from a worker process: {error}"}
            self._done.put((cell, answer["error"]))
        if self._process is not None and not self._stopped:
            self._idle.append(self._process)
            self._process = None
        self._end()

    def stop(self) -> None:
        """Stop the thread and its process, whatever they are doing."""
        self._stopped = True
        while self.is_alive():
            if (process := self._process) is not None:
                process.kill()
            self.join(0.05)

    def _ask(self, cell: Cell) -> dict[str, Any] | None:
        """Send a cell to the process and return its answer, or None if the process died."""
        if self._stopped:
            return None
        if self._process is None:
            with suppress(IndexError):
                self._process = self._idle.pop()
        if self._process is None:
            command = [sys.executable, "-m", "servesim.experiments.worker"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        folder = self._store.folder(cell.address).absolute()
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([cell.address, cell.settings, str(folder)]) + "\n")
            self._process.stdin.flush()
            if answer := self._process.stdout.readline():
                loaded: dict[str, Any] = json.loads(answer)
                return loaded
        self._end()
        return None

    def _end(self) -> None:
        if self._process is not None:
            _ended(self._process)
            self._process = None


def _ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:  # closes the pipes and waits
        pass
