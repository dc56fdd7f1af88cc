"""Code shared by formats of conversations and agents: calls that wait for other calls, and timing by think time or by
the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from servesim.errors import UserError, shown
from servesim.workload.trace import LABELS, After, Content, Samples, Trace

from . import _text

TIMINGS = ("think", "original", "open")
"""Timing modes. think: a call follows the end of the previous one after the recorded pause. original: a call is sent at
its recorded time or when the previous one ends, whichever is later. open: calls are sent at their recorded times,
whether or not earlier calls have ended."""
Edge = tuple[int, int, int, int]
Runs = list[tuple[int, int]]


@dataclass(slots=True)
class Call:
    """One request of a file. `after` refers to other calls by their positions in the list passed to `build`; content
    -(position + 1) in a run is that call's output."""

    line: int
    at_ns: int
    prompt: int
    output: int
    runs: Runs | None = None
    after: list[Edge] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    priority: int = 0
    further: list[int] = field(default_factory=list)
    """Number of output tokens of each further answer (sample)."""


def build(path: Path, calls: Sequence[Call], notes: tuple[str, ...] = ()) -> Trace:
    """Return the calls as a trace, in time order; calls with equal times stay in file order."""
    if not calls:
        raise UserError(f"{path}: no requests")
    lines = [call.line for call in calls]
    unknown = [call.line for call in calls if call.runs is None]
    if 0 < len(unknown) < len(calls):
        raise UserError(
            f"{path}: line {unknown[0]}: content is missing; all requests must have content, or none of them"
        )
    present = [name for name in LABELS if any(call.labels.get(name) for call in calls)]
    arrival = np.array([call.at_ns for call in calls], dtype=np.int64)
    start = int(arrival.min()) if arrival.min() > _text.YEAR_NS else 0
    trace = Trace.from_lengths(
        path.name.split(".")[0],
        np.zeros(len(calls), dtype=np.int64),
        _text.token_counts(path, "prompt length", [call.prompt for call in calls], lines),
        _text.token_counts(path, "output length", [call.output for call in calls], lines),
        content=content_of([call.runs for call in calls if call.runs is not None]),
        request_id=tuple([str(call.name) for call in calls]) if all(call.name is not None for call in calls) else None,
        notes=notes,
        after=After.of([call.after for call in calls]),
        labels={name: tuple([call.labels.get(name, "") for call in calls]) for name in present},
        priority=np.array([call.priority for call in calls], dtype=np.int64),
        samples=Samples.of(
            np.array([len(call.further) for call in calls], dtype=np.int64),
            np.array([tokens for call in calls for tokens in call.further], dtype=np.int64),
        ),
    )
    trace = trace.at(arrival - start)
    return replace(trace, content=_renumbered(trace.content)) if trace.content is not None else trace


def _renumbered(content: Content) -> Content:
    """Renumber text ids from 0 in order of first use."""
    ids = content.ids.copy()
    texts = ids >= 0
    _, first, which = np.unique(ids[texts], return_index=True, return_inverse=True)
    ids[texts] = np.argsort(np.argsort(first))[which]
    return replace(content, ids=ids)


def content_of(runs: Sequence[Runs]) -> Content | None:
    """Return the runs of each row as content, or None if there are none."""
    if not runs:
        return None
    flat = np.array([run for row in runs for run in row], dtype=np.int64).reshape(-1, 2)
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in runs]))).astype(np.int64)
    return Content(offsets, np.ascontiguousarray(flat[:, 0]), np.ascontiguousarray(flat[:, 1]))


def check_timing(path: Path, timing: str, known: Sequence[str] = TIMINGS) -> None:
    """Raise UserError unless `timing` is one of `known`."""
    if timing not in known:
        raise UserError(f"{path}: timing is {timing!r} but must be one of {', '.join(known)}")


def seconds_ns(path: Path, line: int, key: str, value: object, unit_ns: int = 1_000_000_000) -> int:
    """Convert a time, which must be at least 0, from units of `unit_ns` to ns."""
    return int(_text.times_ns(path, key, [value], [line], unit_ns)[0])


def count(path: Path, line: int, key: str, value: object, least: int = 1) -> int:
    """Return a value that must be a whole number of at least `least`; raise UserError if it is not."""
    if type(value) is not int or not least <= value <= _text.MAX_TOKENS:
        raise UserError(f"{path}: line {line}: {key} is {shown(value)} but must be a whole number of at least {least}")
    return value


def block_runs(
    path: Path, line: int, ids: object, length: int, size: int, numbers: dict[object, int], scope: object = None
) -> Runs:
    """Return a prompt of `length` tokens as runs, given the hashes of its blocks of `size` tokens (the last block may
    be partial). `numbers` maps each (scope, id) to its content id, in order of first use."""
    blocks = -(-length // size)
    if not isinstance(ids, list) or len(ids) != blocks:
        raise UserError(
            f"{path}: line {line}: {len(ids) if isinstance(ids, list) else 'no'} hashes for {length} tokens "
            f"instead of {blocks} (blocks of {size} tokens, rounded up)"
        )
    named = [numbers.setdefault((scope, i), len(numbers)) for i in ids]
    return [(name, min(size, length - i * size)) for i, name in enumerate(named)]
