"""Shaping steps for what-if questions: a burst, growth, or a prefix shared by prompts (servesim.traces.shape)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.errors import UserError
from servesim.workload.trace import Content, Ints, Trace

from .join import join
from .synth.lengths import MAX_TOKENS

SECOND = 1_000_000_000
MOST_TIMES = 1000.0
NEIGHBOURHOOD = 0.05
"""Share of the span over which growth spreads the copies of a play so that they do not coincide; it is small relative
to the growth and large relative to the gaps."""
Sharing = Literal["fresh", "shared"]


@dataclass(frozen=True)
class Burst:
    """Burst that starts at `at` seconds, lasts `for` seconds and has `times` times the requests. It consists of the
    trace's own requests and copies of its plays, moved at random within the burst. Copies have their own texts, or the
    same texts with content=shared. If `times` is below 1, the burst is a lull."""

    at: float
    lasting: float
    """Duration of the burst in seconds, written `for`."""
    times: float
    content: Sharing = "fresh"

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if self.at < 0 or self.lasting <= 0 or self.at + self.lasting > 4e9:
            raise UserError(
                f"'at' is {self.at:g} s (must be at least 0), and 'for' is {self.lasting:g} s (must be above 0)"
            )
        _check_times(self.times)
        begins, _ = begins_of(trace)
        start, length = round(self.at * SECOND), round(self.lasting * SECOND)
        inside = (begins >= start) & (begins < start + length)
        if not inside.any():
            raise UserError(f"no request arrives in the {self.lasting:g} s that begin at {self.at:g} s")

        def place(copy: int) -> Ints:
            moved = draws.uniform(seed, f"burst copy {copy}", np.arange(len(begins))) * length
            return start + (begins - start + moved.astype(np.int64)) % length

        return multiplied(trace, np.where(inside, self.times, 1.0), place, seed, self.content)


@dataclass(frozen=True)
class Growth:
    """Growth in the number of requests, linear over the trace. The number is multiplied by `start` at the beginning (1
    leaves it unchanged) and by `times` at the end. Plays are dropped, or copied to nearby times within a twentieth of
    the span."""

    times: float
    start: float = 1.0
    content: Sharing = "fresh"

    def __call__(self, trace: Trace, seed: int) -> Trace:
        _check_times(self.times)
        _check_times(self.start)
        begins, _ = begins_of(trace)
        first, last = int(begins.min()), int(begins.max())
        span = max(last - first, 1)
        factor = self.start + (self.times - self.start) * (begins - first) / span

        def place(copy: int) -> Ints:
            shift = (draws.uniform(seed, f"growth copy {copy}", np.arange(len(begins))) - 0.5) * NEIGHBOURHOOD * span
            moved: Ints = np.clip(begins + shift.astype(np.int64), first, last)
            return moved

        return multiplied(trace, factor, place, seed, self.content)


@dataclass(frozen=True)
class Share:
    """Common prefixes: prompts of a fraction `share` of the plays begin with `tokens` tokens of one of `groups` common
    texts. A prompt shorter than that consists of its common text alone. The common tokens replace the original tokens,
    and lengths stay unchanged."""

    tokens: int
    groups: int = 1
    share: float = 1.0

    def __call__(self, trace: Trace, seed: int) -> Trace:
        if not 1 <= self.tokens <= MAX_TOKENS or not 1 <= self.groups <= 10_000_000:
            raise UserError(f"tokens is {self.tokens} and groups is {self.groups}, but both must be at least 1")
        if not 0 <= self.share <= 1:
            raise UserError(f"share is {self.share:g} but must be from 0 to 1")
        content = trace.content
        if content is None:
            rows = np.arange(len(trace))
            content = Content(np.arange(len(trace) + 1), rows, trace.prompt_len)
        play = trace.plays()
        numbers = np.arange(play.max() + 1)
        drawn = (draws.uniform(seed, "share group", numbers) * self.groups).astype(np.int64)
        group = np.minimum(drawn, self.groups - 1)[play]
        sharing = (draws.uniform(seed, "share", numbers) < self.share)[play]
        common = np.where(sharing, np.minimum(self.tokens, trace.prompt_len), 0)
        free = int(content.ids.max(initial=0)) + 1
        return replace(trace, content=_behind(content, common, free + group))


def _behind(content: Content, common: Ints, ids: Ints) -> Content:
    """Return the content with the first `common` tokens of each row replaced by tokens of the text whose id is given
    for the row."""
    offsets, lengths = content.offsets, content.lengths
    row = np.repeat(np.arange(len(common)), np.diff(offsets))
    sums = np.concatenate(([0], np.cumsum(lengths)))
    ends = sums[1:] - sums[offsets[row]]  # within the prompt
    left = np.clip(ends - common[row], 0, lengths)
    rows = np.concatenate((np.arange(len(common)), row))
    order = np.argsort(rows, kind="stable")  # the common text comes before the runs of its row
    all_lengths = np.concatenate((common, left))[order]
    all_ids = np.concatenate((ids, content.ids))[order]
    kept = all_lengths > 0
    counts = np.bincount(rows[order][kept], minlength=len(common))
    return Content(np.concatenate(([0], np.cumsum(counts))).astype(np.int64), all_ids[kept], all_lengths[kept])


def multiplied(
    trace: Trace, factor: NDArray[np.float64], place: Callable[[int], Ints], seed: int, content: Sharing
) -> Trace:
    """Return the trace with each play repeated `factor` times (on average, if that is not an integer); copy c of a play
    begins at `place(c)`."""
    begins, play = begins_of(trace)
    whole = np.floor(factor).astype(np.int64)
    count = whole + (draws.uniform(seed, "copies", np.arange(len(begins))) < factor - whole)
    parts, suffixes = [], []
    for copy in range(int(count.max(initial=0))):
        rows = np.flatnonzero((count > copy)[play])
        shift = (place(copy) - begins)[play] if copy else np.zeros(len(play), dtype=np.int64)
        parts.append(trace.take(rows).at(trace.arrival_ns[rows] + shift[rows]))
        suffixes.append(f"@{copy + 1}" if copy else "")
    if not parts:
        raise UserError("no requests are left")
    return join(trace.name, parts, content == "fresh", suffixes)


def begins_of(trace: Trace) -> tuple[Ints, Ints]:
    """Return the start time of each play, and each row's play."""
    play = trace.plays()
    begins = np.full(play.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(begins, play, trace.arrival_ns)
    return begins, play


def _check_times(times: float) -> None:
    if not 0 <= times <= MOST_TIMES:
        raise UserError(f"times is {times:g} but must be from 0 to {MOST_TIMES:g}")
