"""What holds of every page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import servesim.reports


class Elements(HTMLParser):
    """Every element with its attributes, and unclosed ones."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def script_of(*names: str) -> str:
    """The script of a page: these files."""
    folder = Path(servesim.reports.__file__).parent
    return "\n\n".join((folder / f"{name}.js").read_text().strip() for name in names)


SCRIPT = script_of("page", "zoom")
PLAYED = script_of("page", "zoom", "memory")


def assert_sound(html: str, figures: int, script: str = SCRIPT) -> None:
    """A page needs nothing but itself, its elements close, and at least so many figures say in words what they show."""
    assert len(html.encode()) < 3_000_000
    elements = Elements(html)
    assert elements.open == []
    for tag, attributes in elements.found:
        assert tag not in ("img", "iframe", "object"), tag
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), attributes
    assert re.findall(r"<script>(.*?)</script>", html, flags=re.S) == [f"\n{script}\n"], "no script but the page's own"
    assert len(re.findall(r"<script", html)) == 1 + html.count('<script type="application/json"')
    assert not re.search(r"https?:(?!//www\.w3\.org/)|fetch\(|XMLHttpRequest|WebSocket|import\(", script)
    assert "url(http" not in html
    assert "@import" not in html
    ids = [a["id"] for _, a in elements.found if "id" in a]
    assert len(ids) == len(set(ids))
    for reference in re.findall(r'(?:href="#|url\(#)([^")]+)', html):
        assert reference in ids
    drawings = [a for tag, a in elements.found if tag == "svg"]
    assert len(drawings) >= figures
    for attributes in drawings:
        assert attributes["role"] == "img"
        for which in (attributes["aria-labelledby"] or "").split():
            said = re.search(rf'id="{which}">([^<]+)<', html)
            assert said is not None
            assert said[1].strip()
    drawn = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.S))
    assert re.findall(r"(?:fill|stroke): #[0-9a-f]+", drawn) == [], "a colour that dark mode could not change"
