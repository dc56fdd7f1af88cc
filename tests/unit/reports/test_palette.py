"""Colours of series can be told apart, by the colour-blind too (Machado et al. 2009, severity 1; CIEDE2000)."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from coloraide import Color

import servesim.reports
from servesim.reports.ink import SERIES

SHEET = (Path(servesim.reports.__file__).parent / "style.css").read_text()
GROUNDS = {
    "light": SHEET.index(":root"),
    "dark": SHEET.index("prefers-color-scheme"),
    "print": SHEET.index("@media print"),
}
SEEN = (None, "protan", "deutan", "tritan")


def palette(ground: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, colour in re.findall(r"--(\w+): (#\w+)", SHEET[GROUNDS[ground] :]):
        found.setdefault(name, colour)
    return found


def seen(colour: str, deficiency: str | None) -> Color:
    return Color(colour) if deficiency is None else Color(colour).filter(deficiency, method="machado").clip("srgb")


@pytest.mark.parametrize("ground", GROUNDS)
def test_any_two_series_differ_by_ten_however_one_sees_colours(ground: str) -> None:
    colours = palette(ground)
    for a, b in combinations(SERIES, 2):
        for deficiency in SEEN:
            apart = seen(colours[a], deficiency).delta_e(seen(colours[b], deficiency), method="2000")
            assert apart >= 10, f"{a} and {b} to {deficiency or 'all colours'}: {apart:.1f}"


NOTICED = 0.8 * (10.70 + 5.74 / (1 / 3))
"""CIE76 difference that four of five observers notice between marks of a third of a degree (12 pixels at arm's length)
in the direction in which the eye sees worst, blue to yellow (Stone, Szafir and Setlur 2014)."""


@pytest.mark.parametrize("deficiency", [None, "protan", "deutan"])
@pytest.mark.parametrize("ground", GROUNDS)
def test_four_of_five_notice_any_two_series_of_small_marks(ground: str, deficiency: str | None) -> None:
    """Any two series may meet in a figure: variants take their colors in order."""
    colours = palette(ground)
    for a, b in combinations(SERIES, 2):
        apart = seen(colours[a], deficiency).delta_e(seen(colours[b], deficiency), method="76")
        assert apart >= NOTICED, f"{a} and {b}: {apart:.1f}"


@pytest.mark.parametrize("ground", GROUNDS)
def test_every_series_stands_out_from_the_card(ground: str) -> None:
    colours = palette(ground)
    for name in SERIES:
        assert Color(colours[name]).contrast(colours["surface"], method="wcag21") >= 2.9, name


def test_paper_has_the_colours_of_the_light_page() -> None:
    assert {name: palette("print")[name] for name in SERIES} == {name: palette("light")[name] for name in SERIES}
