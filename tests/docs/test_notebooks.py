"""The notebooks of docs/ show what their cells print."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import MEASURING, NOTEBOOKS, executed


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_its_cells_print(path: Path) -> None:
    shown, seen = nbformat.read(path, as_version=4), executed(path)
    for there, now in zip(shown.cells, seen.cells, strict=True):
        assert there.get("outputs") == now.get("outputs"), (
            f"{path.name}: make docs would change the output of {there.source}"
        )


def test_there_is_a_notebook_and_it_was_run_in_order() -> None:
    for path in (*NOTEBOOKS, MEASURING):
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert NOTEBOOKS
