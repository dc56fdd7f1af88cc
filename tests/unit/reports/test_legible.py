"""Texts of figures that fit."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from servesim.reports.canvas import UNDATED, Canvas
from servesim.reports.figures.axes import spans
from servesim.reports.ink import STYLE
from servesim.reports.legible import _extent, legible, thin


def test_texts_longer_than_the_figure_are_cut_and_leave_room_to_draw() -> None:
    figure = Figure(figsize=(3.3, 2.0), dpi=100)
    axes = figure.subplots()
    axes.barh(["a label of a hundred characters " * 3], [1.0])
    axes.text(1.0, 0, "a mark at the end of the axis that leaves the figure " * 2)
    legible(figure)
    assert axes.get_position().width > 0.05


PAINTERS: dict[str, Any] = {
    "titles": lambda figure: figure.subplots().set(title="latency", xlabel="time", ylabel="requests"),
    "shared": lambda figure: [axes.set(title="load", ylabel="tokens") for axes in figure.subplots(2, 1, sharex=True)],
    "names": lambda figure: figure.subplots().barh(["a label of some words", ""], [1.0, 2.0]),
    "texts": lambda figure: figure.subplots().text(1.0, 0.5, "past the right edge of the panel"),
    "factor": lambda figure: figure.subplots().plot([0, 1], [5e9, 5e9 + 2]),
    "off": lambda figure: (figure.subplots().set_axis_off(), figure.text(0.5, 0.99, "above")),
    "empty": lambda figure: figure.subplots().set(xticks=[], xlabel="nothing to count"),
}
"""Figures with what may leave them: titles, names, texts, a common factor of ticks."""


def style() -> dict[Any, Any]:
    return {**matplotlib.rcParamsDefault, **STYLE, "svg.hashsalt": "it"}


@pytest.mark.parametrize("name", PAINTERS)
def test_the_box_of_a_figure_is_that_which_matplotlib_measures(name: str) -> None:
    with matplotlib.rc_context(style()):
        canvas = Canvas(330, 200)
        PAINTERS[name](canvas.figure)
        found = _extent(canvas.figure, thin(canvas.figure)).extents
        assert found == pytest.approx(canvas.figure.get_tightbbox().extents, abs=1e-9)


@pytest.mark.parametrize("name", PAINTERS)
def test_a_final_figure_is_drawn_as_matplotlib_draws_it(name: str) -> None:
    """To the byte: titles that were placed for good are where its own canvas puts them."""
    with matplotlib.rc_context(style()):
        canvas, out = Canvas(330, 200), io.StringIO()
        PAINTERS[name](canvas.figure)
        legible(canvas.figure, final=True)
        other = Figure(figsize=(330 / 72, 200 / 72), dpi=72)
        FigureCanvasSVG(other)
        PAINTERS[name](other)
        legible(other)
        other.savefig(out, format="svg", metadata=UNDATED)
        assert canvas.svg() == out.getvalue()


def test_ticks_whose_labels_would_touch_are_left_out() -> None:
    figure = Figure(figsize=(1.2, 2.0), dpi=72)
    axes = figure.subplots()
    axes.set_xlim(0, 9)
    axes.set_xticks(range(10))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f} seconds")
    legible(figure)
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert len(boxes) in (2, 3)


def test_bars_drawn_as_one_artist_are_those_of_a_patch_each() -> None:
    starts, stops = np.array([0.0, 0.5, 2.0]), np.array([1.0, 2.5, 2.0])

    def paths(draw: Any) -> list[str]:
        with matplotlib.rc_context(style()):
            canvas = Canvas(330, 200)
            axes = canvas.figure.subplots()
            draw(axes)
            axes.set(xlim=(0, 3), ylim=(-1, 3))
            return re.findall(r'<path d="([^"]* z)\s*" clip-path', canvas.svg().replace("\nz", " z"))

    one = paths(lambda axes: spans(axes, range(3), starts, stops, 0.7, "#ff0000"))
    each = paths(lambda axes: axes.barh(range(3), stops - starts, left=starts, height=0.7, linewidth=0))
    assert (len(one), one) == (3, each)
