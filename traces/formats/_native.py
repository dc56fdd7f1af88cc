"""Shared by the JSONL, CSV and Parquet forms of servesim's own trace format: columns, defaults, checks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import UserError
from servesim.workload.trace import LABELS, LENGTH_CAPPED, RELATIONS, TRIGGERS, After, Content, Ints, Samples, Trace
from servesim.workload.trace_stream import waits

from . import _text

VERSION = 1
REQUIRED = ("arrival_ns", "prompt_len", "output_len")
OPTIONAL = ("max_tokens", "stop", "priority", "request_id", "cancel_ns", "after", "n", "samples", *LABELS, "content")
NUMBERS = (*REQUIRED, "max_tokens", "stop", "priority")
HOLDS = frozenset({"content", "outputs", "priority", "max_tokens", "sessions", "cancel", "samples", *LABELS})


def build(
    path: Path,
    name: str,
    notes: tuple[str, ...],
    cells: dict[str, list[Any]],
    lines: list[int],
    sort: bool,
    start: int | None = None,
) -> Trace:
    """Build a Trace from cells by column (text or JSON values); columns that are absent get Trace's defaults. `start`:
    see _text.in_order."""
    columns: dict[str, Any] = {
        "arrival_ns": _text.times_ns(path, "arrival_ns", cells["arrival_ns"], lines, 1),
        "prompt_len": _text.token_counts(path, "prompt_len", cells["prompt_len"], lines),
        "output_len": _text.token_counts(path, "output_len", cells["output_len"], lines),
    }
    if "content" in cells:
        columns["content"] = _runs(path, columns["prompt_len"], cells["content"], lines)
    if "request_id" in cells:
        columns["request_id"] = tuple(map(str, _full(path, "request_id", cells, lines)))
    output_len = columns["output_len"]
    columns["max_tokens"] = output_len.copy()
    columns["samples"] = samples = _samples(path, cells, output_len, lines)
    if samples is not None:
        np.maximum.at(columns["max_tokens"], samples.rows, samples.output_len)
    if "max_tokens" in cells:
        caps = _full(path, "max_tokens", cells, lines)
        columns["max_tokens"] = _text.token_counts(path, "max_tokens", caps, lines)
    columns["stop"] = columns["max_tokens"] > output_len
    if "stop" in cells:
        columns["stop"] = _flags(path, _full(path, "stop", cells, lines), lines)
    elif "max_tokens" not in cells and LENGTH_CAPPED not in notes:
        notes = (*notes, LENGTH_CAPPED)
    check_caps(path, columns, lines)
    columns["priority"] = np.zeros(len(lines), dtype=np.int64)
    if "priority" in cells:
        columns["priority"] = _text.whole(path, "priority", _full(path, "priority", cells, lines), lines)
    if "cancel_ns" in cells:
        columns["cancel_ns"] = _text.whole(path, "cancel_ns", _full(path, "cancel_ns", cells, lines), lines)
    if "after" in cells:
        columns["after"] = After.of(
            [_edges(path, cell, line) for cell, line in zip(cells["after"], lines, strict=True)]
        )
    columns["labels"] = {label: tuple(map(str, _full(path, label, cells, lines))) for label in LABELS if label in cells}
    return Trace(name=name, **_text.in_order(path, {**columns, "notes": notes}, lines, sort, start))


def parts(
    path: Path, name: str, notes: tuple[str, ...], chunks: Iterable[tuple[dict[str, list[Any]], list[int]]]
) -> Iterator[Trace]:
    """Yield successive parts of a trace, from the cells and line numbers of each."""
    start = None
    for cells, lines in chunks:
        if "after" in cells:
            raise waits(name)
        if start is None:
            start = int(_text.times_ns(path, "arrival_ns", cells["arrival_ns"][:1], lines, 1)[0])
        yield build(path, name, notes, cells, lines, False, start)


def sample_cells(trace: Trace) -> list[list[int]] | None:
    """Return, by row, the output tokens of all its samples; None if every row has one."""
    if trace.samples is None:
        return None
    return [[own, *trace.samples.lengths(row)] for row, own in enumerate(trace.output_len.tolist())]


def samples_of(path: Path, rows: Sequence[Sequence[int]], output_len: Ints, lines: Sequence[int]) -> Samples | None:
    """Build samples from the output tokens of all samples by row; the first is the row's output_len."""
    for row, own, line in zip(rows, output_len.tolist(), lines, strict=True):
        if not row or row[0] != own or min(row) < 1:
            raise UserError(
                f"{path}: line {line}: samples are {list(row)}, must be token counts, output_len {own} first"
            )
    return Samples.of(
        np.array([len(row) - 1 for row in rows], dtype=np.int64),
        np.array([tokens for row in rows for tokens in row[1:]], dtype=np.int64),
    )


def _samples(path: Path, cells: dict[str, list[Any]], output_len: Ints, lines: list[int]) -> Samples | None:
    """Build samples from the cells of `samples`, the output tokens of each, or of `n`, how many there are, all of
    output_len."""
    if "samples" in cells:
        return samples_of(
            path, [_lengths(path, *c) for c in zip(cells["samples"], lines, strict=True)], output_len, lines
        )
    if "n" not in cells:
        return None
    further = _text.token_counts(path, "n", _full(path, "n", cells, lines), lines) - 1
    return Samples.of(further, np.repeat(output_len, further))


def _lengths(path: Path, cell: Any, line: int) -> list[int]:
    try:
        return [tokens + 0 for tokens in (json.loads(cell) if isinstance(cell, str) else cell)]
    except (ValueError, TypeError):
        raise UserError(
            f"{path}: line {line}: samples is {cell!r}, must be [output tokens, ...] (all rows or none)"
        ) from None


def edge_cells(trace: Trace) -> list[list[list[Any]]] | None:
    """Return, by row, what it waits for as [row, trigger, delay in ns, relation]; None if nothing waits."""
    if trace.after is None:
        return None
    rows = [trace.after.edges(row) for row in range(len(trace))]
    return [[[source, TRIGGERS[t], delay, RELATIONS[r]] for source, t, delay, r in row] for row in rows]


def _edges(path: Path, cell: Any, line: int) -> list[tuple[int, int, int, int]]:
    try:
        parts = json.loads(cell or "[]") if isinstance(cell, str | None) else cell
        return [(row + 0, TRIGGERS.index(t), delay + 0, RELATIONS.index(r)) for row, t, delay, r in parts]
    except (ValueError, TypeError):
        raise UserError(
            f"{path}: line {line}: after is {cell!r}, must be [[row, {'|'.join(TRIGGERS)}, delay in ns, "
            f"{'|'.join(RELATIONS)}], ...]"
        ) from None


def _full(path: Path, name: str, cells: dict[str, list[Any]], lines: list[int]) -> list[Any]:
    for cell, line in zip(cells[name], lines, strict=True):
        if cell is None:
            raise UserError(f"{path}: line {line}: no {name!r}; all requests have it or none")
    return cells[name]


def _flags(path: Path, cells: list[Any], lines: list[int]) -> Any:
    values = {"true": True, "false": False, "1": True, "0": False}
    flags = [values.get(str(cell).lower()) for cell in cells]
    if None in flags:
        i = flags.index(None)
        raise UserError(f"{path}: line {lines[i]}: stop is {cells[i]!r}, must be true or false")
    return np.array(flags, dtype=np.bool_)


def check_caps(path: Path, columns: dict[str, Any], lines: Sequence[int]) -> None:
    """Raise UserError unless a request that ends by length ends at its cap, and none ends after it."""
    bad = np.flatnonzero(columns["max_tokens"] < columns["output_len"])
    if len(bad):
        raise UserError(f"{path}: line {lines[bad[0]]}: max_tokens is less than output_len")
    bad = np.flatnonzero(~columns["stop"] & (columns["max_tokens"] != columns["output_len"]))
    if len(bad):
        raise UserError(f"{path}: line {lines[bad[0]]}: ends by length (stop false) but output_len is not max_tokens")


def _runs(path: Path, prompt_len: Ints, cells: list[Any], lines: list[int]) -> Content:
    counts: list[int] = []
    ids: list[int] = []
    lengths: list[int] = []
    for runs, line, prompt in zip(cells, lines, prompt_len.tolist(), strict=True):
        try:
            row = [(int(i), int(n)) for i, n in runs]
        except (TypeError, ValueError):
            raise UserError(
                f"{path}: line {line}: content must be [[content id, tokens], ...] (all rows or none)"
            ) from None
        if sum(n for _, n in row) != prompt or any(n < 1 for _, n in row):
            raise UserError(f"{path}: line {line}: content must add up to prompt_len {prompt}")
        counts.append(len(row))
        ids.extend(i for i, _ in row)
        lengths.extend(n for _, n in row)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Content(offsets, np.array(ids, dtype=np.int64), np.array(lengths, dtype=np.int64))
