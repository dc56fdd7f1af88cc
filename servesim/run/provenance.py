"""The inputs of a result besides its scenario, and whether its files are unchanged since servesim wrote them: an error
in unchanged files is a bug, not damage."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from servesim.contracts import REGISTRIES
from servesim.cost import KernelTables, TableCostModel
from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.untrusted import read_json
from servesim.workload.trace_stream import TraceFacts


def provenance(scenario: Scenario, trace: TraceFacts, cost: TableCostModel) -> dict[str, Any]:
    """Return hashes of trace, kernel tables and files of policies and features, and the host terms in use."""
    files = {}
    for kind in (registry.kind for registry in REGISTRIES):
        policy = getattr(scenario, kind, None) or {"name": ""}
        path, py, _ = policy["name"].partition(".py:")
        if py:
            files[kind] = sha256_of(Path(f"{path}.py"))
    for name in scenario.features:
        path, _, feature = name.partition(".py:")
        files[f"feature {feature}"] = sha256_of(Path(f"{path}.py"))
    return {
        "trace": {"name": trace.name, "requests": len(trace), "sha256": trace.sha256},
        "cost_model": cost.description,
        "host_terms": cost.terms.to_dict() if cost.terms is not None else None,
        "kernel_tables": _kernel_tables(scenario, cost.tables),
        "policy_files": files,
    }


def _kernel_tables(scenario: Scenario, tables: KernelTables | None) -> dict[str, Any] | None:
    """Return hashes of the kernel tables by file, and the source of their measurements; None without tables."""
    if tables is None:
        return None
    return {
        "name": scenario.kernel_tables or tables.name,
        "measured_by": sorted({source for p in tables.provenance.values() if (source := measured_by(p))}),
        "sha256": {name: sha256_of(path) for name, path in tables.files.items()},
    }


def measured_by(provenance: dict[str, Any]) -> str:
    """Return `project version (license)` of one table's provenance."""
    project, version = provenance.get("project", "unknown"), provenance.get("project_version", "")
    licence = provenance.get("licence")
    return f"{project} {version}".strip() + (f" ({licence})" if licence else "")


def sha256_of(path: Path) -> str:
    """Hash a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


DIGESTS = "sha256"
"""Key in timing.json of the digests of the other files, by name."""


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder, by name."""
    return {path.name: _digest(path) for path in sorted(folder.iterdir())}


def as_written(folder: Path, timing: str) -> bool:
    """Return whether a run's files have the digests that its file `timing` contains. False if it contains none."""
    with suppress(OSError, UserError):
        document: Any = read_json(folder / timing)
        kept = document.get(DIGESTS) if isinstance(document, Mapping) else None
        if isinstance(kept, Mapping) and kept:
            return all(_digest(folder / str(name)) == digest for name, digest in kept.items())
    return False


def refuse_older(folder: Path, missing: Collection[str]) -> None:
    """Raise UserError if parts are missing from a run or an experiment that an older version of servesim stored."""
    for path in (folder / "summary.json", *sorted(folder.glob("cells/*/summary.json"))[:1]) if missing else ():
        with suppress(OSError, KeyError, TypeError, InvalidVersion):
            document: Any = read_json(path) if path.is_file() else {}
            stored = str(document["provenance"]["versions"]["servesim"])
            if Version(stored) < Version(version("servesim")):
                names = ", ".join(sorted(missing))
                raise UserError(
                    f"{folder}: stored by an older version, servesim {stored}, without {names}; run it again"
                )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
