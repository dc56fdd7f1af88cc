"""The committed samples of pages are what their commands give today, but for numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import PLAYED, SCRIPT, assert_sound
from tests.support.samples import COMMANDS, SAMPLES, made
from tests.unit.reports.test_sample import structure

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", COMMANDS)
def test_a_sample_is_up_to_date(name: str, tmp_path: Path) -> None:
    """If not: make sample."""
    sample = (SAMPLES / f"{name}.html").read_text()
    assert len(sample.encode()) < 600_000
    found = structure(sample)
    assert found["headings"]
    assert_sound(sample, len(found["figures"]), PLAYED if name == "play" else SCRIPT)
    assert structure(made(name, tmp_path)) == found


def test_every_sample_has_its_command() -> None:
    assert sorted(path.stem for path in SAMPLES.iterdir()) == sorted(COMMANDS)
