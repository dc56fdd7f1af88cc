"""Samples of pages are made by their commands, whole, and small enough to send."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import PLAYED, SCRIPT, assert_sound
from tests.support.samples import COMMANDS, ROOT, made


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_sample_is_sound(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = made(name, tmp_path / name)
    assert len(page.encode()) < 1_000_000
    assert_sound(page, figures=12 if name == "run" else 0, script=PLAYED if name == "play" else SCRIPT)
