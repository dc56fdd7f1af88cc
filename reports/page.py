"""The content of a self-contained HTML page, and its template filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from servesim import __version__

_PAGES = {
    "comparison.json": "servesim.reports.compare_page",
    "sweep.json": "servesim.reports.sweep_page",
    "capacity.json": "servesim.reports.capacity_page",
    "cells.csv": "servesim.reports.accuracy_page",
}
HERE = Path(__file__).resolve().parent


@cache
def experiment_pages() -> dict[str, str]:
    """Return the files that only one kind of experiment writes, mapped to the modules whose `page` shows them: the
    modules here and those in other packages (entry points `servesim.page`)."""
    return _PAGES | {entry.name: entry.value for entry in entry_points(group="servesim.page")}


@dataclass(frozen=True)
class Table:
    """Table on the page; its cells are already text."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    numeric: tuple[bool, ...] = ()
    kind: str = ""

    def __post_init__(self) -> None:
        if not self.numeric:
            object.__setattr__(self, "numeric", (False, *[True] * (len(self.columns) - 1)))


@dataclass(frozen=True)
class Alert:
    """Warning that a reader must not miss."""

    head: str
    text: str
    level: str = "bad"


def warned(document: Mapping[str, Any]) -> list[Alert]:
    """Return the warnings of a summary or a document."""
    return [Alert("Warning:", f"{text.rstrip('.')}.", "warn") for text in document["warnings"]]


@dataclass(frozen=True)
class Share:
    """Part of a whole, drawn as a bar."""

    words: str
    share: float
    text: str
    colour: str


@dataclass(frozen=True)
class Block:
    """Part of a section. Its kind is "drawing", "table", "pairs" (name and value), "list" (sentences), "text" (a
    file, collapsed under the title) or "command" (to copy)."""

    kind: str
    title: str
    content: Any
    wide: bool = False
    text: str = ""
    """Line of text below the block."""
    lines: Sequence[str] = ()
    """Sentences above the block."""


@dataclass(frozen=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: list[Block]
    name: str = ""
    """Anchor of the section, for links on the page."""


@dataclass
class Page:
    """Content of a page for its template."""

    template: str
    kind: str
    title: str
    subtitle: str = ""
    chips: list[tuple[str, str]] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    values: Mapping[str, Any] = field(default_factory=dict)
    scripts: tuple[str, ...] = ("page.js", "zoom.js")
    styles: tuple[str, ...] = ("style.css",)

    def html(self) -> str:
        """Return the page as text."""
        return rendered(
            self.template,
            version=__version__,
            style=_parts(self.styles),
            script=_parts(self.scripts),
            kind=self.kind,
            title=self.title,
            subtitle=self.subtitle,
            chips=self.chips,
            alerts=self.alerts,
            **{"answer": "", **self.values},
        )


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )


def rendered(template: str, **values: Any) -> str:
    """Return the filled-in template of a page, or of a part of one."""
    html: str = _environment().get_template(f"{template}.html.j2").render(**values)
    return html


def _parts(files: tuple[str, ...]) -> Any:
    from markupsafe import Markup

    return Markup("\n\n".join((HERE / file).read_text(encoding="utf-8").strip() for file in files))
