"""Figures that experiments describe as data: curves, bars, time spans."""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim.metrics.words import amount
from servesim.reports.figures.axes import BESIDE, LINE, log_ticks, name_ticks
from servesim.reports.figures.kinds import Bars, Figure, Lines, Spans
from servesim.reports.ink import INK, SERIES
from servesim.reports.svg import Drawing, half, wide
from servesim.reports.words import wrapped

Legend = tuple[tuple[str, str], ...]


def draw(name: str, figure: Figure) -> Drawing:
    """Draw a figure under a name unique to the page."""
    if isinstance(figure, Lines):
        return _lines(name, figure)
    return _bars(name, figure) if isinstance(figure, Bars) else _spans(name, figure)


def _legend(labels: list[str]) -> Legend:
    return tuple((SERIES[i % len(SERIES)], label) for i, label in enumerate(labels)) if len(labels) > 1 else ()


def _lines(name: str, figure: Lines) -> Drawing:
    def paint(canvas: Any, narrow: bool) -> None:
        axes = canvas.subplots()
        for i, curve in enumerate(figure.curves):
            y = [np.nan if v is None else v for v in curve.y]
            style = "o-" if curve.joined else "o"
            axes.plot(curve.x, y, style, color=INK[SERIES[i % len(SERIES)]], markersize=4, markeredgewidth=0)
        if "x" in figure.log:
            axes.set_xscale("log")
        if "y" in figure.log:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        plain_ticks(axes)
        _guides(axes, figure)
        axes.set_xlabel(figure.x_label)
        axes.set_ylabel(figure.y_label)
        canvas.subplots_adjust(left=0.14, right=0.97, top=0.97, bottom=0.15)

    legend = _legend([curve.label for curve in figure.curves])
    return half(name, figure.title, figure.alt, paint, 320, _caption(figure), legend=legend)


def _caption(figure: Lines | Bars) -> str:
    return figure.caption if figure.level is None else f"{figure.caption} Dashed: {figure.level[1]}.".strip()


def _guides(axes: Any, figure: Lines) -> None:
    dashed = {"color": INK["muted"], "linestyle": (0, (4, 3)), "linewidth": 1.1}
    if figure.level is not None:
        axes.axhline(figure.level[0], **dashed)
    for x, text in figure.marks:
        axes.axvline(x, **dashed)
        place = axes.get_xaxis_transform()
        axes.text(x, 0.98, f" {text}", transform=place, ha="left", va="top")


def plain_ticks(axes: Any) -> None:
    """Label logarithmic axes with numbers such as 100 and 10k instead of powers of ten."""
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            log_ticks(axis, _short)


def _short(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def _bars(name: str, figure: Bars) -> Drawing:
    count = len(figure.series)
    rows, lines = _rows(figure)
    high = 66 + len(rows) * max(14 + 15 * count, 8 + LINE * lines)

    def paint(canvas: Any, narrow: bool) -> None:
        axes = canvas.subplots()
        values = [v for row in figure.rows.values() for v in row if v is not None]
        for i in range(count):
            at = np.arange(len(figure.rows)) + (i - (count - 1) / 2) * 0.8 / count
            lengths = [row[i] if row[i] is not None else 0.0 for row in figure.rows.values()]
            bars = axes.barh(at, lengths, height=0.74 / count, color=INK[SERIES[i % len(SERIES)]], linewidth=0)
            texts = [_value(row[i]) for row in figure.rows.values()]
            axes.bar_label(bars, texts, padding=4, color=INK["ink"])
        if figure.log:
            axes.set_xscale("log")
            axes.set_xlim(min(v for v in values if v > 0) / 2, max(values) * 3)
            plain_ticks(axes)
        else:
            axes.set_xlim(0, max(values, default=1.0) * 1.18)
        if figure.level is not None:
            axes.axvline(figure.level[0], color=INK["rose"], linestyle=(0, (4, 3)), linewidth=1.2)
        axes.set_ylim(len(figure.rows) - 0.45, -0.55)
        name_ticks(axes.yaxis, range(len(rows)), list(figure.rows))
        axes.tick_params(axis="y", labelcolor=INK["ink"])
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set_xlabel(figure.x_label)
        widest = max(len(line) for label in rows for line in label.split("\n"))
        width = canvas.get_figwidth() * 72
        left = min(0.6, (7 * widest + 14) / width)
        canvas.subplots_adjust(left=left, right=0.98, top=1 - 10 / high, bottom=46 / high)

    legend = _legend(list(figure.series))
    return half(name, figure.title, figure.alt, paint, high, _caption(figure), legend=legend)


def _value(value: float | None) -> str:
    return "–" if value is None else amount(value)


def _rows(figure: Bars | Spans) -> tuple[list[str], int]:
    """Return the names of rows, wrapped, and the largest number of lines of one."""
    rows = [wrapped(label, BESIDE) for label in figure.rows]
    return rows, 1 + max(row.count("\n") for row in rows)


def _spans(name: str, figure: Spans) -> Drawing:
    rows, lines = _rows(figure)

    def paint(canvas: Any, narrow: bool) -> None:
        axes = canvas.subplots()
        for y, (label, spans) in enumerate(figure.rows.items()):
            for start, end, series in spans:
                colour = INK[SERIES[list(figure.series).index(series) % len(SERIES)]]
                axes.barh(y, end - start, left=start, height=0.7, color=colour, linewidth=0)
            for x, text in figure.texts.get(label, ()):
                axes.text(x, y, text, va="center", ha="left")
        axes.set_ylim(len(figure.rows) - 0.4, -0.6)
        axes.set_xlim(0, figure.until or None)
        name_ticks(axes.yaxis, range(len(rows)), list(figure.rows))
        axes.tick_params(axis="y", labelcolor=INK["ink"])
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set_xlabel(figure.x_label)
        widest, size = max(len(line) for label in rows for line in label.split("\n")), canvas.get_size_inches() * 72
        left = (7 * widest + 14) / size[0]
        canvas.subplots_adjust(left=left, right=0.985, top=1 - 8 / size[1], bottom=46 / size[1])

    high = 60 + max(30, 8 + LINE * lines) * len(rows)
    legend = _legend(list(figure.series))
    return wide(name, figure.title, figure.alt, paint, (high, high), figure.caption, legend=legend)
