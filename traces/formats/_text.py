"""Code shared by the text formats: numbered lines, integer columns, and arrival order."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator, Sequence
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from servesim.compressed import DAMAGED, open_text
from servesim.errors import UserError, shown
from servesim.limits import limits, too_much
from servesim.untrusted import check_header, json_value, row_reader
from servesim.workload.trace import Ints, Trace, take_rows

YEAR_NS = 365 * 86_400 * 1_000_000_000
MOST_NAME = 1000
"""Maximum number of characters in the name of a request, session, tenant or the like."""
MAX_TOKENS = 1 << 40  # far above any real length, far below overflow of int64 sums


def is_delta(head: bytes) -> bool:
    """Return whether Mooncake rows are turns that contain only their new text: a later turn's first hash differs from
    the previous turn's first hash or, without hashes, a later turn is shorter than the previous one."""
    before: dict[str, dict[str, Any]] = {}
    for line in head.split(b"\n")[:1000]:
        row = first_object(line)
        if row is None or "session_id" not in row or "input_length" not in row:
            continue
        earlier = before.get(str(row["session_id"]))
        if earlier is not None and ("delay" in row or "timestamp" not in row):
            if (
                isinstance(first := earlier.get("hash_ids"), list)
                and isinstance(then := row.get("hash_ids"), list)
                and first
                and then
            ):
                return bool(first[0] != then[0])
            lengths = earlier["input_length"], row["input_length"]
            return all(type(length) is int for length in lengths) and lengths[1] < lengths[0]
        before[str(row["session_id"])] = row
    return False


def header_fields(head: bytes) -> list[str]:
    """Return the column names in the first line of a CSV."""
    line = head.split(b"\n", 1)[0].removeprefix(b"\xef\xbb\xbf")
    return [name.strip().strip('"') for name in line.decode("utf-8", errors="replace").split(",")]


def first_object(head: bytes) -> dict[str, Any] | None:
    """Return the first line of a JSONL file, if it is a complete object."""
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    try:
        value = json_value(line.decode())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def csv_columns(path: Path, needed: Sequence[str]) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the header, cells by column, and line numbers of a CSV, rejecting rows that are too short or too long."""
    return next(csv_chunks(path, needed, None))


def csv_chunks(
    path: Path, needed: Sequence[str], chunk: int | None, separator: str = ","
) -> Iterator[tuple[list[str], list[list[str]], list[int]]]:
    """Yield the columns of a CSV, `chunk` rows at a time."""
    rows: list[list[str]] = []
    lines: list[int] = []
    empty, most = True, limits().rows + 1  # and a header
    with open_text(path, newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        try:
            header = [name.strip() for name in next(reader)]
            check_header(f"{path}: line 1", header)
            for column in needed:
                if column not in header:
                    raise UserError(f"{path}: line 1: no column {column!r}; needed: {','.join(needed)}")
            width = len(header)
            for row in reader:
                if not row:
                    continue
                if len(row) != width:
                    raise UserError(
                        f"{path}: line {reader.line_num}: {len(row)} fields, but the header has {width} ("
                        f"{shown(','.join(header))[1:-1]})"
                        f"{'; the file may be cut short' if len(row) < width else ''}"
                    )
                rows.append(row)
                lines.append(reader.line_num)
                if reader.line_num > most:
                    raise too_much(path, "lines are", "rows")
                if len(rows) == chunk:
                    yield header, _columns(rows), lines
                    rows, lines, empty = [], [], False
        except csv.Error as error:
            raise UserError(f"{path}: line {reader.line_num}: not CSV: {error}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: after line {reader.line_num}: not UTF-8 text") from error
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path}: after line {reader.line_num}: {DAMAGED}") from error
    if rows:
        yield header, _columns(rows), lines
    elif empty:
        raise UserError(f"{path}: the file has a header but no requests")


def _columns(rows: list[list[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*rows, strict=True)]


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the (line number, object) pairs of a JSONL file, skipping blank lines."""
    number = 0
    with open_text(path) as file:
        try:
            most, read = limits().rows + 1, row_reader()  # and a header
            for number, line in enumerate(file, start=1):
                if number > most:
                    raise too_much(path, "lines are", "rows")
                if not line.strip():
                    continue
                try:
                    value = read(line)
                except ValueError as error:
                    cut = "" if line.endswith("\n") else "; the file may be cut short"
                    raise UserError(f"{path}: line {number}: not JSON: {error}{cut}") from error
                if not isinstance(value, dict):
                    raise UserError(f"{path}: line {number}: expected a JSON object, found {type(value).__name__}")
                yield number, value
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: after line {number}: not UTF-8 text") from error
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path}: after line {number}: {DAMAGED}") from error


def token_counts(path: Path, column: str, cells: Sequence[Any], lines: Sequence[int]) -> Ints:
    """Parse a column of token counts, which must be at least 1. `512.0` is read as 512; for text, fractions, zero, and
    negatives, raise an error that names the line."""
    try:
        values = np.array(cells, dtype=np.int64) if all(type(c) is int for c in cells) else _parse(cells)
    except (TypeError, ValueError, OverflowError):
        values = np.zeros(len(cells), dtype=np.int64)  # the first invalid cell is named below
    bad = np.flatnonzero((values < 1) | (values > MAX_TOKENS))
    if len(bad):
        first = next((i for i, c in enumerate(cells) if not _is_count(c)), int(bad[0]))
        raise UserError(
            f"{path}: line {lines[first]}: {column} is {shown(cells[first])} but must be a whole number of at least 1"
        )
    return values


def _parse(cells: Sequence[Any]) -> Ints:
    if any(isinstance(c, bool) for c in cells):
        raise ValueError
    numbers = np.array([float(c) for c in cells])
    if not np.all(np.abs(numbers) <= MAX_TOKENS) or np.any(numbers != np.floor(numbers)):  # NaN fails too
        raise ValueError
    return numbers.astype(np.int64)


def _is_count(cell: Any) -> bool:
    if isinstance(cell, bool):
        return False
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        return False
    return 1 <= number <= MAX_TOKENS and number == int(number)


def times_ns(path: Path, column: str, cells: Sequence[Any], lines: Sequence[int], unit_ns: int) -> Ints:
    """Convert relative times in units of `unit_ns` to integer nanoseconds, keeping integers exact."""
    out = np.empty(len(cells), dtype=np.int64)
    for i, cell in enumerate(cells):
        try:
            if type(cell) is int or (isinstance(cell, str) and cell.strip().isdigit()):
                value = int(cell) * unit_ns
            elif isinstance(cell, bool):
                raise ValueError
            else:
                value = round(float(cell) * unit_ns)
            if value < 0:
                raise ValueError
            out[i] = value
        except (TypeError, ValueError, OverflowError):
            raise UserError(
                f"{path}: line {lines[i]}: {column} is {shown(cell)} but must be a number of at least 0"
            ) from None
    return out


def whole(path: Path, column: str, cells: Sequence[Any], lines: Sequence[int]) -> Ints:
    """Parse a column of whole numbers, which may be negative."""
    out = np.zeros(len(cells), dtype=np.int64)
    for i, cell in enumerate(cells):
        try:
            if isinstance(cell, bool) or float(cell) != int(cell):
                raise ValueError
            out[i] = int(cell)
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"{path}: line {lines[i]}: {column} is {shown(cell)} but must be a whole number") from None
    return out


def texts(path: Path, column: str, cells: Sequence[Any], lines: Sequence[int]) -> tuple[str, ...]:
    """Return a column of names: strings of bounded length, or whole numbers converted to strings."""
    for cell, line in zip(cells, lines, strict=True):
        if type(cell) is not str and type(cell) is not int:
            raise UserError(f"{path}: line {line}: {column} is {shown(cell)} but must be a string")
        if type(cell) is str and len(cell) > MOST_NAME:
            raise UserError(
                f"{path}: line {line}: {column} has {len(cell):,} characters but must have at most {MOST_NAME:,}"
            )
    return tuple(map(str, cells))


def whole_number(value: Any, least: int, most: int) -> int:
    """Return a whole number (not a boolean or a fraction) from `least` to `most`; raise ValueError or TypeError
    otherwise."""
    number = index(value)
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError
    return number


def in_order(
    path: Path, trace_columns: dict[str, Any], lines: Sequence[int], sort: bool, start: int | None = None
) -> dict[str, Any]:
    """Sort columns by arrival. Raise UserError if times decrease, unless `sort` is set; sorting adds a note.

    Times more than a year from zero are clock times and are counted from the first one (or, if this is part of a file,
    from `start`, the first time of the whole file).
    """
    arrival: Ints = trace_columns["arrival_ns"]
    notes: list[str] = []
    backwards = np.flatnonzero(np.diff(arrival) < 0)
    if len(backwards):
        row = int(backwards[0]) + 1
        if not sort:
            raise UserError(
                f"{path}: line {lines[row]}: arrives before the request above it. Sort the file by time, or use "
                "--sort (sort=True in Python)."
            )
        order = np.argsort(arrival, kind="stable")
        notes_so_far = trace_columns.pop("notes", ())
        trace_columns = {name: take_rows(column, order) for name, column in trace_columns.items()}
        trace_columns["notes"] = notes_so_far
        notes.append("rows sorted by arrival time")
    arrival = trace_columns["arrival_ns"]
    start = int(arrival[0]) if start is None else start
    if start > YEAR_NS:
        trace_columns["arrival_ns"] = arrival - start
        notes.append("clock times counted from the first request")
    return {**trace_columns, "notes": (*trace_columns.get("notes", ()), *notes)}


def milliseconds(ns: int) -> int | float:
    """Return nanoseconds as milliseconds: an integer if exact, otherwise with all digits."""
    whole, rest = divmod(ns, 1_000_000)
    return whole + rest / 1e6 if rest else whole


def need(path: Path, number: int, row: dict[str, Any], key: str) -> Any:
    """Return the value of a required key of a JSON line."""
    if key not in row:
        raise UserError(f"{path}: line {number}: no {key!r}")
    return row[key]


def lengths_trace(
    path: Path, columns: dict[str, Any], lines: Sequence[int], sort: bool, start: int | None = None
) -> Trace:
    """Build a trace, named after its file, from columns of lengths; the arrival order is checked (see in_order)."""
    return Trace.from_lengths(path.stem, **in_order(path, columns, lines, sort, start))
