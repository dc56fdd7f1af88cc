"""One panel of a figure with several, as a figure of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servesim.errors import UserError
from servesim.reports.data import drawn_colours
from servesim.reports.ink import HALF, STYLE, painted
from servesim.reports.svg import Drawing, half, shared_label
from servesim.reports.variants import ABSENT

LOWEST = 220
"""Minimum height in CSS pixels."""


def one_panel(drawing: Drawing, panel: str) -> Drawing:
    """Return the panel with a given title, as a narrow page has it, with what the legend says of it. Raise UserError
    for an unknown one."""
    import matplotlib

    whole = drawing.narrow_height or drawing.size[1]
    style: dict[Any, Any] = {**matplotlib.rcParamsDefault, **STYLE}
    with matplotlib.rc_context(style):
        panels = painted(drawing, HALF, whole, narrow=True).axes
    titles = [axes.get_title("left") for axes in panels]
    if len(titles) < 2:
        raise UserError(f"figure {drawing.name}: panel {panel!r}: it has a single panel")
    if panel not in titles:
        raise UserError(f"figure {drawing.name}: unknown panel {panel!r}: name one of {'; '.join(titles)}")
    colours = {title: drawn_colours(axes) for title, axes in zip(titles, panels, strict=True)}
    elsewhere = set().union(*colours.values()) - colours[panel] - {ABSENT}
    legend = tuple((colour, words) for colour, words in drawing.legend if colour not in elsewhere)
    height = max(whole // len(titles), LOWEST)
    tidy = drawing.tidy and _rows_of(drawing.tidy, panel)
    paint, title = _painter(drawing, panel), f"{drawing.title}: {panel}"
    return half(drawing.name, title, drawing.alt, paint, height, drawing.caption, legend=legend, tidy=tidy)


def _painter(drawing: Drawing, panel: str) -> Callable[[Any, bool], None]:
    def paint(figure: Any, narrow: bool) -> None:
        from matplotlib.gridspec import GridSpec

        assert drawing.paint is not None
        drawing.paint(figure, True)
        kept = next(axes for axes in figure.axes if axes.get_title("left") == panel)
        kept.set_xlabel(shared_label(kept))
        kept.tick_params(labelbottom=True, labelleft=True)
        for axes in figure.axes:
            if axes is not kept:
                axes.remove()
        kept.set_subplotspec(GridSpec(1, 1, figure=figure)[0])
        height = figure.get_figheight() * 72
        figure.subplots_adjust(left=0.02, right=0.97, top=1 - 34 / height, bottom=50 / height)

    return paint


def _rows_of(tidy: Callable[[], list[tuple[Any, ...]]], panel: str) -> Callable[[], list[tuple[Any, ...]]]:
    return lambda: [row for row in tidy() if row[0] == panel]
