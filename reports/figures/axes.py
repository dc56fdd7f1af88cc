"""Helpers for axes: units on ticks, clocks, percentiles. The gid of an axis gives its unit to the page's script."""

from __future__ import annotations

from typing import Any


def clock(span_s: float) -> tuple[float, str]:
    """Return (seconds per unit, unit name) for an axis of `span_s` seconds."""
    return (3600.0, "hours") if span_s > 3 * 3600 else (60.0, "minutes") if span_s > 900 else (1.0, "seconds")


def time_ticks(axis: Any, decades: bool = True) -> None:
    """Format the ticks of an axis in milliseconds with a unit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_gid("ms")
    if decades:
        low, high = axis.get_view_interval()
        subs = (1.0,) if high > 60 * low else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(10, subs, numticks=8))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda ms, _: short_time(ms)))


def short_time(ms: float) -> str:
    """Return a short time such as `10 ms`, `2 s` or `1 min`, for ticks."""
    if ms <= 0:
        return "0"
    if ms < 1:
        return f"{ms * 1e3:g} µs"
    if ms < 1000:
        return f"{ms:g} ms"
    return f"{ms / 1e3:g} s"


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
