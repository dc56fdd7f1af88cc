"""The pages that take longest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_documents import LONG, does_what_it_says


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_every_block_does_what_the_page_says(name: str, tmp_path: Path) -> None:
    does_what_it_says(name, tmp_path)
