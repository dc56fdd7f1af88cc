"""The committed sample report is what its scenario gives today, figure for figure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import servesim
from tests.support.pages import assert_sound

REPORTS = Path(__file__).resolve().parents[3] / "reports"


def structure(html: str) -> dict[str, list[str]]:
    """What a reader finds on a page, its numbers apart."""
    return {
        "headings": re.findall(r"<h([123])>(.*?)</h", html),
        "figures": re.findall(r'<figure id="([^"]+)"', html),
        "terms": re.findall(r"<dt>(.*?)</dt>", html),
        "columns": re.findall(r'<th scope="col"[^>]*>(.*?)</th>', html),
    }


@pytest.mark.slow
def test_the_sample_report_is_up_to_date() -> None:
    """If not: make sample."""
    sample = (REPORTS / "sample.html").read_text()
    assert len(sample.encode()) < 1_000_000
    assert_sound(sample, figures=12)
    made = servesim.report(servesim.simulate(REPORTS / "sample.yaml"))
    assert structure(made) == structure(sample)
