"""Case files: those in ../shared, or the ones given by --cases."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "conformance"


def read_cases(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    read = json.loads(data)
    if "cases" in read:
        return read["cases"]  # type: ignore[no-any-return]
    return [{"component": script_component(read), "id": path.name.partition(".")[0], **read}]  # a script of a cluster


def script_component(script: dict[str, Any]) -> str:
    """Return what a recorded script of a cluster needs."""
    return "cluster_replay" if "trace" in script else "router"


def files_of(path: Path) -> list[Path]:
    """Return a case file, or those in a folder."""
    return sorted(p for p in path.iterdir() if p.suffix in (".gz", ".json")) if path.is_dir() else [path]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    given = [Path(p) for p in metafunc.config.getoption("--cases")]
    names = ("cases.json", "vllm_recorded.json.gz", "vllm_wide.json.gz", "vllm_interval.json.gz", "sglang_tree.json.gz")
    if not given and not SHARED.parent.exists():
        metafunc.parametrize("case", [pytest.param(None, marks=pytest.mark.skip(reason=f"{SHARED} is not here"))])
        return
    files = [file for path in given for file in files_of(path)]
    files = files or [*(SHARED / name for name in names), *files_of(SHARED / "cluster")]
    runners = metafunc.module.RUNNERS
    read = [c for path in files for c in read_cases(path)]
    unknown = sorted({str(c["component"]) for c in read if c["component"] not in runners})
    if unknown:
        raise pytest.UsageError(f"no runner for cases of {', '.join(unknown)}; there are: {', '.join(sorted(runners))}")
    metafunc.parametrize("case", read, ids=[c["id"] for c in read])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    def count(outcome: str) -> int:
        return sum("[" in r.nodeid and "conformance" in r.nodeid for r in terminalreporter.stats.get(outcome, []))

    if count("passed") or count("failed"):
        terminalreporter.write_line(f"conformance cases: {count('passed')} passed, {count('failed')} failed")
        reports = [r for outcome in ("passed", "failed") for r in terminalreporter.stats.get(outcome, [])]
        tallies = [value for r in reports for name, value in r.user_properties if name == "decisions and faults"]
        if tallies:
            decisions, faults = (sum(column) for column in zip(*tallies, strict=True))
            terminalreporter.write_line(f"  {len(tallies)} router scripts: {decisions} decisions, {faults} faults")
