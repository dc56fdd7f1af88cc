"""Texts of a figure that neither touch nor leave it, whatever its painter left as margins."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

GAP = 6
"""Minimum space between two tick labels, in CSS pixels."""
FARTHEST = 0.6
"""Share of the figure up to which its left or lower margin is widened; on the other side, half of it. Longer text is
cut."""
EDGE = 1
"""Minimum space between text and the figure's edge, in CSS pixels."""


def legible(figure: Any) -> None:
    """Leave out ticks whose labels would touch, and widen margins that are narrower than their text."""
    thin(figure)
    width, height = figure.get_size_inches()
    box, now, edge = figure.get_tightbbox(), figure.subplotpars, EDGE / 72
    left, right = max(edge - box.x0, 0) / width, max(box.x1 - width + edge, 0) / width
    bottom, top = max(edge - box.y0, 0) / height, max(box.y1 - height + edge, 0) / height
    figure.subplots_adjust(
        left=max(now.left, min(now.left + left, FARTHEST)),
        right=min(now.right, max(now.right - right, 1 - FARTHEST / 2)),
        bottom=max(now.bottom, min(now.bottom + bottom, FARTHEST)),
        top=min(now.top, max(now.top - top, 1 - FARTHEST / 2)),
    )


def thin(figure: Any) -> None:
    """Leave out ticks whose labels would touch, down to two of an axis."""
    for axes in figure.axes:
        _thinned(axes.xaxis)
        _thinned(axes.yaxis)


def _thinned(axis: Any) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator

    if isinstance(axis.get_major_formatter(), FixedFormatter):
        return
    low, high = sorted(axis.get_view_interval())
    places = [place for place in axis.get_majorticklocs() if low <= place <= high]
    while len(places) > 2 and _touch(axis):
        places = places[::2]
        axis.set_major_locator(FixedLocator(places))


def _touch(axis: Any) -> bool:
    """Return whether labels of the axis touch, or on an x axis are closer than `GAP`."""
    low, high = sorted(axis.get_view_interval())
    texts = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label1.get_text()]
    texts = [text for text in texts if text.get_visible()]  # of panels that share an axis, one has labels
    gap = GAP * axis.figure.dpi / 72
    boxes = [text.get_window_extent() for text in texts]
    ends = sorted((box.x0, box.x1 + gap) if axis.axis_name == "x" else (box.y0, box.y1) for box in boxes)
    return any(stop > begin for (_, stop), (begin, _) in pairwise(ends))
