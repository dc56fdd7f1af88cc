"""Numbers as spreadsheets write them, 1,234.5 or 1.234,5, told apart by the contents of a file's columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown

from ._table import Table

GROUPS = {"point": ",", "comma": "."}
"""Character that groups digits, for each decimal mark."""
_SPACES = re.compile(r"(?<=\d)[ '\u2019\u00a0\u202f](?=\d{3}(?!\d))")
_WRITTEN = re.compile(r"[+-]?\d[\d.,]*")
_GROUPED = {
    ",": re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?"),
    ".": re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?"),
}
Place = tuple[str, int]


@dataclass
class _Seen:
    """Evidence on the character that groups digits: the first cell of each kind, keyed by that character."""

    shows: dict[str, Place]
    """Cells that are valid numbers only if this character groups digits."""
    doubtful: dict[str, Place]
    """Cells in which this character may either group digits or begin a fraction."""


def plain_numbers(
    table: Table, columns: Sequence[str], whole: Sequence[str], asked: str | None
) -> tuple[Table, list[str]]:
    """Return the table with the numbers of some columns written plainly (1234.5), and a note if some were not. Columns
    in `whole` hold counts, which cannot be fractions. `asked` is the decimal mark that the user names. Raise UserError
    if the file does not show which mark it uses, or uses both."""
    marked = {name for name in columns if any(_has_mark(cell, name in whole) for cell in table.column(name))}
    if not marked:
        return table, []
    group = GROUPS[asked] if asked is not None else _group(table, columns, whole)
    written: dict[str, list[Any]] = {}
    example = None
    for name in columns:
        cells = table.column(name)
        written[name] = [_plain(cell, group) if isinstance(cell, str) else cell for cell in cells]
        changed = ((a, b) for a, b in zip(cells, written[name], strict=True) if a is not b)
        example = example or next(changed, None)
    rest: Callable[[str], list[Any]] = table.column
    told = "decimal commas" if group == "." else "thousands separators"
    notes = [f"numbers have {told}: {shown(example[0])} is {example[1]}"] if example else []
    return replace(table, column=lambda name: written[name] if name in written else rest(name)), notes


def _has_mark(cell: Any, whole: bool) -> bool:
    if not isinstance(cell, str) or cell.isdecimal():
        return False
    return ("," in cell and ":" not in cell) or (whole and _WRITTEN.match(cell.strip()) is not None)


def _group(table: Table, columns: Sequence[str], whole: Sequence[str]) -> str:
    """Return the character that groups digits in this file."""
    seen = _Seen({}, {})
    for name in columns:
        _look(name, table.column(name), name in whole, seen)
    if len(seen.shows) == 2:
        (comma, i), (point, k) = seen.shows["."], seen.shows[","]
        raise UserError(
            f"{table.path}: numbers have both decimal commas ({comma}, line {table.lines[i]}) and decimal points "
            f"({point}, line {table.lines[k]}); use only one of them, or choose with --columns decimal=comma or "
            "decimal=point"
        )
    if seen.shows:
        return next(iter(seen.shows))
    in_whole = {group: place for group, place in seen.doubtful.items() if place[0] in whole}
    if table.separator == "," and "." not in in_whole:
        return ","  # commas separate cells, so a comma within a cell groups digits
    if in_whole:
        group, (name, row) = next(iter(in_whole.items()))
        raise _doubtful(table.path, name, table.column(name)[row], table.lines[row], group)
    return "." if "," in seen.doubtful else ","


def _doubtful(path: Path, name: str, cell: str, line: int, group: str) -> UserError:
    marks = ("point", "comma") if group == "," else ("comma", "point")
    whole, part = cell.strip().replace(group, ""), cell.strip().replace(",", ".")
    return UserError(
        f"{path}: line {line}: {name} is {shown(cell)[:80]}, which may be {whole} or {part}; choose with --columns "
        f"decimal={marks[0]} ({whole}) or decimal={marks[1]} ({part})"
    )


def _look(name: str, cells: Sequence[Any], whole: bool, seen: _Seen) -> None:
    """Record what the cells of one column show."""
    doubtful: dict[str, int] = {}
    small = large = False
    for row, cell in enumerate(cells):
        if not isinstance(cell, str) or not _WRITTEN.fullmatch(text := cell.strip()):
            continue
        kinds = [mark for mark in ",." if mark in text]
        if not kinds:
            small, large = small or len(text) < 4, large or len(text) > 3
        elif len(kinds) == 2:
            seen.shows.setdefault(min(kinds, key=text.index), (name, row))
        elif text.count(kinds[0]) > 1:
            if _GROUPED[kinds[0]].fullmatch(text):
                seen.shows.setdefault(kinds[0], (name, row))
        elif _GROUPED[kinds[0]].fullmatch(text):
            doubtful.setdefault(kinds[0], row)
        else:
            seen.shows.setdefault("," if kinds[0] == "." else ".", (name, row))
    for group, row in doubtful.items():
        if whole and small and not large:  # 812 beside 1.234: as a fraction, 812 would be 812.000
            seen.shows.setdefault(group, (name, row))
        elif whole or group == ",":  # 1.234 is a fraction where fractions are possible
            seen.doubtful.setdefault(group, (name, row))


def _plain(cell: str, group: str) -> str:
    """Return a number as Python writes it, or any other cell unchanged."""
    text = _SPACES.sub("", cell.strip()) if not cell.isdecimal() else cell
    if group not in text and "," not in text:
        return cell if len(text) == len(cell) else text
    if _GROUPED[group].fullmatch(text):
        text = text.replace(group, "")
    elif group in text:
        return cell
    return text.replace(",", ".") if _WRITTEN.fullmatch(text) else cell
