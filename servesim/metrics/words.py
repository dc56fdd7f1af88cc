"""Figures as text, with as many digits as are useful."""

from __future__ import annotations


def number(value: float | None) -> str:
    """Return a figure with as many digits as are useful."""
    if value is None:
        return "-"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    return f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    """Return a share as a percentage."""
    return "-" if share is None else f"{100 * share:.1f} %"


def valued(value: float | None, unit: str) -> str:
    """Return a value with its unit: `71.9 ms`, `99.0 %`, `$0.165`."""
    if value is None:
        return "-"
    if unit == "share":
        return percent(value)
    return f"${number(value)}" if unit == "$" else f"{number(value)} {unit}".strip()


def amount(value: float, unit: str = "") -> str:
    """Format a value with three significant digits or all integer digits, and the unit: `3.36`, `16,384`, `71.9 ms`."""
    size = abs(value)
    if size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 100:
        text = f"{value:.0f}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".strip()
