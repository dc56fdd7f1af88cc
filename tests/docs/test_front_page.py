"""README.md stays short, and its picture shows what runs give."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from servesim.reports.ink import SERIES, light_colours
from tests.support.documents import ROOT
from tests.support.front_picture import FILES, README, drawing, simulated

GLOSSARY = ROOT / "docs" / "glossary.md"


def test_the_front_page_has_at_most_120_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


def test_the_front_page_shows_both_files_and_says_what_they_show() -> None:
    page = README.read_text(encoding="utf-8")
    shown = re.findall(r'(?:srcset|src)="([^"]+)"', page)
    assert sorted(ROOT / name for name in shown) == sorted(FILES)
    words = re.search(r'<img alt="([^"]*)"', page)
    assert words is not None
    assert len(words[1].split()) > 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_picture_is_small_and_has_the_colors_of_the_pages(path: Path) -> None:
    light = light_colours()
    used = set(re.findall(r"#[0-9a-f]{6}\b", path.read_text(encoding="utf-8")))
    assert path.stat().st_size < 150_000
    assert used <= set(light.values())
    assert len(used & {light[name] for name in SERIES}) >= 2


@pytest.mark.slow
def test_the_picture_is_what_runs_give(tmp_path: Path) -> None:
    picture = drawing(simulated())
    words = re.search(r'<img alt="([^"]*)"', README.read_text(encoding="utf-8"))
    assert words is not None
    assert unescape(words[1]) == picture.alt, "`make docs` draws it"
    for path, width in FILES.items():
        picture.save(tmp_path / path.name, width=width)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), "`make docs` draws it"


def test_the_glossary_has_at_most_forty_words_each_in_one_sentence() -> None:
    rows = re.findall(r"^- \*\*([^*]+)\*\*: (.+(?:\n  .+)*)$", GLOSSARY.read_text(encoding="utf-8"), re.M)
    terms = [term for term, _ in rows]
    assert 25 <= len(terms) <= 40
    assert terms == sorted(terms, key=str.lower)
    for term, meaning in rows:
        assert meaning.endswith("."), term
        assert not re.search(r"[.!?]\s", meaning), term
