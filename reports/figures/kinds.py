"""Figures as data: an experiment describes them, the report draws them (and states them in words)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Curve:
    """Points of one thing, joined unless they are single measurements."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    joined: bool = True


@dataclass(frozen=True)
class Lines:
    """Curves in one pair of axes."""

    name: str
    """Letters, digits and hyphens; unique in the experiment."""
    title: str
    alt: str
    """Text alternative, for readers who cannot see it."""
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log: str = ""
    """Axes with a logarithmic scale: "x", "y" or "xy"."""
    level: tuple[float, str] | None = None
    """A horizontal line and what it means."""
    marks: Sequence[tuple[float, str]] = ()
    """Vertical lines, and what they mean."""
    caption: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars: a row each, and in it a bar for each series."""

    name: str
    title: str
    alt: str
    x_label: str
    rows: Mapping[str, Sequence[float | None]]
    """Label -> a value for each series."""
    series: Sequence[str] = ("",)
    log: bool = False
    level: tuple[float, str] | None = None
    """A vertical line and what it means."""
    caption: str = ""


@dataclass(frozen=True)
class Spans:
    """Spans of time, one line each: such as requests in the slots of a batch."""

    name: str
    title: str
    alt: str
    x_label: str
    rows: Mapping[str, Sequence[tuple[float, float, str]]]
    """Label -> (start, end, series), end excluded."""
    series: Sequence[str]
    caption: str = ""
    texts: Mapping[str, Sequence[tuple[float, str]]] = field(default_factory=dict)
    """Label -> words at a place in that line."""
    until: float = 0.0
    """Where the axis ends, so that figures beside one another share it; 0: where the last span does."""


Figure = Lines | Bars | Spans


def to_dict(figure: Figure) -> dict[str, Any]:
    """Return the figure for JSON, with the kind: "lines", "bars" or "spans"."""
    from dataclasses import asdict

    return {"kind": type(figure).__name__.lower(), **asdict(figure)}


def from_dict(document: Mapping[str, Any]) -> Figure:
    """Return the figure of a JSON document."""
    kinds: dict[str, type[Figure]] = {"lines": Lines, "bars": Bars, "spans": Spans}
    values = {key: value for key, value in document.items() if key != "kind"}
    if document["kind"] == "lines":
        values["curves"] = [Curve(**curve) for curve in values["curves"]]
    return kinds[document["kind"]](**values)
