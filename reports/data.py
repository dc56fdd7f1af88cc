"""Data of a figure as a tidy DataFrame: one row per value, as drawn.

| column | |
|---|---|
| panel | title of the panel, or the label of its y axis |
| series | legend entry of the color; if there is none, the panel's name |
| mark | line, point, bar or area |
| row | name on the y axis, if it has names instead of numbers; otherwise missing |
| x, y | in the axis's unit: ms for latencies, fractions for shares, the clock's unit of time; an area's y: thickness |
| x_end | end of a horizontal bar; otherwise missing |
| x_label | ms for times, otherwise the label of x or its unit |

Lines are thinned as they are drawn (a distribution has about 180 quantiles, a time series 300 means); the records of a
run have all values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from servesim.reports.ink import INK, SERIES, STYLE, painted

if TYPE_CHECKING:
    import pandas as pd

    from servesim.reports.svg import Drawing

COLUMNS = ("panel", "series", "mark", "row", "x", "y", "x_end", "x_label")
Mark = tuple[str, str, float, float, float]
"""Tuple of (color, mark, x, y, x_end)."""


def frame_of(drawing: Drawing) -> pd.DataFrame:
    """Return the data of a figure: columns as above, rows grouped by panel."""
    import matplotlib
    import pandas as pd

    if drawing.tidy is not None:
        return pd.DataFrame(drawing.tidy(), columns=list(COLUMNS))
    style: dict[Any, Any] = {**matplotlib.rcParamsDefault, **STYLE}
    with matplotlib.rc_context(style):
        figure = painted(drawing, *drawing.size, narrow=False)
    words, names = dict(drawing.legend), _names()
    rows = []
    for axes in figure.axes:
        panel = axes.get_title("left") or axes.get_ylabel() or drawing.title
        named, label = _row_names(axes), _x_label(axes)
        for colour, mark, x, y, x_end in _marks(axes, names):
            row = named.get(round(y)) if mark in ("bar", "point") else None
            rows.append((panel, words.get(colour) or panel, mark, row, x, y, x_end, label))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def drawn_colours(axes: Any) -> set[str]:
    """Return the names of the series' colors that a panel has."""
    return {colour for colour, *_ in _marks(axes, _names())}


def _names() -> dict[str, str]:
    return {INK[name]: name for name in SERIES}


def _marks(axes: Any, names: Mapping[str, str]) -> Iterator[Mark]:
    """Yield everything drawn in a series' color."""
    from matplotlib.colors import to_hex

    def name(colour: Any) -> str | None:
        return None if isinstance(colour, str) and colour == "none" else names.get(to_hex(colour))

    covered = set()
    for line in axes.lines:
        colour = name(line.get_color()) or name(line.get_markeredgecolor())
        if colour is None or line.get_transform() != axes.transData:
            continue  # a limit, or a frame line
        xs, ys = (np.asarray(v, dtype=float) for v in line.get_data())
        if len(xs) > 1 and line.get_linestyle() != "None":
            covered.add(colour)
            yield from ((colour, "line", float(x), float(y), math.nan) for x, y in zip(xs, ys, strict=True))
        elif colour not in covered:  # other points only mark a drawn line
            yield from ((colour, "point", float(x), float(y), math.nan) for x, y in zip(xs, ys, strict=True))
    for patch in axes.patches:
        if (colour := name(patch.get_facecolor())) is not None and hasattr(patch, "get_width"):
            yield from _bar(axes, colour, patch)
    for area in axes.collections:
        colour = name(area.get_facecolor()[0]) if len(area.get_facecolor()) else None
        if colour is None or colour in covered:
            continue  # the tint below a line
        if hasattr(area, "get_offsets") and len(area.get_offsets()) > 1:
            yield from ((colour, "point", float(x), float(y), math.nan) for x, y in area.get_offsets())
        else:
            yield from _area(colour, area)


def _bar(axes: Any, colour: str, patch: Any) -> Iterator[Mark]:
    """Yield a bar: a horizontal one by its ends, a vertical one by its position and height."""
    from matplotlib.container import BarContainer

    box = next((c for c in axes.containers if isinstance(c, BarContainer) and patch in c.patches), None)
    left, width, middle = patch.get_x(), patch.get_width(), patch.get_y() + patch.get_height() / 2
    if box is not None and box.orientation == "vertical":
        yield (colour, "bar", float(left + width / 2), float(patch.get_height()), math.nan)
    else:
        yield (colour, "bar", float(left), float(middle), float(left + width))


def _area(colour: str, area: Any) -> Iterator[Mark]:
    """Yield the thickness of a filled area at each x."""
    for path in area.get_paths():
        ends: dict[float, list[float]] = {}
        for x, y in path.vertices:
            if math.isfinite(x):
                ends.setdefault(float(x), []).append(float(y))
        yield from ((colour, "area", x, max(ys) - min(ys), math.nan) for x, ys in sorted(ends.items()))


def _row_names(axes: Any) -> dict[int, str]:
    """Return the names of rows by their position on the y axis, taken from its ticks or from texts above the rows."""
    if names := getattr(axes.yaxis.get_major_formatter(), "names", ()):
        ticks = zip(axes.yaxis.get_majorticklocs(), names, strict=True)
        if named := {round(at): name for at, name in ticks if name}:
            return named
    first = axes.get_shared_y_axes().get_siblings(axes)
    written = [text for one in first for text in one.texts if text.get_gid()]
    return {round(text.get_position()[1] + 0.4): text.get_gid() for text in written}


def _x_label(axes: Any) -> str:
    """Return ms for times, else the label of the x axis (the lowest panel has it if panels share it) or its unit."""
    if axes.xaxis.get_gid() == "ms":
        return "ms"
    siblings = axes.get_shared_x_axes().get_siblings(axes)
    return next((one.get_xlabel() for one in siblings if one.get_xlabel()), axes.xaxis.get_gid() or "")
