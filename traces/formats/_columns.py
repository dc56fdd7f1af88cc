"""Formats that consist only of CSV columns. Each is one row of COLUMN_FORMATS, read and written by shared code.

To add such a format, add a row, which is all that listing, recognition, reading, streaming, and writing need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from servesim.errors import UserError
from servesim.workload.trace import COMPLETION, After, Ints, Trace
from servesim.workload.trace_stream import TraceStream

from . import _calls, _text
from ._clock import dates_ns
from ._names import UNITS

DATES = "dates"
NO_TIMES = "no times in the file: all requests arrive at the start (--shape arrive:... spreads them)"
Cells = dict[str, list[str]]


@dataclass(frozen=True)
class ColumnFormat:
    """Columns of a format and their meaning."""

    name: str
    about: str
    prompt: str
    output: str
    arrival: str = ""
    """Column of request arrival times; empty if there are no times."""
    unit: str = "s"
    """Unit of `arrival`, one of UNITS, or DATES for dates with times, which are counted from the first request."""
    beside: tuple[str, ...] = ()
    """Further required columns."""
    without: tuple[str, ...] = ()
    """Columns whose presence means that a file has another format."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Column for each label of the trace, if present."""
    elapsed: str = ""
    """Column of request durations in seconds, if present; the turns of a session then follow the previous answer."""
    failed: str = ""
    """Description of the requests without output tokens, which are left out; if empty, such requests are rejected."""
    tells_unused: bool = False
    """Whether unused columns are listed in a note."""
    writes: bool = False

    def __post_init__(self) -> None:
        if self.writes and (self.beside or not self.arrival or self.unit not in ("s", DATES)):
            raise ValueError(
                f"{self.name}: the only columns that can be written are an arrival (seconds or a date) and two lengths"
            )

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the required columns."""
        times = (self.arrival,) if self.arrival else ()
        return (*times, *self.beside, self.prompt, self.output)


COLUMN_FORMATS = (
    # Azure LLM inference traces, 2023 (Patel et al., Splitwise, ISCA'24) and later. The 2023 files have dates and times
    # with seven decimals and no zone, the 2024 files add "+00:00", and the multimodal file has times like "T...Z" and a
    # NumImages column.
    ColumnFormat(
        "azure",
        "CSV: TIMESTAMP,ContextTokens,GeneratedTokens",
        arrival="TIMESTAMP",
        unit=DATES,
        prompt="ContextTokens",
        output="GeneratedTokens",
        tells_unused=True,
        writes=True,
    ),
    # BurstGPT (Wang et al., 2024). The third release has sessions; failed requests have no response tokens.
    ColumnFormat(
        "burstgpt",
        "CSV: Timestamp[,Session ID,Elapsed time],Model,Request tokens,Response tokens,Total tokens,Log Type",
        arrival="Timestamp",
        prompt="Request tokens",
        output="Response tokens",
        beside=("Model",),
        labels={"model": "Model", "class": "Log Type", "session": "Session ID"},
        elapsed="Elapsed time",
        failed="failed requests without response tokens",
    ),
    # Lengths from Vidur and Sarathi-Serve, without times, which --shape arrive:process=poisson,rate=5 adds.
    ColumnFormat(
        "lengths",
        "CSV: num_prefill_tokens,num_decode_tokens, no times",
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
        without=("arrived_at",),
    ),
    # Vidur (Agrawal et al., MLSys'24), Sarathi-Serve, and forks, with times relative to the start.
    ColumnFormat(
        "vidur",
        "CSV: arrived_at (s),num_prefill_tokens,num_decode_tokens",
        arrival="arrived_at",
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
        writes=True,
    ),
)


def as_module(row: ColumnFormat) -> SimpleNamespace:
    """Return the attributes that a module of the format would define."""
    read = _read_turns if row.elapsed else _read if row.arrival else _read_lengths
    found = SimpleNamespace(NAME=row.name, ABOUT=row.about, detect=partial(_detect, row), read=partial(read, row))
    if not row.elapsed and not row.failed:
        found.stream = partial(_stream, row)
    if row.writes:
        found.HOLDS, found.write = frozenset(), partial(_write, row)
    return found


def _detect(row: ColumnFormat, head: bytes) -> bool:
    header = set(_text.header_fields(head))
    return set(row.needed) <= header and not header & set(row.without)


def _read_lengths(row: ColumnFormat, path: Path) -> Trace:
    return next(_parts(row, path, None))


def _read(row: ColumnFormat, path: Path, *, sort: bool = False) -> Trace:
    return next(_parts(row, path, None, sort))


def _read_turns(row: ColumnFormat, path: Path, *, sort: bool = False, timing: str = "think") -> Trace:
    _calls.check_timing(path, timing)
    return next(_parts(row, path, None, sort, timing))


def _stream(row: ColumnFormat, path: Path, chunk: int) -> TraceStream:
    return TraceStream(path.stem, lambda: _parts(row, path, chunk))


def _parts(
    row: ColumnFormat, path: Path, chunk: int | None, sort: bool = False, timing: str = "open"
) -> Iterator[Trace]:
    """Yield the trace, `chunk` requests at a time, or as a whole if `chunk` is None."""
    start: int | None = None
    for header, by_column, lines in _text.csv_chunks(path, row.needed, chunk):
        cells, notes = dict(zip(header, by_column, strict=True)), _notes(row, header)
        if row.failed:
            cells, lines, notes = _without_failed(row, path, cells, lines)
        waits = timing != "open" and row.elapsed in cells and row.labels["session"] in cells
        labels = {name: column for name, column in row.labels.items() if column in cells}
        columns: dict[str, Any] = {
            "arrival_ns": _times_ns(row, path, cells, lines),
            "prompt_len": _text.token_counts(path, row.prompt, cells[row.prompt], lines),
            "output_len": _text.token_counts(path, row.output, cells[row.output], lines),
            "labels": {name: tuple(cells[column]) for name, column in labels.items() if name != "session" or waits},
            "notes": notes,
        }
        if waits:
            spent = _text.times_ns(path, row.elapsed, cells[row.elapsed], lines, UNITS["s"])
            columns |= _turns(columns["labels"]["session"], columns["arrival_ns"], spent, timing)
        start = int(columns["arrival_ns"].min()) if start is None else start
        if row.unit == DATES:
            columns["arrival_ns"] -= start
        by_time = sort or (waits and timing == "think")
        yield _text.lengths_trace(path, columns, lines, by_time, 0 if row.unit == DATES else start)


def _times_ns(row: ColumnFormat, path: Path, cells: Cells, lines: Sequence[int]) -> Ints:
    if not row.arrival:
        return np.zeros(len(lines), dtype=np.int64)
    if row.unit == DATES:
        return dates_ns(path, row.arrival, cells[row.arrival], lines)
    return _text.times_ns(path, row.arrival, cells[row.arrival], lines, UNITS[row.unit])


def _notes(row: ColumnFormat, header: Sequence[str]) -> tuple[str, ...]:
    if not row.arrival:
        return (NO_TIMES,)
    unused = [name for name in header if name not in row.needed] if row.tells_unused else []
    return (f"columns not used: {', '.join(unused)}",) if unused else ()


def _without_failed(
    row: ColumnFormat, path: Path, cells: Cells, lines: list[int]
) -> tuple[Cells, list[int], tuple[str, ...]]:
    """Return the cells and line numbers of the requests that have output tokens, and a note on the other requests."""
    kept = np.flatnonzero(_text.whole(path, row.output, cells[row.output], lines) > 0).tolist()
    if not kept:
        raise UserError(f"{path}: no requests other than {row.failed}")
    failed = len(lines) - len(kept)
    notes = (f"{failed} {row.failed} left out",) if failed else ()
    return {name: [column[i] for i in kept] for name, column in cells.items()}, [lines[i] for i in kept], notes


def _turns(sessions: Sequence[str], sent: Ints, spent: Ints, timing: str) -> dict[str, Any]:
    """Return the dependency of each turn on the previous turn of its session, and the arrivals. With timing "think",
    only the pause counts: a turn waits only for the previous turn, and its arrival is that of the session's first
    turn."""
    edges: list[list[_calls.Edge]] = []
    last: dict[str, int] = {}
    arrival, ends = sent.copy(), (sent + spent).tolist()
    for turn, (session, at) in enumerate(zip(sessions, sent.tolist(), strict=True)):
        before = last.get(session, -1) if session else -1
        pause = max(at - ends[before], 0) if timing == "think" else 0
        edges.append([(before, COMPLETION, pause, 0)] if before >= 0 else [])
        if before >= 0 and timing == "think":
            arrival[turn] = arrival[before]
        last[session] = turn
    return {"after": After.of(edges), "arrival_ns": arrival}


def _write(row: ColumnFormat, trace: Trace, path: Path) -> None:
    """Write times (seconds, or dates from 2000-01-01 on) with nine decimals, and lengths. Content, names, and
    priorities are not written."""
    if row.unit == DATES:
        dates = np.datetime64("2000-01-01", "ns") + trace.arrival_ns.astype("timedelta64[ns]")
        times = np.char.replace(np.datetime_as_string(dates, unit="ns"), "T", " ").tolist()
    else:
        times = [f"{ns // 10**9}.{ns % 10**9:09d}" for ns in trace.arrival_ns.tolist()]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(row.needed) + "\n")
        rows = zip(times, trace.prompt_len.tolist(), trace.output_len.tolist(), strict=True)
        file.writelines(f"{time},{prompt},{output}\n" for time, prompt, output in rows)
