"""Statistics of a trace: load, burstiness, lengths, and the share of prompts that a prefix cache could save."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from servesim.errors import UserError
from servesim.workload.trace import Ints, Trace

from . import prefix
from .sessions import Sessions, sessions

SECOND = 1_000_000_000
WINDOWS_S = (1, 10, 60)
MOST_WINDOWS = 10_000_000
"""Maximum number of windows counted one by one: four months of one-second windows."""
NO_CONTENT = "no content: prefix caching has no effect"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts of one side (prompt or output) of the requests; percentiles interpolate linearly between order
    statistics."""

    total: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: int


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """Leading-block hits of an infinite cache; see `servesim.traces.prefix.block_hits` for how hits are counted."""

    block_size: int
    blocks: int
    hit_blocks: int
    block_hit_rate: float
    token_hit_rate: float
    requests_with_hit: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Statistics of one trace. None means undefined for this trace (too short, or no content)."""

    name: str
    requests: int
    sequences: int  # outputs requested; exceeds requests if some ask for several samples (n > 1)
    span_s: float  # first to last arrival
    mean_rate: float | None  # requests/s: number of gaps / span
    cv: float | None  # standard deviation over mean of the gaps between arrivals (Poisson: 1)
    dispersion: dict[int, float | None]  # seconds -> variance / mean of counts per whole window (Poisson: 1)
    peak_rate: dict[int, float]  # seconds -> requests/s in the fullest window
    prompt: Lengths
    output: Lengths
    prefix: PrefixHits | None
    prefix_note: str
    sessions: Sessions | None
    """Conversations of the trace, or None if every request stands alone."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as plain dicts, numbers, and strings."""
        return asdict(self)


def inspect(trace: Trace, block_size: int = 16) -> TraceSummary:
    """Return all statistics of a trace, with prefix hits counted in blocks of `block_size` tokens (the default is 16 in
    vLLM and 512 in Mooncake)."""
    if block_size < 1:
        raise UserError(f"block_size is {block_size} but must be at least 1")
    gaps = np.diff(trace.arrival_ns)
    span = int(gaps.sum())
    hits = prefix_hits(trace, block_size)
    further = trace.samples.output_len if trace.samples is not None else np.empty(0, dtype=np.int64)
    outputs = np.concatenate((trace.output_len, further))
    return TraceSummary(
        name=trace.name,
        requests=len(trace),
        sequences=int(trace.n.sum()),
        span_s=span / SECOND,
        mean_rate=len(gaps) / (span / SECOND) if span else None,
        cv=float(gaps.std() / gaps.mean()) if span else None,
        dispersion={w: dispersion(trace.arrival_ns, w) for w in WINDOWS_S},
        peak_rate={w: peak(trace.arrival_ns, w) / w for w in (1, 60)},
        prompt=_lengths(trace.prompt_len),
        output=_lengths(outputs),
        prefix=hits,
        prefix_note=NO_CONTENT if hits is None else "",
        sessions=sessions(trace),
        notes=trace.notes,
    )


def peak(arrival_ns: Ints, window_s: float) -> int:
    """Return the maximum number of arrivals in any of the windows that `window_counts` uses, for a trace of any
    length."""
    return int(np.unique(_windows(arrival_ns, window_s)[0], return_counts=True)[1].max())


def _windows(arrival_ns: Ints, window_s: float) -> tuple[Ints, int]:
    """Return the window of each arrival and the number of whole windows."""
    index = (arrival_ns - arrival_ns[0]) // round(window_s * SECOND)
    return index, int(index[-1])


def window_counts(arrival_ns: Ints, window_s: float, *, whole: bool = True) -> Ints:
    """Return the numbers of arrivals in successive windows from the first arrival; `whole` leaves out the unfinished
    last window."""
    index, windows = _windows(arrival_ns, window_s)
    counts = np.bincount(index, minlength=windows + 1).astype(np.int64)
    return counts[:windows] if whole else counts


def dispersion(arrival_ns: Ints, window_s: float) -> float | None:
    """Return the index of dispersion of counts (the variance of the counts per whole window over their mean), or None
    if there are fewer than two windows."""
    index, windows = _windows(arrival_ns, window_s)
    if windows > MOST_WINDOWS:  # almost all windows are empty
        filled = np.unique(index[index < windows], return_counts=True)[1].astype(np.float64)
        mean = filled.sum() / windows
        return float((filled @ filled / windows - mean * mean) / mean)
    counts = window_counts(arrival_ns, window_s)
    return float(counts.var() / counts.mean()) if len(counts) >= 2 and counts.sum() else None


def prefix_hits(trace: Trace, block_size: int = 16) -> PrefixHits | None:
    """Return ideal prefix hits, or None for a trace without content."""
    if trace.content is None:
        return None
    blocks, hit_blocks, hit_tokens = prefix.block_hits(trace.content, trace.prompt_len, block_size)
    return PrefixHits(
        block_size=block_size,
        blocks=int(blocks.sum()),
        hit_blocks=int(hit_blocks.sum()),
        block_hit_rate=float(hit_blocks.sum() / blocks.sum()),
        token_hit_rate=float(hit_tokens.sum() / trace.prompt_len.sum()),
        requests_with_hit=float(np.mean(hit_blocks > 0)),
    )


def _lengths(column: Ints) -> Lengths:
    p50, p90, p95, p99 = (float(q) for q in np.percentile(column, [50, 90, 95, 99]))
    return Lengths(int(column.sum()), float(column.mean()), p50, p90, p95, p99, int(column.max()))
