"""Tests that need torch: run with the extra `calibrate` installed, skipped without."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/torch" in str(item.path):
            # importing torch and transformers warns of things that are theirs
            item.add_marker(pytest.mark.filterwarnings("default"))
