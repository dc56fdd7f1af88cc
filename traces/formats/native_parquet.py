"""servesim's own trace format as Parquet: one Parquet column per column of Trace. It is lossless, and it is the fastest
of servesim's formats to read.

content_ids and content_lengths are list columns (the runs of a prompt), as are after_rows, after_triggers,
after_delays_ns and after_relations (the dependencies of a row), and samples (the output token count of each sample).
The name and notes are in the file's metadata. A folder of such files is one trace, ordered by file name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import UserError, shown
from servesim.untrusted import check_header, json_value
from servesim.workload.trace import LABELS, LENGTH_CAPPED, RELATIONS, TRIGGERS, After, Content, Samples, Trace
from servesim.workload.trace_stream import TraceStream

from . import _native, _text, log
from ._clock import declared_ns
from ._names import UNITS
from ._parquet import cells_of, open_files, parquet_names, readable

NAME = "parquet"
ABOUT = "Parquet: arrival_ns, prompt_len, output_len, ... and content runs"
HOLDS = _native.HOLDS
FOLDERS = True
META = b"servesim_trace"
_MOST = {0: _native.MOST, 1: _text.MAX_TOKENS}
"""Maximum values of times and lengths, keyed by their minimum values (0 for times, 1 for lengths)."""
EDGES = ("rows", "triggers", "delays_ns", "relations")
LISTS = ("content_ids", "content_lengths", *(f"after_{name}" for name in EDGES))
KNOWN = {*_native.REQUIRED, *_native.OPTIONAL, *LISTS} - {"after", "n", "content"}


def detect(head: bytes) -> bool:
    return head.startswith(b"PAR1")


def confirm(path: Path) -> bool:
    return "arrival_ns" in parquet_names(path)


def read(path: Path, *, sort: bool = False, columns: str | Mapping[str, Any] | None = None) -> Trace:
    import pyarrow as pa

    native, unit = _native.only_unit(columns)
    if not native:
        return log.read(path, columns=columns)
    with readable(path):
        files = open_files(path)
        name, notes = _meta(path, files[0].schema_arrow)
        known = [column for column in files[0].schema_arrow.names if column in KNOWN]
        table = _columns(path, pa.concat_tables([file.read(known) for file in files]), notes)
        _to_ns(path, table, *((unit, ()) if unit is not None else _unit(path, known, table)))
        return _trace(path, name, table, 0, sort)


def stream(path: Path, chunk: int) -> TraceStream:
    """Read a file, or the files of a folder in name order, in chunks."""
    with readable(path):
        files = open_files(path)
        name, notes = _meta(path, files[0].schema_arrow)
        if "after_rows" in files[0].schema_arrow.names:
            return TraceStream.of(read(path), chunk)

    def chunks() -> Iterator[Trace]:
        first, start = 0, None
        unit: tuple[str, tuple[str, ...]] | None = None
        with readable(path):
            for table in _tables(open_files(path), chunk):
                columns = _columns(path, table, notes)
                unit = _unit(path, table.column_names, columns) if unit is None else unit
                _to_ns(path, columns, *unit)
                start = int(columns["arrival_ns"][0]) if start is None else start
                trace = _trace(path, name, columns, first, False, start)
                yield trace
                first += len(trace)

    return TraceStream(name, chunks)


def _tables(files: Iterable[Any], chunk: int) -> Iterator[Any]:
    """Yield the rows of successive files, at least `chunk` at a time but for the last ones."""
    import pyarrow as pa

    held: list[Any] = []
    for file in files:
        for batch in file.iter_batches(chunk):
            held.append(pa.Table.from_batches([batch]))
            if sum(map(len, held)) >= chunk:
                yield pa.concat_tables(held)
                held = []
    if held:
        yield pa.concat_tables(held)


def _unit(path: Path, names: Iterable[str], columns: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the unit of arrivals and a note, if any; raise UserError if the user has to choose the unit."""
    if set(names) >= _native.WRITTEN:
        return "ns", ()
    return _native.checked_unit(path, declared_ns(columns["arrival_ns"]))


def _to_ns(path: Path, columns: dict[str, Any], unit: str, told: tuple[str, ...]) -> None:
    """Convert arrivals to ns, and add the notes on their unit; raise UserError if an arrival is too late."""
    factor = UNITS[unit]
    if (latest := int(columns["arrival_ns"].max())) > _native.MOST // factor:
        raise UserError(f"{path}: arrival_ns is {latest} but must be at most {_native.MOST // factor} {unit}")
    columns["arrival_ns"] = columns["arrival_ns"] * factor
    columns["notes"] = (*columns["notes"], *told)


def _meta(path: Path, schema: Any) -> tuple[str, tuple[str, ...]]:
    """Return the name and notes; raise UserError if a column appears twice."""
    check_header(path, schema.names)
    meta = json_value((schema.metadata or {}).get(META, b"{}").decode())
    if not isinstance(meta, dict):
        raise UserError(f"{path}: its servesim_trace metadata is {shown(meta)} but must be an object")
    name, notes = _native.named(path, meta)
    return name, (*notes, *_native.aside(column for column in schema.names if column not in KNOWN))


def _trace(path: Path, name: str, columns: dict[str, Any], first: int, sort: bool, start: int | None = None) -> Trace:
    """Return a trace, or the part of it that begins at row `first`."""
    rows = range(first + 1, first + len(columns["arrival_ns"]) + 1)
    try:
        for column, least in (("arrival_ns", 0), ("prompt_len", 1), ("output_len", 1)):
            bad = np.flatnonzero(columns[column] < least)
            if len(bad):
                value = columns[column][bad[0]]
                raise UserError(f"{path}: line {rows[bad[0]]}: {column} is {value} but must be at least {least}")
            if len(bad := np.flatnonzero(columns[column] > _MOST[least])):
                value = columns[column][bad[0]]
                raise UserError(f"{path}: line {rows[bad[0]]}: {column} is {value} but must be at most {_MOST[least]}")
        _native.check_caps(path, columns, rows)
        _native.check_quotes(path, columns, rows, first)
        return Trace(name=name, **_text.in_order(path, columns, rows, sort, start))
    except UserError as error:  # checks name a line or the trace; a Parquet file has rows, so name the file and row
        text = str(error).removeprefix(f"{path}: ").replace("line ", "row ", 1)
        raise UserError(f"{path}: {text}") from error


def _columns(path: Path, table: Any, notes: tuple[str, ...]) -> dict[str, Any]:
    """Return the columns of Trace, with Trace's defaults for absent ones."""
    for name in _native.REQUIRED:
        if name not in table.column_names:
            raise UserError(f"{path}: no column {shown(name)}; columns are {', '.join(table.column_names)}")
    if not table.num_rows:
        raise UserError(f"{path}: the file has columns but no requests")
    present = [name for name in _native.NUMBERS if name in table.column_names]
    numbers = {name: _numbers(path, name, table[name]) for name in present}
    if "max_tokens" not in numbers and "stop" not in numbers and LENGTH_CAPPED not in notes:
        notes = (*notes, LENGTH_CAPPED)
    columns: dict[str, Any] = {
        "max_tokens": numbers["output_len"].copy(),
        "priority": np.zeros(table.num_rows, dtype=np.int64),
        **numbers,
        "request_id": _texts(path, "request_id", table) if "request_id" in table.column_names else None,
        "content": _content(table, path) if "content_ids" in table.column_names else None,
        "cancel_ns": _numbers(path, "cancel_ns", table["cancel_ns"]) if "cancel_ns" in table.column_names else None,
        "after": _after(table, path) if "after_rows" in table.column_names else None,
        "samples": _samples(table, path) if _is_listed(table, "samples") else None,
        "labels": {name: _texts(path, name, table) for name in LABELS if name in table.column_names},
        "notes": notes,
    }
    columns.setdefault("stop", columns["max_tokens"] > columns["output_len"])
    return columns


def _is_listed(table: Any, name: str) -> bool:
    """Return whether the table has this column as a list column; in the result records of a run, it holds counts
    instead."""
    import pyarrow as pa

    return name in table.column_names and not pa.types.is_integer(table[name].type)


def write(trace: Trace, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: pa.array(getattr(trace, name)) for name in _native.NUMBERS}
    if trace.request_id is not None:
        columns["request_id"] = pa.array(trace.request_id, pa.string())
    if trace.content is not None:
        offsets = pa.array(trace.content.offsets)
        columns["content_ids"] = pa.LargeListArray.from_arrays(offsets, pa.array(trace.content.ids))
        columns["content_lengths"] = pa.LargeListArray.from_arrays(offsets, pa.array(trace.content.lengths))
    if trace.cancel_ns is not None:
        columns["cancel_ns"] = pa.array(trace.cancel_ns)
    if trace.after is not None:
        for name in EDGES:
            values = pa.array(getattr(trace.after, name))
            columns[f"after_{name}"] = pa.LargeListArray.from_arrays(pa.array(trace.after.offsets), values)
    if (samples := _native.sample_cells(trace)) is not None:
        columns["samples"] = pa.array(samples, pa.large_list(pa.int64()))
    columns |= {name: pa.array(values, pa.string()) for name, values in trace.labels.items()}
    meta = {META: json.dumps({"version": _native.VERSION, "name": trace.name, "notes": trace.notes})}
    pq.write_table(pa.table(columns, metadata=meta), path, compression="zstd", write_page_checksum=True)


def _numbers(path: Path, name: str, column: Any) -> Any:
    import pyarrow as pa

    if column.null_count:
        raise UserError(f"{path}: column {shown(name)} has {column.null_count} empty cells")
    flag = name == "stop"
    kinds = pa.types
    if not (kinds.is_integer(column.type) or (kinds.is_boolean if flag else kinds.is_floating)(column.type)):
        raise UserError(f"{path}: column {name!r} has values of type {column.type} instead of whole numbers")
    return column.cast(pa.bool_() if flag else pa.int64()).to_numpy()


def _texts(path: Path, name: str, table: Any) -> tuple[str, ...]:
    cells = cells_of(table[name])
    return _text.texts(path, name, cells, range(1, len(cells) + 1))


def _lists(path: Path, table: Any, names: list[str]) -> tuple[Any, list[Any]]:
    """Return the offsets and the values of list columns whose lists have equal lengths in each row."""
    import pyarrow as pa

    for name in names:
        if name not in table.column_names:
            raise UserError(f"{path}: there is a column {names[0]} but no {name}")
    for name in names:
        kind = table[name].type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
            raise UserError(f"{path}: column {name!r} has values of type {kind} instead of lists of whole numbers")
        if table[name].null_count:
            raise UserError(f"{path}: column {name!r} has {table[name].null_count} empty cells")
    lists = [pa.concat_arrays(table[name].cast(pa.large_list(pa.int64())).chunks) for name in names]
    offsets = np.asarray(lists[0].offsets, dtype=np.int64)
    if not all(np.array_equal(offsets, np.asarray(other.offsets)) for other in lists):
        raise UserError(f"{path}: lists of {' and '.join(names)} have different lengths")
    values = [column.flatten() for column in lists]
    for name, column in zip(names, values, strict=True):
        if column.null_count:
            raise UserError(f"{path}: lists of {name} have {column.null_count} empty values")
    return offsets - offsets[0], [column.to_numpy() for column in values]


def _after(table: Any, path: Path) -> After:
    offsets, values = _lists(path, table, [f"after_{name}" for name in EDGES])
    for name, column, most in zip(
        EDGES, values, (_native.MOST, len(TRIGGERS), _native.MOST, len(RELATIONS)), strict=True
    ):
        if len(column) and not 0 <= column.min() <= column.max() < most:
            raise UserError(f"{path}: values of after_{name} must be from 0 to {most - 1}")
    return After(offsets, *values)


def _samples(table: Any, path: Path) -> Samples | None:
    offsets, (lengths,) = _lists(path, table, ["samples"])
    rows = [lengths[a:b].tolist() for a, b in itertools.pairwise(offsets.tolist())]
    return _native.samples_of(path, rows, np.asarray(table["output_len"]), range(1, len(rows) + 1))


def _content(table: Any, path: Path) -> Content:
    offsets, (ids, lengths) = _lists(path, table, ["content_ids", "content_lengths"])
    content = Content(offsets, ids, lengths)
    ends = np.concatenate(([0], np.cumsum(content.lengths)))
    sums = ends[content.offsets[1:]] - ends[content.offsets[:-1]]
    bad = np.flatnonzero(sums != np.asarray(table["prompt_len"]))
    if len(bad) or np.any(content.lengths < 1):
        row = f"row {bad[0] + 1}: " if len(bad) else ""
        raise UserError(f"{path}: {row}content runs must be positive and add up to prompt_len")
    return content
