"""Vidur CSV (Agrawal et al., MLSys'24; also Sarathi-Serve and forks): times in seconds from the start.

Columns arrived_at,num_prefill_tokens,num_decode_tokens. Files of lengths without times have no arrivals.
"""

from __future__ import annotations

from pathlib import Path

from servesim.workload.trace import Trace

from . import _text

NAME = "vidur"
ABOUT = "CSV: arrived_at (s),num_prefill_tokens,num_decode_tokens"
HOLDS: frozenset[str] = frozenset()
COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def detect(head: bytes) -> bool:
    # A file of lengths only is ours too: `read` then says that the times are missing.
    return {"num_prefill_tokens", "num_decode_tokens"} <= set(_text.header_fields(head))


def read(path: Path, *, sort: bool = False) -> Trace:
    header, cells, lines = _text.csv_columns(path, COLUMNS)
    by_name = dict(zip(header, cells, strict=True))
    columns = {
        "arrival_ns": _text.times_ns(path, "arrived_at", by_name["arrived_at"], lines, 1_000_000_000),
        "prompt_len": _text.token_counts(path, COLUMNS[1], by_name[COLUMNS[1]], lines),
        "output_len": _text.token_counts(path, COLUMNS[2], by_name[COLUMNS[2]], lines),
    }
    return _text.lengths_trace(path, columns, lines, sort)


def write(trace: Trace, path: Path) -> None:
    """Write seconds with nine decimals; content, names and priorities are not written."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(COLUMNS) + "\n")
        columns = (trace.arrival_ns, trace.prompt_len, trace.output_len)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        file.writelines(f"{t // 10**9}.{t % 10**9:09d},{p},{o}\n" for t, p, o in rows)
