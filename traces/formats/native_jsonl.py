"""servesim's own trace format as JSON lines: every column of Trace, lossless.

The first line is {"servesim_trace": 1, "name": ..., "notes": [...]}; each further line is a request with arrival_ns,
prompt_len, output_len and optionally max_tokens, stop (ends by a stop token), priority (lower first), request_id,
cancel_ns (client gives up N ns after sending; -1: never), n (number of samples, each of output_len tokens) or samples =
[output_len, ...] (the token count of each), session, play, tenant, class, model, after = [[row, "dispatch" |
"completion", delay in ns, relation], ...] (rows count from 0) and content = [[content id, tokens], ...], whose tokens
add up to prompt_len; id -(row + 1) is the output of that row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown, suggest
from servesim.workload.trace import Trace
from servesim.workload.trace_stream import TraceStream

from . import _native, _text, log

NAME = "jsonl"
ABOUT = "JSONL: a servesim_trace header line, then arrival_ns, prompt_len, output_len, ... and content runs"
HOLDS = _native.HOLDS
Part = tuple[dict[str, list[Any]], list[int]]


def detect(head: bytes) -> bool:
    first = _text.first_object(head)
    return first is not None and "servesim_trace" in first


def read(path: Path, *, sort: bool = False, columns: str | Mapping[str, Any] | None = None) -> Trace:
    native, unit = _native.only_unit(columns)
    if not native:
        return log.read(path, columns=columns)
    name, notes, chunks = _open(path, None)
    cells, lines = next(chunks)
    return _native.build(path, name, notes, cells, lines, sort, unit=unit)


def stream(path: Path, chunk: int) -> TraceStream:
    return TraceStream(_open(path, chunk)[0], lambda: _native.parts(path, *_open(path, chunk)))


def _open(path: Path, chunk: int | None) -> tuple[str, tuple[str, ...], Iterator[Part]]:
    """Return the name, the notes, and the rows in chunks of `chunk` rows (or in one chunk if `chunk` is None)."""
    rows = _text.json_lines(path)
    number, header = next(rows, (0, {}))
    if header.get("servesim_trace") != _native.VERSION:
        version = header.get("servesim_trace")
        raise UserError(f"{path}: line {number}: servesim_trace is {shown(version)} but must be {_native.VERSION}")
    name, notes = _native.named(path, header)
    return name, notes, _parts(path, rows, chunk)


def _parts(path: Path, rows: Iterator[tuple[int, dict[str, Any]]], chunk: int | None) -> Iterator[Part]:
    first = True
    while first or chunk is not None:
        cells, lines = _cells(path, islice(rows, chunk))
        if not lines:
            break
        yield cells, lines
        first = False
    if first:
        raise UserError(f"{path}: the file has a header but no requests")


def _cells(path: Path, rows: Iterable[tuple[int, dict[str, Any]]]) -> Part:
    """Return the cells of each column that at least one row has, and the line numbers."""
    lines: list[int] = []
    cells: dict[str, list[Any]] = {name: [] for name in (*_native.REQUIRED, *_native.OPTIONAL)}
    for number, row in rows:
        for name in row:
            if name not in cells:
                raise UserError(f"{path}: line {number}: unknown key {shown(name)}{suggest(name, cells)}")
        lines.append(number)
        for name in _native.REQUIRED:
            cells[name].append(_text.need(path, number, row, name))
        for name in _native.OPTIONAL:
            cells[name].append(row.get(name))
    return {
        name: column
        for name, column in cells.items()
        if name in _native.REQUIRED or any(cell is not None for cell in column)
    }, lines


def write(trace: Trace, path: Path) -> None:
    columns: dict[str, Any] = {name: getattr(trace, name).tolist() for name in _native.NUMBERS}
    columns |= trace.labels
    if trace.cancel_ns is not None:
        columns["cancel_ns"] = trace.cancel_ns.tolist()
    if (edges := _native.edge_cells(trace)) is not None:
        columns["after"] = edges
    if (samples := _native.sample_cells(trace)) is not None:
        columns["samples"] = samples
    with path.open("w", encoding="utf-8", newline="") as file:
        header = {"servesim_trace": _native.VERSION, "name": trace.name, "notes": trace.notes}
        file.write(json.dumps(header) + "\n")
        for row in range(len(trace)):
            line: dict[str, Any] = {name: column[row] for name, column in columns.items()}
            if trace.request_id is not None:
                line["request_id"] = trace.request_id[row]
            if trace.content is not None:
                line["content"] = trace.content.runs(row)
            file.write(json.dumps(line) + "\n")
