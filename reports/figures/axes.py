"""Helpers for axes: units on ticks, clocks, percentiles. The gid of an axis gives its unit to the page's script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import floor, log10
from typing import Any

from servesim.reports.words import wrapped

MOST = 8
"""Maximum number of ticks on a logarithmic axis."""
LINE = 14
"""Height of a line of text in CSS pixels."""
QUANTITIES = {"ms": "time", "": "number"}
"""Titles of axes whose unit is on the ticks, or that count; other axes are titled by their unit."""
ABOVE, BESIDE = 42, 24
"""Maximum number of characters in a line above a row, and in one beside it."""


def spans(axes: Any, rows: Any, starts: Any, stops: Any, height: float, colour: str, **style: Any) -> None:
    """Draw horizontal bars of one color, as `barh` does, as a single artist: a patch for each bar takes matplotlib
    half a millisecond. The limits of the axes are left alone."""
    import numpy as np
    from matplotlib.collections import PolyCollection

    low, high = np.asarray(rows) - height / 2, np.asarray(rows) + height / 2
    corners = np.stack([starts, low, stops, low, stops, high, starts, high], axis=1).reshape(-1, 4, 2)
    axes.add_collection(PolyCollection(list(corners), facecolor=colour, linewidth=0, **style), autolim=False)


def clock(span_s: float) -> tuple[float, str]:
    """Return (seconds per unit, unit name) for an axis of `span_s` seconds."""
    return (3600.0, "hours") if span_s > 3 * 3600 else (60.0, "minutes") if span_s > 900 else (1.0, "seconds")


def time_ticks(axis: Any, decades: bool = True) -> None:
    """Format the ticks of an axis in milliseconds with a unit."""
    from matplotlib.ticker import FuncFormatter

    axis.set_gid("ms")
    if decades:
        log_ticks(axis, short_time)
    else:
        axis.set_major_formatter(FuncFormatter(lambda ms, _: short_time(ms)))


def log_ticks(axis: Any, text: Callable[[float], str]) -> None:
    """Mark the decades of a logarithmic axis and, on a short one, multiples in between: at least two places."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    places: list[float] = []
    powers = range(floor(log10(low)), floor(log10(high)) + 1)
    for marks, enough in (((1,), 2 if high > 30 * low else 9), ((1, 2, 5), 3), (range(1, 10), 2)):
        places = [at for power in powers for mark in marks if low <= (at := mark * 10.0**power) <= high]
        if len(places) >= enough:
            break
    if len(places) < 2:
        places = [float(at) for at in MaxNLocator(4).tick_values(low, high) if low <= at <= high]
    axis.set_major_locator(FixedLocator(places[:: -(-len(places) // MOST)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def short_time(ms: float) -> str:
    """Return a short time such as `10 ms`, `2 s` or `1 min`, for ticks."""
    if ms <= 0:
        return "0"
    if ms < 1:
        return f"{ms * 1e3:g} µs"
    if ms < 1000:
        return f"{ms:g} ms"
    return f"{ms / 1e3:g} s"


def name_ticks(axis: Any, places: Sequence[float], names: Sequence[str], most: int = BESIDE, lines: int = 3) -> None:
    """Mark places of an axis by names, in lines of at most `most` characters; its numbers mean nothing to a reader."""
    from matplotlib.ticker import FixedFormatter, FixedLocator

    axis.set_major_locator(FixedLocator(places))
    shown: Any = FixedFormatter([wrapped(name, most, lines) for name in names])
    shown.names = list(names)  # for the figure's data
    axis.set_major_formatter(shown)


def thousands(axis: Any) -> None:
    """Format integers with thousands separators, or as multiples of 1,000 ("12k") from 10,000 up."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_gid("count")
    axis.set_major_locator(MaxNLocator(4, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 1e3:g}k" if abs(v) >= 10_000 else f"{v:,.0f}"))


def percents(axis: Any) -> None:
    """Format shares as percentages."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_gid("share")
    axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:g} %"))


def gap_of(figure: Any, panels: int, edges: float, gap: float) -> float:
    """Return the `hspace` of stacked panels with `gap` CSS pixels between them and a total of `edges` pixels above and
    below them."""
    each = (float(figure.get_figheight()) * 72 - edges - gap * (panels - 1)) / panels
    return gap / each


def pitch_of(names: Iterable[str], one: int, most: int = ABOVE, lines: int = 2) -> int:
    """Return the distance of rows in CSS pixels: `one` if each name is a line of at most `most` characters, and more
    for names of up to `lines`."""
    return one + LINE * max((wrapped(name, most, lines).count("\n") for name in names), default=0)


def name_above(axes: Any, y: int, name: str, pitch: int, **style: Any) -> None:
    """Write the name of row `y` above it, in two lines if it is long; `pitch` is the distance of rows in CSS pixels."""
    text = wrapped(name, ABOVE, 2)
    up = (6 + LINE / 2 * (1 + text.count("\n"))) / pitch
    axes.text(0, y - up, text, transform=axes.get_yaxis_transform(), va="center", linespacing=1, gid=name, **style)
