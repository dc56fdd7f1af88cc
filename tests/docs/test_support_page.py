"""docs/support.md is what the present tables and formulas say: cells drawn by the day's code, all of them when slow."""

from __future__ import annotations

import pytest

from servesim import draws
from servesim.cost.support import ENGINES, formats, matrix, support
from servesim.hardware import bundled_models, gpu_names
from tests.support import support_page

SAMPLE = 40


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, str, str, str], str]:
    return support_page.cells(support_page.PAGE.read_text(encoding="utf-8"))


def test_every_bundled_model_gpu_engine_and_format_has_a_cell(cells: dict[tuple[str, str, str, str], str]) -> None:
    wanted = [(e, m, d, g) for e in ENGINES for m in bundled_models() for d in formats(m) for g in gpu_names()]
    assert list(cells) == wanted, "`make docs` makes the page"


def test_drawn_cells_are_what_is_priced_now(cells: dict[tuple[str, str, str, str], str]) -> None:
    keys = list(cells)
    for i in range(SAMPLE):
        engine, model, dtype, gpu = keys[int(draws.uniform(0, "support page", i, 0) * len(keys))]
        now = support(model, gpu, engine, dtype)
        assert cells[engine, model, dtype, gpu] == now.cell, f"{now}: `make docs` makes the page"


@pytest.mark.slow
def test_the_whole_page_is_what_is_priced_now() -> None:
    assert support_page.PAGE.read_text(encoding="utf-8") == support_page.page_of(list(matrix()))
