"""Rows with named cells from files of any kind: CSV with any separator, JSON lines, a JSON document, or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown
from servesim.limits import limits, too_much
from servesim.untrusted import check_header, json_value, read_json, read_start

from . import _text
from ._clock import iso_ns, number
from ._dates import is_date
from ._parquet import cells_of, open_files, readable

SEPARATORS = (",", ";", "\t", "|")
LONGEST_OBJECT = 4000
"""Maximum number of characters of a JSON object in a cell for it to be parsed."""
LONGEST_CELL = 200
"""Maximum number of characters of a text that is kept; the prompts and answers in a log are not needed."""
_DEEPEST = 4


@dataclass(frozen=True)
class Table:
    """Rows of a file. A cell missing from a row is None or empty."""

    path: Path
    names: list[str]
    lines: list[int]
    """Position of each row: its line number in a text file, or its record number in other files."""
    column: Callable[[str], list[Any]]
    units: dict[str, str] = field(default_factory=dict)
    """Units of times by column, if the file states them."""
    separator: str = ""
    """Separator between the cells of a text file; empty for other files."""


def is_table(head: bytes) -> bool:
    """Return whether a file with this beginning may contain rows with named cells."""
    if head.startswith(b"PAR1") or head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return True
    first = head.lstrip().split(b"\n", 1)[0]
    return b"\x00" not in head and any(separator.encode() in first for separator in SEPARATORS)


def read_table(path: Path) -> Table:
    """Read the rows of a file; raise UserError if it has none."""
    if path.is_dir() or _begins(path, b"PAR1"):
        return parquet_table(path)
    start = read_start(path).lstrip()
    return _json(path, start) if start[:1] in ("{", "[") else _csv(path, start)


def _begins(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _csv(path: Path, start: str) -> Table:
    header = start.split("\n", 1)[0]
    separator = max(SEPARATORS, key=header.count)
    cells = [cell.strip().strip('"') for cell in header.split(separator)]
    if cells and all(_is_value(cell) for cell in cells):
        raise UserError(
            f"{path}: line 1 is not a header but {shown(header.strip())[:80]}; add column names, such as "
            "timestamp,prompt_tokens,completion_tokens"
        )
    names, columns, lines = next(_text.csv_chunks(path, (), None, separator))
    by_name: dict[str, list[Any]] = {}
    for name, cells in zip(names, columns, strict=True):
        by_name |= unpacked(path, name, cells, lines)
    return Table(path, list(by_name), lines, by_name.__getitem__, separator=separator)


def unpacked(path: Path, name: str, cells: Sequence[Any], lines: Sequence[int]) -> dict[str, list[Any]]:
    """Return the fields of a column of JSON objects, such as Langfuse's usage, as columns with dotted names, or the
    column itself if any cell holds anything else or is long (a text)."""
    rows: list[tuple[int, dict[str, Any]]] = []
    for cell, line in zip(cells, lines, strict=True):
        if (value := _object(cell)) is None:
            return {name: list(cells)}
        rows.append((line, {name: value} if value else {}))
    if not any(row for _, row in rows):
        return {name: list(cells)}
    table = _rows(path, rows)
    return {key: table.column(key) for key in table.names}


def _object(cell: Any) -> dict[str, Any] | None:
    """Return the JSON object in a cell, or {} if the cell is empty; return None if the cell holds anything else."""
    if cell is None or cell == "":
        return {}
    if isinstance(cell, str) and cell.lstrip().startswith("{") and len(cell) <= LONGEST_OBJECT:
        try:
            cell = json_value(cell)
        except ValueError:
            return None
    return cell if isinstance(cell, dict) else None


def _is_value(cell: str) -> bool:
    try:
        return iso_ns(cell) is not None or is_date(cell) or number(cell) is not None
    except ValueError:
        return False


def _json(path: Path, start: str) -> Table:
    """Read JSON lines, or the first list of objects in a document."""
    first, _, rest = start.partition("\n")
    if start[0] == "{" and rest.strip() and first.rstrip().endswith("}"):
        return _rows(path, _text.json_lines(path))
    found = _records(read_json(path), 0)
    if found is None:
        raise UserError(f"{path}: this JSON has no list of requests. Use a list, or one object per line (JSONL).")
    if len(found) > limits().rows:
        raise too_much(path, "requests are", "rows")
    return _rows(path, ((i, row) for i, row in enumerate(found, start=1)))


def _records(value: Any, depth: int) -> list[Any] | None:
    if isinstance(value, list):
        return value if value and all(isinstance(row, dict) for row in value) else None
    if not isinstance(value, dict) or depth > _DEEPEST:
        return None
    lists = (_records(inner, depth + 1) for inner in value.values() if isinstance(inner, list | dict))
    return next((found for found in lists if found), [value] if depth == 0 and _plain(value) else None)


def _plain(row: dict[str, Any]) -> bool:
    return any(not isinstance(value, list | dict) for value in row.values())


def _rows(path: Path, rows: Iterable[tuple[int, dict[str, Any]]]) -> Table:
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    for line, row in rows:
        for name, value in _flat(row):
            column = columns.get(name)
            if column is None:
                if len(columns) == limits().columns:
                    raise too_much(f"{path}: line {line}", "different keys are", "columns")
                column = columns[name] = []
            column.extend([None] * (len(lines) - len(column)))
            if len(column) == len(lines):
                column.append(value)
        lines.append(line)
    if not lines:
        raise UserError(f"{path}: no requests")
    for column in columns.values():
        column.extend([None] * (len(lines) - len(column)))
    return Table(path, list(columns), lines, columns.__getitem__)


def _flat(row: dict[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    """Return the cells of an object, with dotted keys for nested objects and without lists and long texts."""
    found: list[tuple[str, Any]] = []
    for key, value in row.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.", depth + 1) if depth < _DEEPEST else []
        elif not isinstance(value, list) and not (isinstance(value, str) and len(value) > LONGEST_CELL):
            found.append((f"{prefix}{key}", value))
    return found


def parquet_table(path: Path, lists: Sequence[str] = ()) -> Table:
    """Read a Parquet file, or the Parquet files in a folder. Columns are read only when needed; list columns are read
    only if they are named."""
    import pyarrow as pa

    with readable(path):
        files = open_files(path)
        schema = files[0].schema_arrow
        units, count = {}, sum(file.metadata.num_rows for file in files)
        paths: dict[str, tuple[str, ...]] = {}
        for name, kind, keys in _fields(schema, (), lists):
            paths[name] = keys
            if pa.types.is_timestamp(kind):
                units[name] = "ns"
    check_header(path, list(paths))
    if not count:
        raise UserError(f"{path}: the file has columns but no requests")

    def column(name: str) -> list[Any]:
        outer, *inner = paths[name]
        with readable(path):
            found = pa.concat_tables([file.read([".".join(paths[name])]) for file in files])[outer]
            for key in inner:
                found = pa.chunked_array([chunk.field(key) for chunk in found.chunks])
            if name in units:
                found = found.cast(pa.timestamp("ns")).cast(pa.int64())
            return cells_of(found, LONGEST_CELL)

    return Table(path, list(paths), list(range(1, count + 1)), column, units)


def _fields(fields: Any, prefix: tuple[str, ...], lists: Sequence[str]) -> Sequence[tuple[str, Any, tuple[str, ...]]]:
    import pyarrow as pa

    found: list[tuple[str, Any, tuple[str, ...]]] = []
    for each in fields:
        keys = (*prefix, each.name)
        if pa.types.is_struct(each.type):
            found += _fields(each.type, keys, lists)
        elif not pa.types.is_nested(each.type) or each.name in lists:
            found.append((".".join(keys), each.type, keys))
    return found
