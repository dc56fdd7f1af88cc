"""Dates with the year last: 11/20/2026 2:00:01 PM, 20/11/2026 14:00:01, 20.11.2026 14:00:01."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown

ORDERS = {"mdy": "month/day/year", "dmy": "day/month/year"}
_DATE = re.compile(
    r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4}),?[T ]\s*(\d{1,2}):(\d\d):(\d\d)(?:([.,]\d{1,12}))?\s*([ap]\.?m\.?)?\s*"
    r"(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?",
    re.IGNORECASE,
)


def is_date(cell: Any) -> bool:
    """Return whether a cell is a date with the year last and a time to the second."""
    return isinstance(cell, str) and _DATE.fullmatch(cell.strip()) is not None


def date_order(path: Path, columns: Mapping[str, Sequence[Any]], lines: Sequence[int], asked: str | None) -> str | None:
    """Return the order of day and month in the dates of these columns: the order asked for, or the only order in which
    all of the dates are valid; None if there are no such dates. Raise UserError if both orders are possible, or
    neither."""
    found = list(_found(columns))
    if not found or asked is not None:
        return asked if found else None
    days = next((each for each in found if int(each[2][1]) > 12 or each[2][2] == "."), None)  # dots: the day is first
    months = next((each for each in found if int(each[2][3]) > 12), None)
    if days and months:
        (name, i, one), (other, k, two) = days, months
        raise UserError(
            f"{path}: dates mix two field orders: {name} is {shown(one[0])} on line {lines[i]}, and {other} is "
            f"{shown(two[0])} on line {lines[k]}"
        )
    if days or months:
        return "dmy" if days else "mdy"
    if len({date.group(1, 3, 4) for *_, date in found}) == 1 or all(int(d[1]) == int(d[3]) for *_, d in found):
        return "mdy"  # either order gives the same gaps between requests
    name, row, date = found[0]
    raise UserError(
        f"{path}: line {lines[row]}: {name} is {shown(date[0])}, which may be month/day or day/month. Choose with "
        "--columns dates=mdy or dates=dmy."
    )


def _found(columns: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, int, re.Match[str]]]:
    for name, cells in columns.items():
        if not any(map(is_date, cells[:1])):
            continue
        for row, cell in enumerate(cells):
            if isinstance(cell, str) and (date := _DATE.fullmatch(cell.strip())) is not None:
                yield name, row, date


def as_iso(cell: Any, order: str) -> Any:
    """Return a date with the year last as an ISO date, and any other cell unchanged."""
    if not isinstance(cell, str) or (date := _DATE.fullmatch(cell.strip())) is None:
        return cell
    first, _, second, year, hour, minute, seconds, fraction, half, zone = date.groups()
    month, day = (first, second) if order == "mdy" else (second, first)
    if half is not None:
        if not 1 <= int(hour) <= 12:
            return cell
        hour = str(int(hour) % 12 + (12 if half[0] in "pP" else 0))
    return f"{year}-{month:0>2}-{day:0>2}T{hour:0>2}:{minute}:{seconds}{fraction or ''}{zone or 'Z'}"
