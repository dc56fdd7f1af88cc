"""What all suites share: reference data outside the checkout, hand-made records, counts per suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servesim.contracts.request import State
from servesim.metrics.requests import RequestColumns
from servesim.records.columns import REQUEST_COLUMNS
from tests.support.examples import register_profiles

TESTS = Path(__file__).resolve().parent
SHARED = TESTS.parents[1] / "shared"
register_profiles()
WITHOUT = {*os.environ.get("SERVESIM_WITHOUT", "").split()}
"""Features whose folders are not there, as .ci/without-feature says."""
SUITES = ("docs", "unit", "property", "torch", "live", "conformance", "validation", "golden")


@pytest.fixture(autouse=True)
def _no_metrics_of_users() -> Generator[None]:
    """Leave no metric of a user's feature or function behind."""
    yield
    known = sys.modules.get("servesim.experiments.metrics")
    while known is not None and known._OWNERS:
        del known.METRICS[known._OWNERS.popitem()[0]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases", action="append", default=[], metavar="FILE", help="conformance case file (JSON, plain or gzipped)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked by a feature that is not there; "*": they need all. Marks with other names are errors."""
    missing = {*WITHOUT, "*"} if WITHOUT else set()
    known = {"*", *WITHOUT, *(folder.name for folder in (TESTS.parent / "servesim" / "features").iterdir())}
    named = [(item, {name for mark in item.iter_markers("feature") for name in mark.args}) for item in items]
    if unknown := [f"{item.nodeid}: {name}" for item, names in named for name in sorted(names - known)]:
        raise pytest.UsageError(f"marks by features that do not exist: {', '.join(unknown)}")
    gone = [item for item, names in named if missing & names]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in {*gone}]


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, None]:
    """Skip a file that cannot be imported without a feature that is not there."""
    report = (yield).get_result()
    missing = [name for name in WITHOUT if f"No module named 'servesim.features.{name}" in str(report.longrepr)]
    if report.failed and missing:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: imports servesim.features.{missing[0]}, which is gone")


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Path of a file of the reference data: skipped where there is no such data, an error where it is incomplete."""

    def find(name: str) -> Path:
        if not SHARED.is_dir():
            pytest.skip("reference data folder ../shared is not on this machine")
        path = SHARED / name
        assert path.exists(), f"../shared is here, but {name} is missing from it"
        return path

    return find


@pytest.fixture
def interrupted_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process that is started with sys.executable gets an interrupt before its first import."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nkill -INT $$\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


Column = int | Sequence[int]


@pytest.fixture(scope="session")
def request_columns() -> Callable[..., RequestColumns]:
    """Request records from a few columns by name; states are FINISHED and the rest 0 unless given."""

    def make(**columns: Column) -> RequestColumns:
        count = max(len(c) for c in columns.values() if not isinstance(c, int))
        rows = np.zeros((count, len(REQUEST_COLUMNS)), dtype=np.int64)
        for name, values in {"row": range(count), "state": int(State.FINISHED), **columns}.items():
            rows[:, REQUEST_COLUMNS.index(name)] = values
        return RequestColumns.of(rows)

    return make


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Passed, skipped and failed tests of each suite."""

    def count(outcome: str, suite: str) -> int:
        return sum(f"tests/{suite}/" in r.nodeid for r in terminalreporter.stats.get(outcome, []))

    for suite in SUITES:
        passed, skipped, failed = (count(o, suite) for o in ("passed", "skipped", "failed"))
        failed += count("error", suite)
        if passed or skipped or failed:
            terminalreporter.write_line(f"{suite}: {passed} passed, {skipped} skipped, {failed} failed")
