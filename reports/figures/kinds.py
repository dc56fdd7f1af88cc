"""Figures as data: an experiment describes them, and the report draws them (and puts them into words)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Curve:
    """Points of one curve, joined unless they are single measurements."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    joined: bool = True


@dataclass(frozen=True)
class Lines:
    """Curves in one set of axes."""

    name: str
    """Name made up of letters, digits and hyphens, unique in the experiment."""
    title: str
    alt: str
    """Text alternative, for readers who cannot see it."""
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log: str = ""
    """Axes with a logarithmic scale: "x", "y" or "xy"."""
    level: tuple[float, str] | None = None
    """Position of a horizontal line, and its meaning."""
    marks: Sequence[tuple[float, str]] = ()
    """Positions of vertical lines, and their meanings."""
    caption: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars: one row per label, with a bar for each series."""

    name: str
    title: str
    alt: str
    x_label: str
    rows: Mapping[str, Sequence[float | None]]
    """Values by label, one for each series."""
    series: Sequence[str] = ("",)
    log: bool = False
    level: tuple[float, str] | None = None
    """Position of a vertical line, and its meaning."""
    caption: str = ""


@dataclass(frozen=True)
class Spans:
    """Time spans, in one row per label, such as requests in the slots of a batch."""

    name: str
    title: str
    alt: str
    x_label: str
    rows: Mapping[str, Sequence[tuple[float, float, str]]]
    """Spans (start, end, series) by label, end excluded."""
    series: Sequence[str]
    caption: str = ""
    texts: Mapping[str, Sequence[tuple[float, str]]] = field(default_factory=dict)
    """Texts by label, each with its position in the label's row."""
    until: float = 0.0
    """End of the axis, set so that adjacent figures can share it; 0 means the end of the last span."""


Figure = Lines | Bars | Spans


def to_dict(figure: Figure) -> dict[str, Any]:
    """Return the figure as a dictionary for JSON, with its kind: "lines", "bars" or "spans"."""
    from dataclasses import asdict

    return {"kind": type(figure).__name__.lower(), **asdict(figure)}


def from_dict(document: Mapping[str, Any]) -> Figure:
    """Build the figure from a JSON document."""
    kinds: dict[str, type[Figure]] = {"lines": Lines, "bars": Bars, "spans": Spans}
    values = {key: value for key, value in document.items() if key != "kind"}
    if document["kind"] == "lines":
        values["curves"] = [Curve(**curve) for curve in values["curves"]]
    return kinds[document["kind"]](**values)
