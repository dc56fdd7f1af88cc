"""Results by what they are results of: a cell's address is a hash of everything that could change it.

    DIR/cells/<address>/    one result directory as `servesim run --out` writes it, whole or not there

An address covers the validated scenario, the content of the files it names (trace, model, policies, host terms,
kernel tables), the simulator's code and tables, and the versions of Python and libraries that stand in a result.
So what is there is never computed again, and what has changed in any way is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.result_files import SUMMARY
from servesim.scenario import Scenario, Settings
from servesim.simulation import simulate, versions

CELLS = "cells"
_FILE_KEYS = ("trace", "model", "gpu", "host", "kernel_tables")
_CODE = ("*.py", "*.json", "*.yaml", "*.npz", "*.parquet")
_PACKAGES = (
    *(f"servesim.{name}" for name in ("contracts", "engine", "hardware", "cost", "metrics")),
    *(f"servesim.{name}" for name in ("policies", "traces", "calibrate.tables")),
)


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    address: str
    settings: Settings

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Cell:
        """UserError where the settings are no scenario."""
        return cls(address_of(settings), dict(settings))


def address_of(settings: Mapping[str, Any]) -> str:
    """20 hexadecimal digits that name the result of these settings with this code."""
    scenario = Scenario.of(settings).model_dump(mode="json")
    made_of = {
        "scenario": scenario,
        "files": dict(sorted(_files(scenario))),
        "code": code_digest(),
        "versions": versions(),
    }
    text = json.dumps(made_of, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def compute(cell: Cell, folder: Path) -> str | None:
    """Run a cell into its folder; None, or what went wrong in one line."""
    try:
        if address_of(cell.settings) != cell.address:
            return "this machine has other code or files than the one that asked: install the same version and inputs"
        simulate(cell.settings, out=folder)
    except Exception as error:  # whatever a policy or a library raises is this cell's failure, not the sweep's
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return " ".join(f"{kind}{error}".split())
    return None


class Store:
    """The results of one experiment directory."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.cells = self.root / CELLS

    def folder(self, address: str) -> Path:
        """Where the result of a cell stands or will stand."""
        return self.cells / address

    def __contains__(self, address: str) -> bool:
        return (self.folder(address) / SUMMARY).is_file()

    def put(self, address: str, files: Mapping[str, bytes]) -> None:
        """A result computed elsewhere, whole or not at all."""
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
        """The directory is ours alone until the end; what a killed run left half-written is removed."""
        import fcntl

        try:
            self.cells.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.cells, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"--out {self.root}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise UserError(f"--out {self.root}: another experiment is writing there") from None
        try:
            for left in (*self.cells.glob("*.partial"), *self.cells.glob("*.replaced")):
                shutil.rmtree(left, ignore_errors=True)
            yield self
        finally:
            os.close(handle)


@cache
def code_digest() -> str:
    """Hash of the code and tables a result depends on; experiments, reports and command line are not among them."""
    digest = hashlib.sha256()
    here = Path(__file__).resolve().parents[1]
    files = [(f"servesim/{p.name}", p) for p in sorted(here.glob("*.py")) if not p.name.startswith("cli")]
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            found = sorted(p for pattern in _CODE for p in Path(folder).rglob(pattern))
            files += [(f"{package}/{p.relative_to(folder)}", p) for p in found]
    for name, path in files:
        digest.update(f"{name}\0{_sha256(path)}\n".encode())
    return digest.hexdigest()


def _files(scenario: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name as the scenario has it, hash) of the files a scenario names, policies and their parameters included."""
    named = [scenario[key] for key in _FILE_KEYS]
    for policy in (value for value in scenario.values() if isinstance(value, Mapping) and "name" in value):
        head, py, _ = str(policy["name"]).partition(".py:")
        named += [f"{head}.py"] if py else []
        named += [value for key, value in policy.items() if key != "name" and isinstance(value, str)]
    for path in (Path(name) for name in named if isinstance(name, str)):
        if path.is_file():
            yield str(path), _sha256(path)
        elif path.is_dir():
            for inner in sorted(p for p in path.rglob("*") if p.is_file()):
                yield str(inner), _sha256(inner)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
