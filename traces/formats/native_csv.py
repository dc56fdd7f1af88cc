"""servesim's own trace format as CSV: arrival_ns,prompt_len,output_len[,max_tokens,stop,priority,request_id,
cancel_ns,after,n,samples,session,play,tenant,class,model]; `after` and `samples` are JSON as in the JSONL form.

It has no prompt content, since a list of runs does not fit in a cell. Use Parquet or JSONL for traces that share
prefixes.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.workload.trace import Trace
from servesim.workload.trace_stream import TraceStream

from . import _native, _text, log

NAME = "csv"
ABOUT = "CSV: arrival_ns,prompt_len,output_len[,max_tokens,stop,priority,request_id,session,...]"
HOLDS = _native.HOLDS - {"content", "outputs"}


def detect(head: bytes) -> bool:
    return set(_native.REQUIRED) <= set(_text.header_fields(head))


def read(path: Path, *, sort: bool = False, columns: str | Mapping[str, Any] | None = None) -> Trace:
    native, unit = _native.only_unit(columns)
    if not native:
        return log.read(path, columns=columns)
    header, cells, lines = _text.csv_columns(path, _native.REQUIRED)
    by_name, notes = _by_name(path, header, cells)
    return _native.build(path, path.stem, notes, by_name, lines, sort, unit=unit)


def stream(path: Path, chunk: int) -> TraceStream:
    def chunks() -> Iterator[Trace]:
        found = (
            (*_by_name(path, header, cells), n) for header, cells, n in _text.csv_chunks(path, _native.REQUIRED, chunk)
        )
        first = next(found)
        return _native.parts(path, path.stem, first[1], ((cells, n) for cells, _, n in chain([first], found)))

    return TraceStream(path.stem, chunks)


def _by_name(path: Path, header: list[str], cells: list[list[str]]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the known columns, and a note on the others."""
    known = [name for name in (*_native.REQUIRED, *_native.OPTIONAL) if name != "content"]
    if "content" in header:
        raise UserError(f"{path}: line 1: content cannot be read from CSV; use Parquet or JSONL")
    by_name = dict(zip(header, cells, strict=True))
    if "samples" in by_name and all(cell.isdecimal() for cell in by_name["samples"]):
        del by_name["samples"]  # in an exported result, the number of samples
    notes = _native.aside(name for name in header if name not in known)
    return {name: column for name, column in by_name.items() if name in known}, notes


def write(trace: Trace, path: Path) -> None:
    columns = {name: getattr(trace, name).tolist() for name in _native.NUMBERS}
    columns["stop"] = ["true" if stop else "false" for stop in columns["stop"]]
    if trace.request_id is not None:
        columns["request_id"] = list(trace.request_id)
    if trace.cancel_ns is not None:
        columns["cancel_ns"] = trace.cancel_ns.tolist()
    if (edges := _native.edge_cells(trace)) is not None:
        columns["after"] = [json.dumps(row) for row in edges]
    if (samples := _native.sample_cells(trace)) is not None:
        columns["samples"] = [json.dumps(row) for row in samples]
    columns |= trace.labels
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
