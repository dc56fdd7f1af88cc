"""A request trace as columns: what arrives when, how long it is, and what its prompt is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from servesim.errors import UserError

Ints = NDArray[np.int64]

LENGTH_CAPPED = "finish reason not in the trace: every request ends at its length cap"


@dataclass(frozen=True, slots=True)
class Content:
    """What prompts are made of, without tokens: each prompt is a sequence of (content id, length) runs.

    The runs of row r are `ids[offsets[r]:offsets[r+1]]` with `lengths` beside them; their lengths add up to
    the row's prompt_len. Two prompts share a prefix exactly as far as their runs agree: token j of a run with
    id c is the same token wherever (c, j) occurs.
    """

    offsets: Ints  # n + 1
    ids: Ints
    lengths: Ints

    def runs(self, row: int) -> list[tuple[int, int]]:
        """(content id, length) runs of one row."""
        a, b = int(self.offsets[row]), int(self.offsets[row + 1])
        return list(zip(self.ids[a:b].tolist(), self.lengths[a:b].tolist(), strict=True))

    def take(self, rows: Ints) -> Content:
        """The content of the given rows, in that order."""
        counts = self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        index = np.repeat(self.offsets[rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        return Content(offsets, self.ids[index], self.lengths[index])


@dataclass(frozen=True, slots=True)
class Trace:
    """Columns of n requests, in order of arrival. The row index is a request's identity everywhere.

    `output_len` is the truth that only the engine and declared oracles may see; `max_tokens` is what a
    server is told. `stop` says which of the two ends a request: a stop token at `output_len`, or the cap.
    """

    name: str
    arrival_ns: Ints  # nanoseconds since the start of the trace, non-decreasing
    prompt_len: Ints  # tokens, >= 1
    output_len: Ints  # tokens, >= 1
    max_tokens: Ints  # tokens, >= output_len
    stop: NDArray[np.bool_]  # True: ends by a stop token; False: by length (output_len == max_tokens)
    priority: Ints  # lower is served first
    request_id: tuple[str, ...] | None = None
    content: Content | None = None
    notes: tuple[str, ...] = field(default=())  # defaults and transformations applied, for the result

    def __post_init__(self) -> None:
        n = len(self.arrival_ns)
        for column in ("prompt_len", "output_len", "max_tokens", "stop", "priority"):
            if len(getattr(self, column)) != n:
                raise UserError(f"trace {self.name}: column {column} has {len(getattr(self, column))} rows, not {n}")
        if n == 0:
            raise UserError(f"trace {self.name}: no requests")
        for column in ("prompt_len", "output_len"):
            bad = np.flatnonzero(getattr(self, column) < 1)
            if len(bad):
                value = int(getattr(self, column)[bad[0]])
                raise UserError(f"trace {self.name}: row {bad[0]}: {column} is {value}, must be at least 1")
        bad = np.flatnonzero(np.diff(self.arrival_ns) < 0)
        if len(bad):
            raise UserError(f"trace {self.name}: row {bad[0] + 1}: arrives before the row above it")
        bad = np.flatnonzero(self.max_tokens < self.output_len)
        if len(bad):
            raise UserError(f"trace {self.name}: row {bad[0]}: max_tokens is less than output_len")
        bad = np.flatnonzero(~self.stop & (self.max_tokens != self.output_len))
        if len(bad):
            raise UserError(f"trace {self.name}: row {bad[0]}: does not stop by itself, yet ends before max_tokens")

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @classmethod
    def from_lengths(
        cls,
        name: str,
        arrival_ns: Sequence[int] | Ints,
        prompt_len: Sequence[int] | Ints,
        output_len: Sequence[int] | Ints,
        *,
        content: Content | None = None,
        request_id: tuple[str, ...] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Trace:
        """A trace that states lengths only. Documented default: every request ends by its length cap."""
        output = np.asarray(output_len, dtype=np.int64)
        n = len(output)
        return cls(
            name=name,
            arrival_ns=np.asarray(arrival_ns, dtype=np.int64),
            prompt_len=np.asarray(prompt_len, dtype=np.int64),
            output_len=output,
            max_tokens=output.copy(),
            stop=np.zeros(n, dtype=np.bool_),
            priority=np.zeros(n, dtype=np.int64),
            request_id=request_id,
            content=content,
            notes=notes if LENGTH_CAPPED in notes else (*notes, LENGTH_CAPPED),
        )

    def take(self, rows: Ints, name: str | None = None) -> Trace:
        """The given rows (ascending), renumbered from 0."""
        picked = {
            f.name: getattr(self, f.name)[rows] for f in fields(self) if isinstance(getattr(self, f.name), np.ndarray)
        }
        ids = tuple(self.request_id[i] for i in rows.tolist()) if self.request_id else None
        content = self.content.take(rows) if self.content else None
        return replace(self, name=name or self.name, request_id=ids, content=content, **picked)

    def with_rate(self, rate: float) -> Trace:
        """The same requests with all gaps scaled so that the mean arrival rate is `rate` requests/s."""
        span = int(self.arrival_ns[-1] - self.arrival_ns[0])
        if rate <= 0:
            raise UserError(f"rate must be positive, not {rate:g}")
        if len(self) < 2 or span == 0:
            raise UserError(f"trace {self.name}: all requests arrive at once; a rate cannot be scaled")
        scale = (len(self) - 1) / rate * 1e9 / span
        if not 1 <= span * scale < 1 << 62:
            raise UserError(f"trace {self.name}: at {rate:g} requests/s arrivals would not fit into 1 ns to 146 years")
        start = self.arrival_ns[0]
        arrival = np.rint((self.arrival_ns - start) * scale).astype(np.int64)
        return replace(self, arrival_ns=arrival, notes=(*self.notes, f"arrivals scaled to {rate:g} requests/s"))
