"""Requests as recorded by a log or a benchmark client: arrival, tokens, and duration of each.

Readers turn them into a trace; `servesim validate` and `compare` use their latencies as the measured side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.errors import UserError
from servesim.workload.trace import COMPLETION, LABELS, Ints, Trace

from . import _calls, _text
from ._calls import Call, Runs

Floats = NDArray[np.float64]
GROWING = 0.8
"""Minimum share of later turns whose prompt is at least as long as the previous prompt plus its answer; from this share
up, sessions are assumed to resend their history. For independent requests, the share is below half."""
LEAST_TURNS = 10
"""Minimum number of later turns needed to tell, from lengths alone, that a column whose name refers to users identifies
conversations."""


@dataclass(frozen=True)
class Recorded:
    """Requests in file order. NaN means not recorded."""

    path: Path
    lines: Sequence[int]
    start_ns: Ints
    """Start times since 1970, or since an arbitrary start."""
    prompt: Ints
    output: Ints
    ttft_ms: Floats
    e2el_ms: Floats
    session: tuple[str, ...] = ()
    """Conversation of each request; empty if not recorded."""
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    request_id: tuple[str, ...] = ()
    runs: list[Runs] = field(default_factory=list)
    """Contents of prompts, if known."""
    model: str | None = None
    concurrency: int | None = None
    """Number of requests that the client kept in flight, or None if it sent requests at given times."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.lines)


def recorded(path: Path, rows: Sequence[Any], take: Callable[[int, Any], dict[str, Any]], **known: Any) -> Recorded:
    """Return the requests recorded in a tool's file. `take` maps (number, record) to the fields of Recorded for one
    request: start_ns, prompt, output, and, if available, ttft_ms, e2el_ms, and session."""
    found = [take(i, row) for i, row in enumerate(rows, start=1)]
    if not found:
        raise UserError(f"{path}: no completed requests")
    lines = list(range(1, len(found) + 1))
    return Recorded(
        path,
        lines,
        np.array([row["start_ns"] for row in found], dtype=np.int64),
        _text.token_counts(path, "prompt tokens", [row["prompt"] for row in found], lines),
        _text.token_counts(path, "output tokens", [row["output"] for row in found], lines),
        np.array([_or_nan(row.get("ttft_ms")) for row in found]),
        np.array([_or_nan(row.get("e2el_ms")) for row in found]),
        session=tuple([str(row.get("session") or "") for row in found]) if "session" in found[0] else (),
        **known,
    )


def _or_nan(value: Any) -> float:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value) if usable else np.nan


def need(path: Path, number: int, row: Any, *keys: str) -> Any:
    """Return a record's value for the first of these keys (with dots for nesting) that the record has; raise UserError
    if it has none of them."""
    for key in keys:
        value = row
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return value
    raise UserError(
        f"{path}: request {number}: no {' or '.join(keys)}; the file may be from a different version of the tool"
    )


def optional(row: Any, *keys: str) -> Any:
    """Return a record's value for the first of these keys that the record has, or None if it has none of them."""
    try:
        return need(Path(), 0, row, *keys)
    except UserError:
        return None


def trace_of(log: Recorded, timing: str | None = None, named_sessions: bool = True) -> Trace:
    """Return a recording as a trace. Requests of a session with known latencies follow the previous answer after the
    recorded pause (timing "think", the default; for "original" and "open", see _calls), and their prompts contain the
    preceding turns if the lengths indicate so. `named_sessions` tells whether the name of the session column identifies
    sessions; if not, the lengths alone must show that they are sessions."""
    _calls.check_timing(log.path, timing or "think")
    order = np.argsort(log.start_ns, kind="stable")
    notes = [*log.notes]
    if np.any(np.diff(log.start_ns) < 0):
        notes.append("rows sorted by arrival time")
    history = _history(log, order, named_sessions)
    if history is None and not log.runs:
        columns = {
            "arrival_ns": log.start_ns[order] - log.start_ns.min(),
            "prompt_len": log.prompt[order],
            "output_len": log.output[order],
        }
        labels = {name: tuple([texts[i] for i in order]) for name, texts in log.labels.items() if name in LABELS}
        ids = tuple([log.request_id[i] for i in order]) if log.request_id else None
        return Trace.from_lengths(_name(log.path), **columns, labels=labels, request_id=ids, notes=tuple(notes))
    return _calls.build(log.path, _with_sessions(log, order, history, timing or "think", notes), tuple(notes))


def _name(path: Path) -> str:
    return path.name.split(".")[0] or path.name


def _history(log: Recorded, order: Ints, named: bool) -> dict[int, int] | None:
    """Return the previous turn of each row that is a later turn, or None if the requests are not conversations."""
    if not log.session:
        return None
    before: dict[int, int] = {}
    last: dict[str, int] = {}
    for row in order.tolist():
        session = log.session[row]
        if session and session in last:
            before[row] = last[session]
        last[session] = row
    if not before or (not named and (len(before) < LEAST_TURNS or _growing(log, before) < GROWING)):
        return None
    return before


def _growing(log: Recorded, before: dict[int, int]) -> float:
    return float(np.mean([log.prompt[row] >= log.prompt[b] + log.output[b] for row, b in before.items()]))


def _with_sessions(
    log: Recorded, order: Ints, before: dict[int, int] | None, timing: str, notes: list[str]
) -> list[Call]:
    before = before or {}
    start = int(log.start_ns.min())
    ends = log.start_ns + np.rint(np.nan_to_num(log.e2el_ms, nan=-1.0) * 1e6).astype(np.int64)
    timed = np.isfinite(log.e2el_ms)
    share = _growing(log, before) if before and not log.runs else 0.0
    place: dict[int, int] = {}  # row -> index among the calls
    calls: list[Call] = []
    texts, waits = 0, 0
    for row in order.tolist():
        earlier = before.get(row)
        at, edges = int(log.start_ns[row]) - start, []
        if earlier is not None and timing != "open" and timed[earlier] and ends[earlier] <= log.start_ns[row]:
            pause = int(log.start_ns[row] - ends[earlier]) if timing == "think" else 0
            edges = [(place[earlier], COMPLETION, pause, 0)]
            at = calls[place[earlier]].at_ns if timing == "think" else at
            waits += 1
        runs: Runs | None = None
        if log.runs:
            runs = log.runs[row]
        elif share >= GROWING:
            runs, texts = _runs(log, row, earlier, place, calls, texts)
        labels = {name: column[row] for name, column in log.labels.items()}
        if log.session:
            labels["session"] = log.session[row]
        place[row] = len(calls)
        name = log.request_id[row] if log.request_id else None
        calls.append(Call(log.lines[row], at, int(log.prompt[row]), int(log.output[row]), runs, edges, labels, name))
    how = (
        f"{waits:,} of which wait for the previous answer (timing={timing})"
        if waits
        else "sent at their recorded times"
    )
    if before:
        notes.append(f"{len(before):,} later turns of sessions, {how}")
    if share >= GROWING:
        notes.append(
            f"prompts of later turns are assumed to contain the earlier turns, since {share:.0%} are long enough"
        )
    return calls


def _runs(
    log: Recorded, row: int, earlier: int | None, place: dict[int, int], calls: list[Call], texts: int
) -> tuple[Runs, int]:
    """Return the content of a prompt, which begins with the previous turn if the prompt is long enough, and the next
    unused text id."""
    runs: Runs = []
    if earlier is not None and log.prompt[row] >= log.prompt[earlier] + log.output[earlier]:
        runs = [*(calls[place[earlier]].runs or ()), (-place[earlier] - 1, int(log.output[earlier]))]
    rest = int(log.prompt[row]) - sum(length for _, length in runs)
    return ([*runs, (texts, rest)], texts + 1) if rest else (runs, texts)
