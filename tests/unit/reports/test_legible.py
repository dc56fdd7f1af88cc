"""Texts of figures that fit."""

from __future__ import annotations

from matplotlib.figure import Figure

from servesim.reports.legible import legible


def test_texts_longer_than_the_figure_are_cut_and_leave_room_to_draw() -> None:
    figure = Figure(figsize=(3.3, 2.0), dpi=100)
    axes = figure.subplots()
    axes.barh(["a label of a hundred characters " * 3], [1.0])
    axes.text(1.0, 0, "a mark at the end of the axis that leaves the figure " * 2)
    legible(figure)
    assert axes.get_position().width > 0.05
