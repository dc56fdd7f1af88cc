"""Results stored by their inputs: a cell's address is a hash of everything that could change its result.

    DIR/cells/<address>/    one result directory as `servesim run --out` writes it, complete or absent

Next to `cells` are the experiment's document, its table, its page, and DIR/traces (servesim.experiments.objects).

An address covers the validated scenario, the content of every file it refers to (servesim.experiments.input_files), the
simulator's code and tables, and the versions of Python and libraries recorded in a result. A stored result is therefore
never recomputed, and any change to what it depends on leads to a new computation.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from servesim.contracts.section import Settings
from servesim.errors import UserError
from servesim.experiments.input_files import digest_of, input_digests
from servesim.experiments.objects import TRACES, kept_trace
from servesim.run.provenance import as_written
from servesim.run.result import Result
from servesim.run.result_files import REPORT, REQUESTS, STREAMED, SUMMARY, TIMING, locked, reading, writable
from servesim.run.scenario import Scenario
from servesim.run.simulate import simulate
from servesim.run.summary import versions
from servesim.untrusted import read_json

CELLS = "cells"
RUNS = "runs"
"""Folder of a store inside the --out directory of a command that also writes other files."""
DEPLOY = "deploy"
"""Folder of the files that start a recommended deployment."""
DOCUMENTS = ("comparison.json", "sweep.json", "capacity.json")
"""Documents that experiments write next to their runs, each with a table of the same name."""


def table_of(document: str) -> str:
    """Return the name of the table that belongs to a document."""
    return document.replace(".json", ".parquet")


_TABLES = tuple(map(table_of, DOCUMENTS))
_CODE = ("*.py", "*.json", "*.yaml", "*.npz", "*.parquet")
_PACKAGES = (
    *(f"servesim.{name}" for name in ("contracts", "engine", "workload", "hardware", "cost", "metrics", "run")),
    *(f"servesim.{name}" for name in ("policies", "features", "intervals", "records", "traces", "calibrate.tables")),
)


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    address: str
    settings: Settings


def address_of(settings: Mapping[str, Any]) -> str:
    """Return 20 hexadecimal digits that identify the result of these settings with this code. Raise UserError if the
    settings are not a valid scenario."""
    scenario = Scenario.of(settings)
    return address_with({"scenario": scenario.model_dump(mode="json"), "files": input_digests(scenario)})


def address_with(inputs: Mapping[str, Any], *packages: str) -> str:
    """Return 20 hexadecimal digits that identify the result of these inputs with this code and that of further
    packages."""
    made_of = {**inputs, "code": code_digest(*packages), "versions": versions()}
    text = json.dumps(made_of, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def compute(cell: Cell, folder: Path) -> str | None:
    """Run a cell and write its result to its folder. Return None, or one line that describes the error."""
    try:
        if address_of(cell.settings) != cell.address:
            return (
                "the code or files of this machine differ from the machine that started the run: install the "
                "same version and inputs"
            )
        simulate(cell.settings, trace=kept_trace(cell.settings, folder.parents[1]), out=folder)
    except Exception as error:  # any exception from a policy or a library fails this cell, not the sweep
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return " ".join(f"{kind}{error}".split())
    return None


class Store:
    """Store with the results of one experiment directory."""

    def __init__(self, root: str | Path, document: str = "") -> None:
        """Open the store below `root`. `document` is the name of the file that the experiment writes there."""
        self.root = Path(root)
        self.cells = self.root / CELLS
        self._document = document

    def folder(self, address: str) -> Path:
        """Return the path of a cell's result, whether or not it exists."""
        return self.cells / address

    def __contains__(self, address: str) -> bool:
        return (self.folder(address) / SUMMARY).is_file()

    def document(self, address: str) -> dict[str, Any] | None:
        """Return the summary stored at an address, or None if there is none. Raise UserError if it is damaged."""
        if address not in self:
            return None
        found = read_json(self.folder(address) / SUMMARY)
        if not isinstance(found, dict):
            raise UserError(f"{self.folder(address) / SUMMARY}: damaged: it must contain a JSON object")
        return found

    def damage(self, address: str) -> str | None:
        """Return one line that describes the damage to a stored result, or None if all of its files are readable and
        unchanged."""
        import pyarrow.parquet as pq

        folder = self.folder(address)
        try:
            Result.load(folder)
            for file in (REQUESTS, *STREAMED):
                with reading(folder / file):
                    pq.read_table(folder / file, use_threads=False)
        except UserError as error:
            return str(error)
        changed = f"{folder}: damaged result: its files were changed after they were written"
        return None if as_written(folder, TIMING) else changed

    def drop(self, address: str) -> None:
        """Remove a result."""
        shutil.rmtree(self.folder(address))

    def put(self, address: str, files: Mapping[str, bytes]) -> None:
        """Store the files of a result computed elsewhere, completely or not at all."""
        partial = self.cells / f"{address}.{os.getpid()}.partial"
        partial.mkdir()
        for name, data in files.items():
            (partial / name).write_bytes(data)
        if address in self:
            shutil.rmtree(partial)
        else:
            partial.rename(self.folder(address))

    @contextmanager
    def open(self) -> Iterator[Store]:
        """Keep the directory locked against other processes until the context ends, and first remove the partial
        results of a killed run. If an experiment fails before a run has ended, the folders it created are removed."""
        self._refuse_foreign()
        made = [folder for folder in (self.cells, *self.cells.parents) if not folder.exists()]
        with writable(self.root):
            self.cells.mkdir(parents=True, exist_ok=True)
            lock = locked(self.cells)
        if lock is None:
            raise UserError(f"--out {self.root}: another experiment is writing to this directory")
        try:
            for left in (*self.cells.glob("*.partial"), *self.cells.glob("*.replaced")):
                shutil.rmtree(left, ignore_errors=True)
            yield self
        except BaseException:
            with suppress(OSError):  # a nonempty folder stays, as do its parents
                for folder in made:
                    folder.rmdir()
            raise
        finally:
            os.close(lock)

    def _refuse_foreign(self) -> None:
        """Raise UserError if the directory holds anything but an earlier experiment of this kind, which would be
        continued."""
        if self.root.is_dir():
            for name in sorted(path.name for path in self.root.iterdir()):
                if name in DOCUMENTS and self._document not in ("", name):
                    raise UserError(
                        f"--out {self.root}: contains a different kind of experiment ({name}; --overwrite replaces it)"
                    )
                if name not in (CELLS, TRACES, DEPLOY, REPORT, *DOCUMENTS, *_TABLES) and not name.startswith("."):
                    raise UserError(f"--out {self.root}: exists and is not a servesim experiment (it contains {name})")
        elif self.root.exists():
            raise UserError(f"--out {self.root}: exists and is not a directory")


@cache
def code_digest(*packages: str) -> str:
    """Return a hash of the code and tables that a result depends on. Experiments, reports and the command line are
    excluded unless they are among these packages."""
    digest = hashlib.sha256()
    here = Path(__file__).resolve().parents[1]
    files = [(f"servesim/{p.name}", p) for p in sorted(here.glob("*.py"))]
    for package in (*_PACKAGES, *packages):
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            found = sorted(p for pattern in _CODE for p in Path(folder).rglob(pattern))
            files += [(f"{package}/{p.relative_to(folder)}", p) for p in found]
    for name, path in files:
        digest.update(f"{name}\0{digest_of(path)}\n".encode())
    return digest.hexdigest()
