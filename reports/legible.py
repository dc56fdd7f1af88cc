"""Texts of a figure that neither touch nor leave it, whatever its painter left as margins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

GAP = 6
"""Minimum space between two tick labels, in CSS pixels."""
FARTHEST = 0.6
"""Share of the figure up to which its left or lower margin is widened; on the other side, half of it. Longer text is
cut."""
SLACK = 1e-10
"""Share of an axis by which a tick may lie beyond its ends and is still drawn, as in matplotlib."""
EDGE = 1
"""Minimum space between text and the figure's edge, in CSS pixels."""

Boxes = Sequence[Any]
"""Boxes of texts (matplotlib's Bbox)."""


def legible(figure: Any, final: bool = False) -> None:
    """Leave out ticks whose labels would touch, and widen margins that are narrower than their text. In a `final`
    figure, which is drawn as it is, the titles of axes are placed for good; drawing it would measure all again."""
    labels = thin(figure)
    width, height = figure.get_size_inches()
    box, now, edge = _extent(figure, labels), figure.subplotpars, EDGE / 72
    left, right = max(edge - box.x0, 0) / width, max(box.x1 - width + edge, 0) / width
    bottom, top = max(edge - box.y0, 0) / height, max(box.y1 - height + edge, 0) / height
    if left or right or bottom or top:
        figure.subplots_adjust(
            left=max(now.left, min(now.left + left, FARTHEST)),
            right=min(now.right, max(now.right - right, 1 - FARTHEST / 2)),
            bottom=max(now.bottom, min(now.bottom + bottom, FARTHEST)),
            top=min(now.top, max(now.top - top, 1 - FARTHEST / 2)),
        )
        labels = {axis: _label_boxes(axis) for axis in labels} if final else labels
    for axis, boxes in labels.items() if final else ():
        if _place_title(axis, boxes):
            axis.set_label_coords(*axis.label.get_position(), axis.label.get_transform())


def thin(figure: Any) -> dict[Any, Boxes]:
    """Leave out ticks whose labels would touch, down to two of an axis. Return the boxes of the labels of every axis
    that is drawn."""
    return {axis: _thinned(axis) for axes in figure.axes if axes.axison for axis in (axes.xaxis, axes.yaxis)}


def _thinned(axis: Any) -> Boxes:
    from matplotlib.ticker import FixedFormatter, FixedLocator

    boxes = _label_boxes(axis)
    if isinstance(axis.get_major_formatter(), FixedFormatter):
        return boxes
    low, high = sorted(axis.get_view_interval())
    places = [place for place in axis.get_majorticklocs() if low <= place <= high]
    while len(places) > 2 and _touch(axis, boxes):
        places = places[::2]
        axis.set_major_locator(FixedLocator(places))
        boxes = _label_boxes(axis)
    return boxes


def _label_boxes(axis: Any) -> Boxes:
    """Return the boxes, in pixels, of the labels of an axis that lie in its view; of panels that share an axis, one has
    labels."""
    from matplotlib.ticker import NullLocator

    low, high = sorted(axis.get_view_interval())
    slack, at = SLACK * (high - low), 0 if axis.axis_name == "x" else 1
    # Asking for minor labels, too, places all ticks a second time.
    which = "major" if isinstance(axis.get_minor_locator(), NullLocator) else "both"
    labels = axis.get_ticklabels(which=which)
    return [b.get_window_extent() for b in labels if low - slack <= b.get_position()[at] <= high + slack]


def _touch(axis: Any, boxes: Boxes) -> bool:
    """Return whether labels of the axis touch, or on an x axis are closer than `GAP`."""
    gap, written = GAP * axis.figure.dpi / 72, [box for box in boxes if box.width]
    ends = sorted((box.x0, box.x1 + gap) if axis.axis_name == "x" else (box.y0, box.y1) for box in written)
    return any(stop > begin for (_, stop), (begin, _) in pairwise(ends))


def _extent(figure: Any, labels: dict[Any, Boxes]) -> Any:
    """Return the box in inches around all panels and texts: what `Figure.get_tightbbox` returns, which measures every
    label three times."""
    from matplotlib.transforms import Bbox, TransformedBbox

    found = [text.get_window_extent() for text in figure.texts]
    for axes in figure.axes:
        found.append(axes.get_window_extent())
        found += [text.get_window_extent() for text in _texts(axes)]
    for axis, boxes in labels.items():
        found += boxes
        if not _place_title(axis, boxes):
            found.append(axis.get_tightbbox())
        elif axis.label.get_text():
            found.append(axis.label.get_window_extent())
    return TransformedBbox(Bbox.union(found), figure.dpi_scale_trans.inverted())


def _texts(axes: Any) -> Iterator[Any]:
    """Yield the titles of a panel, and the texts in it that are not cut at its edges."""
    from matplotlib.text import Text

    for text in axes.get_children():
        cut = text.get_clip_on() and text.get_clip_box() is not None
        if isinstance(text, Text) and text.get_visible() and text.get_text() and not cut:
            yield text


def _place_title(axis: Any, boxes: Boxes) -> bool:
    """Place the title of an axis beyond the labels, as matplotlib does when it draws. Return whether that could be
    done: the title is at the bottom or left, and no common factor of the labels (such as 1e6) is written apart."""
    if axis.get_label_position() not in ("bottom", "left") or axis.get_major_formatter().get_offset():
        return False
    pad, (x, y) = axis.labelpad * axis.figure.dpi / 72, axis.label.get_position()
    ends = boxes or [axis.axes.spines[axis.get_label_position()].get_window_extent()]
    if axis.axis_name == "x":
        axis.label.set_position((x, min(box.y0 for box in ends) - pad))
    else:
        axis.label.set_position((min(box.x0 for box in ends) - pad, y))
    return True
