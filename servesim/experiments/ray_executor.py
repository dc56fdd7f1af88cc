"""Execution of cells on a Ray cluster (extra `ray`). Results travel back through Ray, so no shared file system is
needed. Every node needs the same version of servesim, and the files that a scenario names at the same paths."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.experiments.objects import TRACES, trace_file
from servesim.experiments.store import CELLS, Cell, Store, compute

RETRIES = 3
"""Number of retries for a cell whose worker or node died."""
LISTENER = "ray_listen_error_messages"
"""Thread of Ray that prints a cluster's errors, the last lines of a dead daemon's log among them, whatever
`log_to_driver` says."""


class Quiet:
    """Standard output without what Ray's listener prints: dead workers and nodes are retried, and a cell that fails has
    an error of its own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, unless it comes from the listener."""
        return len(text) if threading.current_thread().name == LISTENER else int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class RayExecutor:
    """Executor that runs each cell as a Ray task on one CPU."""

    def __init__(self, address: str | None = None) -> None:
        """Connect to a cluster. `address` is host:port of a running cluster, "auto" for the one on this machine, or
        None for the cluster that RAY_ADDRESS names, or else a new one."""
        try:
            import ray
        except ImportError:
            raise UserError("executor ray: the package ray is missing (pip install 'servesim[ray]')") from None
        self._ray = ray
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except ConnectionError as error:
                raise UserError(f"executor ray:{address}: no Ray cluster answers at this address") from error

    def __call__(self, cells: Sequence[Cell], store: Store, on_done: Any) -> None:
        """See servesim.experiments.executors."""
        with redirect_stdout(Quiet(sys.stdout)):
            self._compute_all(cells, store, on_done)

    def _compute_all(self, cells: Sequence[Cell], store: Store, on_done: Any) -> None:
        ray = self._ray
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_compute)
        traces = {path: ray.put(path.read_bytes()) for cell in cells if (path := trace_file(cell.settings, store.root))}
        waiting = {}
        for cell in cells:
            path = trace_file(cell.settings, store.root)
            waiting[task.remote(cell, os.getcwd(), path and path.name, path and traces[path])] = cell
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                cell = waiting.pop(reference)
                try:
                    outcome = ray.get(reference)
                except ray.exceptions.RayError as error:
                    outcome = f"{type(error).__name__}: its worker died {RETRIES + 1} times"
                if isinstance(outcome, str):
                    on_done(cell, outcome)
                else:
                    store.put(cell.address, outcome)
                    on_done(cell, None)


def _compute(cell: Cell, folder: str, trace_name: str | None, trace: bytes | None) -> str | dict[str, bytes]:
    """Compute a cell on a node. Return the result's files, or the error. Relative paths are resolved against `folder`
    if it exists."""
    if os.path.isdir(folder):
        os.chdir(folder)
    with tempfile.TemporaryDirectory() as scratch:
        if trace_name is not None and trace is not None:
            kept = Path(scratch) / TRACES / trace_name
            kept.parent.mkdir()
            kept.write_bytes(trace)
        out = Path(scratch) / CELLS / cell.address
        out.parent.mkdir()
        error = compute(cell, out)
        return error if error is not None else {path.name: path.read_bytes() for path in sorted(out.iterdir())}
