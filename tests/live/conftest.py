"""What the tests with real clients share: their environment, which `make test-live` makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.live_server import ROOT

ENVIRONMENT = ROOT / ".venv-live"


@pytest.fixture(scope="session")
def environment() -> Path:
    """Folder of the environment that has the clients and routers."""
    if not (ENVIRONMENT / ".ready").exists():
        pytest.skip(f"{ENVIRONMENT.name} is not there, make test-live makes it")
    return ENVIRONMENT
