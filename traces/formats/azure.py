"""Azure LLM inference traces, 2023 (Patel et al., Splitwise, ISCA'24) and later.

Columns TIMESTAMP,ContextTokens,GeneratedTokens. 2023 prints clock time with seven decimals and no zone,
2024 adds "+00:00", the multimodal file writes "T...Z" and a NumImages column. Times count from the first.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from servesim.errors import UserError, shown
from servesim.workload.trace import Ints, Trace
from servesim.workload.trace_stream import TraceStream

from . import _text

NAME = "azure"
ABOUT = "CSV: TIMESTAMP,ContextTokens,GeneratedTokens"
HOLDS: frozenset[str] = frozenset()
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def detect(head: bytes) -> bool:
    return set(COLUMNS) <= set(_text.header_fields(head))


def read(path: Path, *, sort: bool = False) -> Trace:
    header, cells, lines = _text.csv_columns(path, COLUMNS)
    clock = _clock_ns(path, cells[header.index("TIMESTAMP")], lines)
    return _trace(path, header, cells, lines, clock - clock.min(), sort)


def stream(path: Path, chunk: int) -> TraceStream:
    """Read a trace in chunks; times count from the first row's."""

    def chunks() -> Iterator[Trace]:
        start = None
        for header, cells, lines in _text.csv_chunks(path, COLUMNS, chunk):
            clock = _clock_ns(path, cells[header.index("TIMESTAMP")], lines)
            start = int(clock[0]) if start is None else start
            yield _trace(path, header, cells, lines, clock - start, False)

    return TraceStream(path.stem, chunks)


def _trace(
    path: Path, header: list[str], cells: list[list[str]], lines: list[int], arrival_ns: Ints, sort: bool
) -> Trace:
    by_name = dict(zip(header, cells, strict=True))
    extra = [name for name in header if name not in COLUMNS]
    columns = {
        "arrival_ns": arrival_ns,
        "prompt_len": _text.token_counts(path, "ContextTokens", by_name["ContextTokens"], lines),
        "output_len": _text.token_counts(path, "GeneratedTokens", by_name["GeneratedTokens"], lines),
        "notes": (f"columns not used: {', '.join(extra)}",) if extra else (),
    }
    return _text.lengths_trace(path, columns, lines, sort, 0)


def write(trace: Trace, path: Path) -> None:
    """Write clock times from 2000-01-01 with nine decimals; content, names and priorities are not written."""
    clock = np.datetime64("2000-01-01", "ns") + trace.arrival_ns.astype("timedelta64[ns]")
    stamps = np.char.replace(np.datetime_as_string(clock, unit="ns"), "T", " ")
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(COLUMNS) + "\n")
        rows = zip(stamps.tolist(), trace.prompt_len.tolist(), trace.output_len.tolist(), strict=True)
        file.writelines(f"{stamp},{prompt},{output}\n" for stamp, prompt, output in rows)


def _clock_ns(path: Path, cells: list[str], lines: list[int]) -> Ints:
    plain = [_without_zone(cell) for cell in cells]
    stamps = _stamps(plain)
    if stamps is not None:
        return stamps
    for cell, text, line in zip(cells, plain, lines, strict=True):
        if _stamps([text]) is not None:
            continue
        raise UserError(
            f"{path}: line {line}: TIMESTAMP is {shown(cell)}, must be like 2023-11-16 18:15:46.6805900 (UTC)"
        )
    raise UserError(f"{path}: TIMESTAMP cannot be read as times")


def _stamps(texts: list[str]) -> Ints | None:
    """Return nanoseconds since 1970; None where a text is no time, or one of another zone, which numpy warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            stamps = np.array(texts, dtype="datetime64[ns]")
        except (ValueError, OverflowError, UserWarning, DeprecationWarning):
            return None
    return None if np.any(np.isnat(stamps)) else stamps.astype(np.int64)


def _without_zone(cell: str) -> str:
    cell = cell.strip()
    return cell.removesuffix("Z").removesuffix("+00:00")
