"""Runner that computes the cells of an experiment, each once, and records their errors."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown
from servesim.experiments.documents import plain
from servesim.experiments.executors import Executor, Processes, executor
from servesim.experiments.objects import Objects
from servesim.experiments.run_metrics import Run
from servesim.experiments.store import DOCUMENTS, Cell, Store, address_of, table_of
from servesim.untrusted import read_json


@dataclass(frozen=True)
class Progress:
    """Progress of an experiment after one more cell is done."""

    done: int
    total: int
    cell: Cell
    error: str | None
    computed: bool
    """Whether the cell was just computed rather than found in the store."""
    name: str = ""
    """Name of the cell in its experiment."""
    left: int | None = None
    """Number of cells likely to follow beyond `total`, or None if none are expected."""
    best: str = ""
    """Best variant that a sweep has found so far."""
    damage: str | None = None
    """Damage found in the earlier result, if it had to be recomputed."""


OnProgress = Callable[[Progress], None]


@dataclass
class Runner:
    """An open experiment directory, and the executor of its cells."""

    store: Store
    execute: Executor
    on_progress: OnProgress
    objects: Objects
    """Traces that are not files."""
    errors: dict[str, str] = field(default_factory=dict)
    """Errors by address."""
    _read: set[str] = field(default_factory=set)
    """Addresses of results that are known to be complete."""

    def run(self, cells: Sequence[Cell], names: Mapping[str, str] | None = None, left: int | None = None) -> None:
        """Compute every cell that is neither completely stored nor known to fail. `names` (by address) and `left`, the
        number of cells that will probably be requested later, are passed to the progress callback."""
        wanted = {cell.address: cell for cell in cells}
        unread = [address for address in wanted if address in self.store and address not in self._read]
        damages = {address: damage for address in unread if (damage := self.store.damage(address)) is not None}
        for address in damages:
            self.store.drop(address)
        missing = [cell for address, cell in wanted.items() if address not in self.store and address not in self.errors]
        done, total = 0, len(wanted)
        self.objects.keep(self.store.root)

        def on_done(cell: Cell, error: str | None, computed: bool = True) -> None:
            nonlocal done
            done += 1
            if error is not None:
                self.errors[cell.address] = error
            name, damage = (names or {}).get(cell.address, ""), damages.get(cell.address)
            self.on_progress(Progress(done, total, cell, error, computed, name, left, damage=damage))

        for cell in wanted.values():
            if cell not in missing:
                on_done(cell, self.errors.get(cell.address), False)
        if missing:
            self.execute(missing, self.store, on_done)
        self._read |= wanted.keys()

    def cell(self, settings: Mapping[str, Any]) -> Cell:
        """Return the cell of these settings. For an invalid scenario, return a cell that has already failed."""
        try:
            return Cell(address_of(settings), dict(settings))
        except UserError as error:
            return self.failed(settings, str(error))

    def failed(self, settings: Mapping[str, Any], error: str) -> Cell:
        """Return a cell that is known to fail."""
        address = f"invalid {len(self.errors)}"
        self.errors[address] = error
        return Cell(address, dict(settings))

    def load(self, cell: Cell) -> Run:
        """Load the result of a computed cell."""
        return Run.load(self.store.folder(cell.address))

    def folder(self, cell: Cell) -> Path:
        """Return the result directory of a cell."""
        return self.store.folder(cell.address)


def check_same(document: Path, workload: Mapping[str, Any]) -> None:
    """Raise UserError if the document of an earlier experiment has settings that differ from `workload`. Additional
    axes do not make it a different experiment: only settings present in both are compared."""
    try:
        earlier = read_json(document)["workload"] if document.is_file() else {}
    except (UserError, KeyError, TypeError):
        return  # damaged: nothing to lose
    now = plain(workload)
    differing = sorted(key for key in now.keys() & earlier.keys() if now[key] != earlier[key])
    if differing:
        raise UserError(
            f"--out {document.parent}: contains a different experiment ({differing[0]} is "
            f"{shown(earlier[differing[0]])} there; --overwrite replaces it)"
        )


@contextmanager
def open_runner(
    out: str | Path | None,
    document: str,
    where: str,
    jobs: int | None,
    on_progress: OnProgress | None,
    objects: Objects | None = None,
    workload: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[Runner]:
    """Open a runner over `out`, which will hold `document`, or over a temporary directory that is removed afterwards.
    `workload` holds the settings that all runs share. Without `overwrite`, the document of another workload, or of
    another kind of experiment, is not replaced."""
    if out is not None and not overwrite:
        check_same(Path(out) / document, workload or {})
    elif out is not None:
        for name in set(DOCUMENTS) - {document}:
            for left in (name, table_of(name)):
                (Path(out) / left).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="servesim-") as scratch, Store(out or scratch, document).open() as store:
        execute, report = executor(where, jobs), on_progress or (lambda progress: None)
        try:
            yield Runner(store, execute, report, Objects() if objects is None else objects)
        finally:
            if isinstance(execute, Processes):
                execute.close()
