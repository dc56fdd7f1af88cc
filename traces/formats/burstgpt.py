"""BurstGPT (Wang et al., 2024): CSV of Timestamp (s),Model,Request tokens,Response tokens,Total tokens,Log Type.

The third release has Session ID and Elapsed time (s) after Timestamp: requests of a session follow each other. Failed
requests have no response tokens and are left out. Log Type becomes the class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from servesim.workload.trace import COMPLETION, After, Ints, Trace

from . import _calls, _text

NAME = "burstgpt"
ABOUT = "CSV: Timestamp[,Session ID,Elapsed time],Model,Request tokens,Response tokens,Total tokens,Log Type"
COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")


def detect(head: bytes) -> bool:
    return set(COLUMNS) <= set(_text.header_fields(head))


def read(path: Path, *, sort: bool = False, timing: str = "think") -> Trace:
    _calls.check_timing(path, timing)
    header, cells, lines = _text.csv_columns(path, COLUMNS)
    by_name = dict(zip(header, cells, strict=True))
    response = _text.whole(path, "Response tokens", by_name["Response tokens"], lines)
    kept = np.flatnonzero(response > 0).tolist()
    lines = [lines[i] for i in kept]
    by_name = {name: [column[i] for i in kept] for name, column in by_name.items()}
    sent = _text.times_ns(path, "Timestamp", by_name["Timestamp"], lines, 1_000_000_000)
    labels = {"model": tuple(by_name["Model"])}
    if "Log Type" in by_name:
        labels["class"] = tuple(by_name["Log Type"])
    columns: dict[str, Any] = {
        "arrival_ns": sent,
        "prompt_len": _text.token_counts(path, "Request tokens", by_name["Request tokens"], lines),
        "output_len": _text.token_counts(path, "Response tokens", by_name["Response tokens"], lines),
    }
    if "Session ID" in by_name and timing != "open":
        labels["session"] = tuple(by_name["Session ID"])
        spent = _text.times_ns(path, "Elapsed time", by_name["Elapsed time"], lines, 1_000_000_000)
        columns["after"], later = _turns(labels["session"], sent, spent, timing)
        if timing == "think":  # only the pause counts: such a turn waits for nothing but the one before
            columns["arrival_ns"] = np.where(later >= 0, sent[np.maximum(later, 0)], sent)
            sort = True
    failed = len(cells[0]) - len(kept)
    notes = (f"{failed} failed requests without response tokens left out",) if failed else ()
    return _text.lengths_trace(path, {**columns, "labels": labels, "notes": notes}, lines, sort)


def _turns(sessions: tuple[str, ...], sent: Ints, spent: Ints, timing: str) -> tuple[After | None, Ints]:
    """Return each turn's wait for the one before in its session, and each row's first turn of its session (-1: is the
    first)."""
    edges: list[list[_calls.Edge]] = []
    last: dict[str, tuple[int, int]] = {}  # session -> its turn before, and its first
    first = np.full(len(sent), -1, dtype=np.int64)
    ends = (sent + spent).tolist()
    for row, (session, at) in enumerate(zip(sessions, sent.tolist(), strict=True)):
        before, begun = last.get(session, (-1, row)) if session else (-1, row)
        if before >= 0:
            first[row] = begun
        pause = max(at - ends[before], 0) if timing == "think" else 0
        edges.append([(before, COMPLETION, pause, 0)] if before >= 0 else [])
        last[session] = (row, begun)
    return After.of(edges), first
