"""Code shared by the JSONL, CSV, and Parquet forms of servesim's own trace format: columns, defaults, and checks."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import MOST_SHOWN, UserError, shown
from servesim.limits import limits, too_much
from servesim.untrusted import json_value
from servesim.workload.trace import LABELS, LENGTH_CAPPED, RELATIONS, TRIGGERS, After, Content, Ints, Samples, Trace
from servesim.workload.trace_stream import waits

from . import _text
from ._clock import declared_ns
from ._names import UNITS, Columns

VERSION = 1
MOST = 1 << 62
whole = _text.whole_number
REQUIRED = ("arrival_ns", "prompt_len", "output_len")
OPTIONAL = ("max_tokens", "stop", "priority", "request_id", "cancel_ns", "after", "n", "samples", *LABELS, "content")
NUMBERS = (*REQUIRED, "max_tokens", "stop", "priority")
MOST_ASIDE = 20
"""Maximum number of unknown columns that a note lists."""
WRITTEN = {"max_tokens", "priority"}
"""Columns of every trace and result that servesim writes."""
HOLDS = frozenset({"content", "outputs", "priority", "max_tokens", "sessions", "cancel", "samples", *LABELS})


def build(
    path: Path,
    name: str,
    notes: tuple[str, ...],
    cells: dict[str, list[Any]],
    lines: list[int],
    sort: bool,
    start: int | None = None,
    first: int = 0,
    unit: str | None = None,
) -> Trace:
    """Build a Trace from cells by column (text or JSON values); absent columns get the defaults of Trace. For `start`,
    see _text.in_order; `first` is the number of the first row; `unit` is the unit of arrivals, inferred if not
    given."""
    if unit is None:
        unit, told = checked_unit(path, _unit(path, cells, lines))
        notes = (*notes, *told)
    columns: dict[str, Any] = {
        "arrival_ns": _text.times_ns(path, "arrival_ns", cells["arrival_ns"], lines, UNITS[unit]),
        "prompt_len": _text.token_counts(path, "prompt_len", cells["prompt_len"], lines),
        "output_len": _text.token_counts(path, "output_len", cells["output_len"], lines),
    }
    if "content" in cells:
        columns["content"] = _runs(path, columns["prompt_len"], cells["content"], lines)
    if "request_id" in cells:
        columns["request_id"] = _text.texts(path, "request_id", _full(path, "request_id", cells, lines), lines)
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
    columns["labels"] = {
        label: _text.texts(path, label, _full(path, label, cells, lines), lines) for label in LABELS if label in cells
    }
    check_quotes(path, columns, lines, first)
    return Trace(name=name, **_text.in_order(path, {**columns, "notes": notes}, lines, sort, start))


def _unit(path: Path, cells: Mapping[str, list[Any]], lines: Sequence[int]) -> tuple[str, str | None, str | None]:
    """Return the unit of arrivals, a note and a question, as declared_ns does. Times in files that servesim wrote are
    in ns."""
    if cells.keys() >= WRITTEN:
        return "ns", None, None
    return declared_ns(_text.times_ns(path, "arrival_ns", cells["arrival_ns"], lines, 1))


def checked_unit(path: Path, found: tuple[str, str | None, str | None]) -> tuple[str, tuple[str, ...]]:
    """Return the unit of arrivals and a note, if any; raise UserError if the user has to choose the unit."""
    unit, note, question = found
    if question is not None:
        raise UserError(f"{path}: {question}")
    return unit, (note,) if note is not None else ()


def only_unit(columns: str | Mapping[str, Any] | None) -> tuple[bool, str | None]:
    """Return whether `--columns` names no columns, and the unit that it gives, if any."""
    asked = Columns.of(columns)
    return not asked.given, asked.unit


def aside(extra: Iterable[str]) -> tuple[str, ...]:
    """Return a note on unknown columns, which suggests the known name for one that nearly matches."""
    known, unknown, told = (*REQUIRED, *OPTIONAL), list(extra), []
    for name in unknown[:MOST_ASIDE]:
        close = difflib.get_close_matches(name[:MOST_SHOWN], known, n=1, cutoff=0.85)
        told.append(f'{name[:MOST_SHOWN]} (did you mean "{close[0]}"?)' if close else name[:MOST_SHOWN])
    more = f" and {len(unknown) - MOST_ASIDE} more" if len(unknown) > MOST_ASIDE else ""
    return (f"extra columns not used: {', '.join(told)}{more}",) if told else ()


def named(path: Path, header: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the name and notes in a header."""
    name, notes = header.get("name", path.stem), header.get("notes", [])
    if not isinstance(name, str):
        raise UserError(f"{path}: name is {shown(name)} but must be a string")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise UserError(f"{path}: notes are {shown(notes)} but must be a list of strings")
    return name, tuple(notes)


def parts(
    path: Path, name: str, notes: tuple[str, ...], chunks: Iterable[tuple[dict[str, list[Any]], list[int]]]
) -> Iterator[Trace]:
    """Yield successive parts of a trace, given the cells and line numbers of each."""
    start, first, unit = None, 0, "ns"
    for cells, lines in chunks:
        if "after" in cells:
            raise waits(name)
        if start is None:
            unit, told = checked_unit(path, _unit(path, cells, lines))
            notes = (*notes, *told)
            start = int(_text.times_ns(path, "arrival_ns", cells["arrival_ns"][:1], lines, UNITS[unit])[0])
        yield build(path, name, notes, cells, lines, False, start, first, unit)
        first += len(lines)


def sample_cells(trace: Trace) -> list[list[int]] | None:
    """Return the output token counts of all samples of each row, or None if every row has only one sample."""
    if trace.samples is None:
        return None
    return [[own, *trace.samples.lengths(row)] for row, own in enumerate(trace.output_len.tolist())]


def samples_of(path: Path, rows: Sequence[Sequence[int]], output_len: Ints, lines: Sequence[int]) -> Samples | None:
    """Build samples from the output token counts of all samples of each row; the first sample's count is the row's
    output_len."""
    for row, own, line in zip(rows, output_len.tolist(), lines, strict=True):
        if not row or row[0] != own or min(row) < 1:
            raise UserError(
                f"{path}: line {line}: samples are {list(row)} "
                f"but must be token counts that begin with output_len {own}"
            )
    counts = np.array([len(row) - 1 for row in rows], dtype=np.int64)
    check_samples(path, counts, lines)
    return Samples.of(
        counts,
        np.array([tokens for row in rows for tokens in row[1:]], dtype=np.int64),
    )


def check_samples(path: Path, further: Ints, lines: Sequence[int]) -> None:
    """Raise UserError if a row, or all rows together, request more answers than the limits allow."""
    many = np.flatnonzero(further >= limits().samples)
    if len(many):
        raise too_much(f"{path}: line {lines[many[0]]}", "samples of one request are", "samples")
    if int(further.sum()) + len(further) > limits().rows:
        raise too_much(path, "requests and samples are", "rows")


def check_quotes(path: Path, columns: dict[str, Any], lines: Sequence[int], first: int = 0) -> None:
    """Raise UserError if a prompt quotes the output of a row that does not come before it, or quotes more tokens than
    that output has. `first` is the number of the first row; the outputs of rows before that are no longer known."""
    content: Content | None = columns.get("content")
    if content is None:
        return
    at = np.flatnonzero(content.ids < 0)
    if not len(at):
        return
    quoted = -1 - content.ids[at]
    row = np.searchsorted(content.offsets, at, side="right") - 1
    late = np.flatnonzero(quoted >= row + first)
    if len(late):
        raise UserError(
            f"{path}: line {lines[row[late[0]]]}: content quotes the output of row {quoted[late[0]]}, "
            f"which does not come before it (rows count from 0)"
        )
    known = quoted >= first
    long = np.flatnonzero(content.lengths[at[known]] > columns["output_len"][quoted[known] - first])
    if len(long):
        where = int(np.flatnonzero(known)[long[0]])
        raise UserError(
            f"{path}: line {lines[row[where]]}: content quotes {content.lengths[at[where]]} tokens of the output of "
            f"row {quoted[where]}, which has only {columns['output_len'][quoted[where] - first]}"
        )


def _samples(path: Path, cells: dict[str, list[Any]], output_len: Ints, lines: list[int]) -> Samples | None:
    """Build samples from the cells of `samples` (the output token count of each sample) or of `n` (the number of
    samples, all with output_len tokens)."""
    if "samples" in cells:
        return samples_of(
            path, [_lengths(path, *c) for c in zip(cells["samples"], lines, strict=True)], output_len, lines
        )
    if "n" not in cells:
        return None
    further = _text.token_counts(path, "n", _full(path, "n", cells, lines), lines) - 1
    check_samples(path, further, lines)
    return Samples.of(further, np.repeat(output_len, further))


def _lengths(path: Path, cell: Any, line: int) -> list[int]:
    try:
        lengths = json_value(cell) if isinstance(cell, str) else cell
        return [_text.whole_number(tokens, 1, _text.MAX_TOKENS) for tokens in lengths]
    except (ValueError, TypeError):
        raise UserError(
            f"{path}: line {line}: samples is {shown(cell)} but must be [output tokens, ...] (in all rows or in none)"
        ) from None


def edge_cells(trace: Trace) -> list[list[list[Any]]] | None:
    """Return each row's dependencies as [row, trigger, delay in ns, relation], or None if no row waits."""
    if trace.after is None:
        return None
    rows = [trace.after.edges(row) for row in range(len(trace))]
    return [[[source, TRIGGERS[t], delay, RELATIONS[r]] for source, t, delay, r in row] for row in rows]


def _edges(path: Path, cell: Any, line: int) -> list[tuple[int, int, int, int]]:
    try:
        parts = json_value(cell or "[]") if isinstance(cell, str | None) else cell
        return [
            (whole(row, 0, MOST), TRIGGERS.index(t), whole(delay, 0, MOST), RELATIONS.index(r))
            for row, t, delay, r in parts
        ]
    except (ValueError, TypeError):
        raise UserError(
            f"{path}: line {line}: after is {shown(cell)} but must be [[row, {'|'.join(TRIGGERS)}, delay in ns, "
            f"{'|'.join(RELATIONS)}], ...]"
        ) from None


def _full(path: Path, name: str, cells: dict[str, list[Any]], lines: list[int]) -> list[Any]:
    for cell, line in zip(cells[name], lines, strict=True):
        if cell is None:
            raise UserError(
                f"{path}: line {line}: {shown(name)} is missing; all requests must have it, or none of them"
            )
    return cells[name]


def _flags(path: Path, cells: list[Any], lines: list[int]) -> Any:
    values = {"true": True, "false": False, "1": True, "0": False}
    flags = [values.get(str(cell).lower()) if isinstance(cell, str | int) else None for cell in cells]
    if None in flags:
        i = flags.index(None)
        raise UserError(f"{path}: line {lines[i]}: stop is {shown(cells[i])} but must be true or false")
    return np.array(flags, dtype=np.bool_)


def check_caps(path: Path, columns: dict[str, Any], lines: Sequence[int]) -> None:
    """Raise UserError if an output is longer than its cap, or shorter where the request stopped because of length."""
    bad = np.flatnonzero(columns["max_tokens"] < columns["output_len"])
    if len(bad):
        raise UserError(f"{path}: line {lines[bad[0]]}: max_tokens is less than output_len")
    bad = np.flatnonzero(~columns["stop"] & (columns["max_tokens"] != columns["output_len"]))
    if len(bad):
        raise UserError(
            f"{path}: line {lines[bad[0]]}: stop is false (the request ends by length), but output_len is not "
            "max_tokens"
        )


def _runs(path: Path, prompt_len: Ints, cells: list[Any], lines: list[int]) -> Content:
    counts: list[int] = []
    ids: list[int] = []
    lengths: list[int] = []
    for runs, line, prompt in zip(cells, lines, prompt_len.tolist(), strict=True):
        try:
            row = [(whole(i, -MOST, MOST), whole(n, 1, MOST)) for i, n in runs]
        except (TypeError, ValueError):
            raise UserError(
                f"{path}: line {line}: content must be [[content id, tokens], ...] (in all rows or in none)"
            ) from None
        if sum(n for _, n in row) != prompt or any(n < 1 for _, n in row):
            raise UserError(f"{path}: line {line}: the token counts in content must add up to prompt_len {prompt}")
        counts.append(len(row))
        ids.extend(i for i, _ in row)
        lengths.extend(n for _, n in row)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Content(offsets, np.array(ids, dtype=np.int64), np.array(lengths, dtype=np.int64))
