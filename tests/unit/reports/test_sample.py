"""Samples of pages are made by their commands, whole, and small enough to send."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import PLAYED, SCRIPT, assert_sound
from tests.support.samples import COMMANDS, ROOT, made

DRAWN = {"run": 12, "compare": 16, "sweep": 17, "capacity": 14, "lecture": 13, "play": 13, "size": 5, "policies": 3}
"""Drawings of each page, at least."""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_sample_is_sound(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = made(name, tmp_path / name)
    assert len(page.encode()) < (1_000_000 if name == "run" else 600_000)
    assert re.findall(r"<h([123])>(.*?)</h", page)
    assert_sound(page, DRAWN[name], script=PLAYED if name == "play" else SCRIPT)
