"""Conversations of a trace: number of turns, think times, and the share of each prompt that occurred before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servesim.workload.trace import COMPLETION, Ints, Trace

from . import prefix

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Spread:
    """Summary of a distribution; percentiles interpolate linearly between order statistics."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Spread | None:
        """Return the distribution of the values, or None if there are none."""
        if not len(values):
            return None
        p50, p90, p99 = (float(q) for q in np.percentile(values, [50, 90, 99]))
        return cls(float(values.mean()), p50, p90, p99, float(values.max()))


@dataclass(frozen=True, slots=True)
class Sessions:
    """Statistics of a trace whose requests belong to conversations."""

    sessions: int
    several_turns: float
    """Share of sessions with more than one request."""
    turns: Spread
    """Requests per session."""
    pause_s: Spread | None
    """Pause between turns: from the end of an output to the next request if `pauses` is "after answers", or from one
    arrival to the next if `pauses` is "between arrivals". None if all turns are sent together."""
    pauses: str
    first_shared: float | None
    """Share of the prompt tokens of first turns in a prefix shared with an earlier prompt, or None if the trace has no
    content."""
    later_shared: float | None
    """Share of the prompt tokens of later turns that also begin an earlier prompt, or None without content."""


def sessions(trace: Trace) -> Sessions | None:
    """Return statistics of the conversations of a trace, grouped by the label `session` or else by dependencies; None
    if every request stands alone."""
    session = _numbers(trace)
    if session is None:
        return None
    order = np.lexsort((np.arange(len(trace)), session))
    again = np.flatnonzero(np.diff(session[order]) == 0) + 1
    later = np.zeros(len(trace), dtype=np.bool_)
    later[order[again]] = True
    counts = np.bincount(session)
    if counts.max() == 1:
        return None
    waits = trace.after is not None and bool((trace.after.triggers == COMPLETION).any())
    if waits:
        assert trace.after is not None
        pauses = trace.after.delays_ns[trace.after.triggers == COMPLETION]
    else:
        pauses = trace.arrival_ns[order[again]] - trace.arrival_ns[order[again - 1]]
    turns = Spread.of(counts.astype(np.float64))
    assert turns is not None
    shared = prefix.shared_prefix_tokens(trace.content) if trace.content is not None else None
    return Sessions(
        sessions=len(counts),
        several_turns=float((counts > 1).mean()),
        turns=turns,
        pause_s=Spread.of(pauses / SECOND),
        pauses="after answers" if waits else "between arrivals",
        first_shared=_share(shared, trace.prompt_len, ~later),
        later_shared=_share(shared, trace.prompt_len, later),
    )


def _numbers(trace: Trace) -> Ints | None:
    """Return the session of each row, numbered from 0 in order of first rows; a row without a label is a session of its
    own."""
    names = trace.labels.get("session")
    if names is None:
        return trace.plays() if trace.after is not None else None
    known: dict[object, int] = {}
    return np.array([known.setdefault(name or (row,), len(known)) for row, name in enumerate(names)], dtype=np.int64)


def _share(shared: Ints | None, prompt_len: Ints, rows: NDArray[np.bool_]) -> float | None:
    return float(shared[rows].sum() / prompt_len[rows].sum()) if shared is not None and rows.any() else None
