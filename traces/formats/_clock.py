"""Times as written in logs: ISO dates, and numbers whose unit is given by a name or inferred from their size."""

from __future__ import annotations

import datetime
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import UserError, shown
from servesim.workload.trace import Ints

from ._dates import ORDERS, as_iso
from ._names import UNITS

EPOCH = (1e9, 4.2e9)
"""Range of clock times in seconds since 1970: from September 2001 to 2103."""
LEAST_RATE = 0.05
"""Rate in requests/s below which a log of whole numbers is assumed to be in a finer unit. A log at one request per 20
seconds would be at 50/s in a unit 1,000 times finer, so for any log, one of two adjacent units gives a rate in this
range."""
LEAST_SECONDS_RATE = 5e-4
"""The same bound for fractional numbers, which are seconds in almost all logs: two requests an hour."""
FEW, GROWS = 4, 0.75
"""Minimum number of times needed to judge whether they grow, and the minimum share of steps that must not be decreases
for times to count as growing."""
MANY = 100.0
"""Rate in requests/s (and number of requests) from which the user is asked for the unit of times."""
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_MOST_NS = 1 << 62
_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,12}))?\s*(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?",
    re.IGNORECASE,
)
_DAY = 86_400


def iso_ns(text: str) -> int | None:
    """Return an ISO time as ns since 1970 (UTC if it has no zone), or None if it is not an ISO time."""
    found = _ISO.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    try:
        days = datetime.date(year, month, day).toordinal() - 719_163
    except ValueError:
        return None
    if hour > 23 or minute > 59 or second > 60 or not 0 <= days < 100 * 366 + 20_000:
        return None
    zone, offset = found[8] or "Z", 0
    if zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1 if zone[0] == "-" else 1)
    seconds = days * _DAY + hour * 3600 + minute * 60 + second - offset
    return seconds * 1_000_000_000 + int((found[7] or "").ljust(9, "0")[:9])


def dates_ns(path: Path, column: str, cells: Sequence[str], lines: Sequence[int]) -> Ints:
    """Return a column of UTC times as ns since 1970, parsed in one call; raise UserError naming the line of any invalid
    time."""
    plain = [cell.strip().removesuffix("Z").removesuffix("+00:00") for cell in cells]
    stamps = _stamps(plain)
    if stamps is not None:
        return stamps
    bad = next(i for i, text in enumerate(plain) if _stamps([text]) is None)
    raise UserError(
        f"{path}: line {lines[bad]}: {column} is {shown(cells[bad])} but must be a UTC time such as 2023-11-16 "
        "18:15:46.6805900"
    )


def _stamps(texts: list[str]) -> Ints | None:
    """Return nanoseconds since 1970, or None if any cell is not a time or has another time zone (about which numpy
    warns)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            stamps = np.array(texts, dtype="datetime64[ns]")
        except (ValueError, OverflowError, UserWarning, DeprecationWarning):
            return None
    return None if np.any(np.isnat(stamps)) else stamps.astype(np.int64)


def number(cell: Any) -> float | int:
    """Return a cell as a number; raise ValueError if it is not a number or not finite."""
    if isinstance(cell, bool):
        raise ValueError
    if isinstance(cell, str):
        text = cell.strip().replace("_", "x")
        if re.fullmatch(r"-?\d+,\d+", text):  # decimal comma
            text = text.replace(",", ".")
        cell = int(text) if text.isdecimal() and len(text) < 25 else float(text)
    if not isinstance(cell, int | float) or not -1e300 < cell < 1e300:
        raise ValueError
    return cell


def clock_kind(cells: Sequence[Any]) -> int:
    """Return 0 for dates (ISO, or numbers as large as times since 1970), 1 for mostly non-decreasing numbers, and 2 for
    others, such as durations."""
    try:
        known = [cell for cell in cells if cell is not None and cell == cell and cell != ""]
        if any(isinstance(cell, str) and iso_ns(cell) is not None for cell in known):
            return 0
        values = np.array([float(number(cell)) for cell in known])
    except (ValueError, OverflowError, TypeError):
        return 0  # not a number: reading it raises an error with its line
    if len(values) and any(
        ((values * f / 1e9 >= EPOCH[0]) & (values * f / 1e9 < EPOCH[1])).all() for f in UNITS.values()
    ):
        return 0
    return 1 if len(values) < FEW or float((np.diff(values) >= 0).mean()) >= GROWS else 2


def clock_ns(
    path: Path,
    column: str,
    cells: Sequence[Any],
    lines: Sequence[int],
    unit: str | None,
    named: str | None,
    order: str | None = None,
) -> tuple[Ints, str]:
    """Return times as ns since 1970 or since an arbitrary start, and a note on how they were read. `unit` is the unit
    given by the user, `named` is the unit in the column's name, and `order` is the order of day and month in dates that
    end in the year. Raise UserError naming the line of any cell that is not a time."""
    dated = cells if order is None else [as_iso(cell, order) for cell in cells]
    iso = [iso_ns(cell) if isinstance(cell, str) else None for cell in dated]
    if any(stamp is not None for stamp in iso):
        if (bad := next((i for i, stamp in enumerate(iso) if stamp is None), None)) is not None:
            raise _no_time(path, column, cells[bad], lines[bad])
        return np.array(iso, dtype=np.int64), f"times from {shown(column)} ({ORDERS[order] if order else 'ISO'})"
    values: list[float | int] = []
    for cell, line in zip(cells, lines, strict=True):
        try:
            values.append(number(cell))
            if values[-1] < 0:
                raise ValueError
        except (ValueError, OverflowError):
            raise _no_time(path, column, cell, line) from None
    try:
        chosen, why = (unit, "as told") if unit is not None else _unit(values, named)
    except ValueError as error:
        raise UserError(f"{path}: {column}: {error}") from None
    factor = UNITS[chosen]
    times = [value * factor if isinstance(value, int) else round(value * factor) for value in values]
    if max(times) > _MOST_NS:
        where = times.index(max(times))
        raise _no_time(path, column, cells[where], lines[where])
    return np.array(times, dtype=np.int64), f"times from {shown(column)} in {UNIT_NAMES[chosen]} ({why})"


def _unit(values: Sequence[float | int], named: str | None) -> tuple[str, str]:
    """Return the unit of times and how it was determined."""
    least, most = min(values), max(values)
    epoch = next((u for u in UNITS if EPOCH[0] * 1e9 / UNITS[u] <= least <= most < EPOCH[1] * 1e9 / UNITS[u]), None)
    if named is not None:
        # If the numbers look like dates only in a unit other than the named one, use that unit if the named one gives
        # implausible times: centuries, or weeks from the start of a log.
        beyond = epoch is not None and epoch != named and (UNITS[named] > UNITS[epoch] or least * UNITS[named] > 1e15)
        if epoch and (beyond or _hurried(values, named)) and not _hurried(values, epoch):
            return epoch, f"by their size, although the name indicates {named}"
        if epoch != named and _hurried(values, named):
            rate = (len(values) - 1) / (most - least) * 1e9 / UNITS[named]
            raise ValueError(
                f"in {UNIT_NAMES[named]}, as its name indicates, it gives {rate:,.0f} requests/s. Choose with "
                "--columns "
                f"unit=..., such as unit={_slower(values, named)}"
            )
        return named, "by its name"
    if epoch is not None:
        return epoch, "since 1970, by their size"
    span, gaps = most - least, len(values) - 1
    if not span:
        return "s", "assumed, since all times are equal"
    rate = gaps / span  # in units
    if any(isinstance(value, float) and not value.is_integer() for value in values) and rate >= LEAST_SECONDS_RATE:
        return "s", f"by their size: {rate:.3g} requests/s"
    for unit, factor in UNITS.items():
        if rate * 1e9 / factor >= LEAST_RATE:
            return unit, f"by their size: {rate * 1e9 / factor:.3g} requests/s; set it with --columns unit=..."
    return "ns", "by their size"


def _hurried(values: Sequence[float | int], unit: str) -> bool:
    """Return whether the rate implied by this unit is higher than that of almost all servers."""
    span = max(values) - min(values)
    return len(values) >= MANY and span > 0 and (len(values) - 1) / span * 1e9 / UNITS[unit] >= MANY


def _slower(values: Sequence[float | int], unit: str) -> str:
    """Return the finest coarser unit that implies a plausible rate."""
    coarser = [each for each in UNITS if UNITS[each] > UNITS[unit] and not _hurried(values, each)]
    return coarser[-1] if coarser else unit


def declared_ns(arrival_ns: Ints) -> tuple[str, str | None, str | None]:
    """Return the unit of times that are declared as nanoseconds, a note if it is another unit, and a question to the
    user if the unit cannot be determined. If the rate is higher than that of almost all servers, but the numbers read
    as times since 1970 at a plausible rate in milliseconds or microseconds, they are in that unit. (In seconds they
    could be a burst.)"""
    ends = int(arrival_ns.min()), int(arrival_ns.max())
    span = (ends[1] - ends[0]) / 1e9
    rate = (len(arrival_ns) - 1) / span if span else 0.0
    if rate < MANY or len(arrival_ns) < FEW:
        return "ns", None, None
    for unit in ("ms", "us"):
        factor = UNITS[unit]
        if all(EPOCH[0] <= end * factor / 1e9 < EPOCH[1] for end in ends) and LEAST_RATE <= rate / factor < MANY:
            return unit, f"arrival_ns read in {UNIT_NAMES[unit]} (since 1970, by their size)", None
    if len(arrival_ns) < MANY:
        return "ns", None, None
    return (
        "ns",
        None,
        f"arrival_ns gives {rate:,.0f} requests/s. If it is in microseconds, the rate is {rate / 1000.0:,.3g}/s. "
        "Choose with --columns unit=us or unit=ns",
    )


def _no_time(path: Path, column: str, cell: Any, line: int) -> UserError:
    return UserError(
        f"{path}: line {line}: {column} is {shown(cell)[:80]} but must be a time: 2026-11-20T14:00:01.194Z, or a "
        "number of at least 0 (s, ms, us or ns)"
    )
