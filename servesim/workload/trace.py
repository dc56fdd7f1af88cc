"""A request trace as columns: arrival times, lengths, and prompt content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.request import LAST
from servesim.errors import UserError

Ints = NDArray[np.int64]

LENGTH_CAPPED = "the trace has no finish reasons: every request ends at its length cap"
LABELS = ("session", "play", "tenant", "class", "model")
"""Labels of rows; a session is a conversation, and a play is all the requests of an agent and its sub-agents."""
DISPATCH, COMPLETION = 0, 1
"""Triggers of a dependency: the earlier request was sent, or its client learned that it ended."""
TRIGGERS = ("dispatch", "completion")
RELATIONS = ("sequence", "spawn", "join", "replay_barrier")
"""Meanings of a dependency, for human readers; the engine uses only the triggers."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of prompts without their tokens: each prompt is a sequence of (content id, length) runs.

    The runs of row r are `ids[offsets[r]:offsets[r+1]]`, with the corresponding `lengths`, which add up to the row's
    prompt_len. Two prompts share a prefix exactly as far as their runs agree, because token j of a run with id c is the
    same token wherever (c, j) occurs.
    """

    offsets: Ints  # n + 1
    ids: Ints
    lengths: Ints

    def runs(self, row: int) -> list[tuple[int, int]]:
        """Return the (content id, length) runs of one row."""
        a, b = int(self.offsets[row]), int(self.offsets[row + 1])
        return list(zip(self.ids[a:b].tolist(), self.lengths[a:b].tolist(), strict=True))

    def take(self, rows: Ints) -> Content:
        """Return the content of the given rows, in that order. The output of row r is the content -(r + 1), which is
        renumbered along with the row; the output of a dropped row becomes ordinary content."""
        offsets, index = _pick(self.offsets, rows)
        ids = self.ids[index]
        said = np.flatnonzero(ids < 0)
        if len(said):
            new = _renumbered(len(self.offsets) - 1, rows)[-ids[said] - 1]
            free = int(self.ids.max(initial=0)) + 1
            ids[said] = np.where(new >= 0, -new - 1, free - ids[said])
        return Content(offsets, ids, self.lengths[index])


@dataclass(frozen=True, slots=True)
class After:
    """Dependencies between requests. Edge e of row r, with e in offsets[r]:offsets[r+1], means that row r is sent no
    earlier than `delays_ns[e]` after the trigger of row `rows[e]`. A row is sent as soon as all its edges and its
    arrival_ns allow."""

    offsets: Ints  # n + 1
    rows: Ints
    triggers: Ints  # DISPATCH or COMPLETION
    delays_ns: Ints  # >= 0
    relations: Ints  # index into RELATIONS

    @classmethod
    def of(cls, edges: Sequence[Sequence[tuple[int, int, int, int]]]) -> After | None:
        """Build the edges from each row's (row, trigger, delay in ns, relation); return None if no row waits."""
        flat = np.array([edge for row in edges for edge in row], dtype=np.int64).reshape(-1, 4)
        offsets = np.concatenate(([0], np.cumsum([len(row) for row in edges]))).astype(np.int64)
        return cls(offsets, *(np.ascontiguousarray(flat[:, i]) for i in range(4))) if len(flat) else None

    def edges(self, row: int) -> list[tuple[int, int, int, int]]:
        """Return the (row, trigger, delay in ns, relation) edges of one row."""
        a, b = int(self.offsets[row]), int(self.offsets[row + 1])
        columns = (self.rows, self.triggers, self.delays_ns, self.relations)
        return list(zip(*(column[a:b].tolist() for column in columns), strict=True))

    def take(self, rows: Ints) -> After:
        """Return the edges between the given rows, renumbered in that order; edges from dropped rows are removed."""
        offsets, index = _pick(self.offsets, rows)
        source = _renumbered(len(self.offsets) - 1, rows)[self.rows[index]]
        kept = source >= 0
        before = np.concatenate(([0], np.cumsum(kept))).astype(np.int64)
        columns = (self.triggers, self.delays_ns, self.relations)
        return After(before[offsets], source[kept], *(column[index][kept] for column in columns))


@dataclass(frozen=True, slots=True)
class Samples:
    """Further answers to the same prompt (parallel sampling, n > 1), whose lengths are
    output_len[offsets[r]:offsets[r+1]] for row r. The length of the first answer is the row's own output_len, and later
    turns quote the first answer."""

    offsets: Ints  # rows + 1
    output_len: Ints  # tokens, >= 1

    @classmethod
    def of(cls, counts: Ints, output_len: Ints) -> Samples | None:
        """Build from the number of further answers per row; return None if there are none."""
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return cls(offsets, output_len) if len(output_len) else None

    @property
    def rows(self) -> Ints:
        """Row of each further answer."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def lengths(self, row: int) -> list[int]:
        """Return the token counts of the further answers of one row."""
        lengths: list[int] = self.output_len[self.offsets[row] : self.offsets[row + 1]].tolist()
        return lengths

    def take(self, rows: Ints) -> Samples | None:
        """Return the further answers of the given rows, in that order, or None if there are none."""
        offsets, index = _pick(self.offsets, rows)
        return Samples(offsets, self.output_len[index]) if len(index) else None


def _pick(offsets: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the new offsets of the given rows' elements when these are laid out contiguously, and the elements' old
    indices."""
    counts = offsets[rows + 1] - offsets[rows]
    new = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return new, np.repeat(offsets[rows] - new[:-1], counts) + np.arange(new[-1])


def _renumbered(count: int, rows: Ints) -> Ints:
    """Return the new number of each old row, or -1 if it is not in `rows`."""
    new = np.full(count, -1, dtype=np.int64)
    new[rows] = np.arange(len(rows))
    return new


@dataclass(frozen=True, slots=True)
class Trace:
    """Columns of n requests, in order of arrival. The row index identifies a request everywhere.

    `output_len` is the true length, which only the engine and declared oracles may see; a server receives `max_tokens`.
    `stop` records how a request ends: by a stop token after `output_len` tokens, or at the cap.
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
    after: After | None = None  # rows that wait for others: conversations and agents
    cancel_ns: Ints | None = None  # delay from sending to client cancel; -1: never
    samples: Samples | None = None  # further answers to the same prompt; each ends by a stop token or at the cap
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by label: one string per row ("": none)
    notes: tuple[str, ...] = field(default=())  # defaults and transformations applied, as shown in the result

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
                raise UserError(f"trace {self.name}: row {bad[0]}: {column} is {value} but must be at least 1")
        bad = np.flatnonzero(np.diff(self.arrival_ns) < 0)
        if len(bad):
            raise UserError(f"trace {self.name}: row {bad[0] + 1}: arrives before the row above it")
        bad = np.flatnonzero(self.max_tokens < self.output_len)
        if len(bad):
            raise UserError(f"trace {self.name}: row {bad[0]}: max_tokens is less than output_len")
        bad = np.flatnonzero(~self.stop & (self.max_tokens != self.output_len))
        if len(bad):
            raise UserError(f"trace {self.name}: row {bad[0]}: 'stop' is false, but output_len is less than max_tokens")
        for name, values in self.labels.items():
            if name not in LABELS or len(values) != n:
                raise UserError(
                    f"trace {self.name}: there are {len(values)} labels {name!r}, but there must be {n}, of one of the "
                    f"kinds {', '.join(LABELS)}"
                )
        if self.after is not None:
            check_after(self.name, self.after, n)
            check_pauses(self.name, self.arrival_ns, self.after)
        if self.samples is not None:
            check_samples(self.name, self.samples, self.max_tokens)

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def n(self) -> Ints:
        """Number of answers that each row requests."""
        further = np.diff(self.samples.offsets) if self.samples is not None else 0
        return np.ones(len(self), dtype=np.int64) + further

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
        after: After | None = None,
        labels: Mapping[str, tuple[str, ...]] | None = None,
        priority: Ints | None = None,
        samples: Samples | None = None,
        notes: tuple[str, ...] = (),
    ) -> Trace:
        """Build a trace from lengths alone. By default (as documented), every request ends at its length cap; of
        several answers to one prompt, the longest ends at the cap and the others end by a stop token."""
        output = np.asarray(output_len, dtype=np.int64)
        n = len(output)
        cap = output.copy()
        if samples is not None:
            np.maximum.at(cap, samples.rows, samples.output_len)
        return cls(
            name=name,
            arrival_ns=np.asarray(arrival_ns, dtype=np.int64),
            prompt_len=np.asarray(prompt_len, dtype=np.int64),
            output_len=output,
            max_tokens=cap,
            stop=cap > output,
            priority=np.zeros(n, dtype=np.int64) if priority is None else priority,
            request_id=request_id,
            content=content,
            after=after,
            samples=samples,
            labels=labels or {},
            notes=notes if LENGTH_CAPPED in notes else (*notes, LENGTH_CAPPED),
        )

    def take(self, rows: Ints, name: str | None = None) -> Trace:
        """Return the given rows (ascending by arrival), renumbered from 0."""
        columns = {f.name: take_rows(getattr(self, f.name), rows) for f in fields(self) if f.name not in _WHOLE}
        return replace(self, name=name or self.name, **columns)

    def at(self, arrival_ns: Ints) -> Trace:
        """Return the same requests with other arrival times, in order of those times."""
        order = np.argsort(arrival_ns, kind="stable")
        moved = replace(self, arrival_ns=np.zeros_like(arrival_ns))
        if (np.diff(order) != 1).any():
            moved = moved.take(order)
        return replace(moved, arrival_ns=arrival_ns[order])

    def plays(self) -> Ints:
        """Return each row's play, numbered in order of first rows. A play consists of all rows that are linked by
        dependencies or share a `play` label (or, without such labels, a `session` label)."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        n = len(self)
        ends = [np.empty((2, 0), dtype=np.int64)]
        if self.after is not None:
            ends.append(np.stack([self.after.rows, np.repeat(np.arange(n), np.diff(self.after.offsets))]))
        first: dict[str, int] = {}
        names = self.labels.get("play") or self.labels.get("session") or ()
        same = [(first.setdefault(name, row), row) for row, name in enumerate(names) if name]
        ends.append(np.array(same, dtype=np.int64).reshape(-1, 2).T)
        source, target = np.concatenate(ends, axis=1)
        _, number = connected_components(coo_array((np.ones(len(source)), (source, target)), shape=(n, n)), False)
        _, where, play = np.unique(number, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(where))[play].astype(np.int64)

    def with_rate(self, rate: float, span: tuple[int, int, int] | None = None) -> Trace:
        """Return the same requests with all gaps scaled so that the mean arrival rate is `rate` requests/s; with `inf`,
        all arrive at the same time. If this trace is part of a larger one, `span` holds the request count, first
        arrival, and last arrival of the whole trace."""
        count, start, end = span or (len(self), int(self.arrival_ns[0]), int(self.arrival_ns[-1]))
        if rate == float("inf"):
            note = "rate inf: every request that does not wait for another arrives at the start"
            return replace(self, arrival_ns=np.zeros_like(self.arrival_ns), notes=(*self.notes, note))
        if rate <= 0:
            raise UserError(f"rate must be positive, not {rate:g}")
        if count < 2 or end == start:
            raise UserError(f"trace {self.name}: all requests arrive at once, so the rate cannot be scaled")
        scale = (count - 1) / rate * 1e9 / (end - start)
        if not 1 <= (end - start) * scale < 1 << 62:
            raise UserError(
                f"trace {self.name}: at {rate:g} requests/s, arrivals would span less than 1 ns or more than 146 years"
            )
        arrival = np.rint((self.arrival_ns - start) * scale).astype(np.int64)
        return replace(self, arrival_ns=arrival, notes=(*self.notes, f"arrivals scaled to {rate:g} requests/s"))

    def faster(self, factor: float, start: int | None = None) -> Trace:
        """Return the same requests with all gaps divided by `factor`. If this trace is part of a larger one, `start` is
        the first arrival of the whole trace."""
        start = int(self.arrival_ns[0]) if start is None else start
        if not (int(self.arrival_ns[-1]) - start) / factor < 1 << 62:
            raise UserError(
                f"trace {self.name}: at {factor:g} times the speed, arrivals would span more than 146 years"
            )
        arrival = np.rint((self.arrival_ns - start) / factor).astype(np.int64)
        return replace(self, arrival_ns=arrival, notes=(*self.notes, f"arrivals {factor:g} times as fast as recorded"))


_WHOLE = ("name", "notes")  # fields of Trace that are not per row


def take_rows(column: Any, rows: Ints) -> Any:
    """Return one column of a Trace at the given rows, in that order."""
    if column is None:
        return None
    if isinstance(column, np.ndarray):
        return column[rows]
    if isinstance(column, Content | After | Samples):
        return column.take(rows)
    if isinstance(column, Mapping):
        return {name: take_rows(values, rows) for name, values in column.items()}
    return tuple([column[i] for i in rows.tolist()])


def check_samples(name: str, samples: Samples, max_tokens: Ints) -> None:
    """Raise UserError if an answer has no tokens or more tokens than its request allows."""
    if len(samples.offsets) != len(max_tokens) + 1 or samples.offsets[-1] != len(samples.output_len):
        raise UserError(f"trace {name}: samples cover {len(samples.offsets) - 1} rows but must cover {len(max_tokens)}")
    rows = samples.rows
    bad = np.flatnonzero((samples.output_len < 1) | (samples.output_len > max_tokens[rows]))
    if len(bad):
        row, tokens = int(rows[bad[0]]), int(samples.output_len[bad[0]])
        raise UserError(
            f"trace {name}: row {row}: a sample has {tokens} tokens but must have from 1 to the row's max_tokens"
        )


def check_after(name: str, after: After, n: int) -> None:
    """Raise UserError if a row waits for a nonexistent row or with a negative delay, or if rows wait for each other in
    a cycle."""
    if len(after.rows) and not (after.rows.min() >= 0 and after.rows.max() < n and after.delays_ns.min() >= 0):
        raise UserError(f"trace {name}: a request waits for a missing row, or for a negative time")
    waiters = np.repeat(np.arange(n), np.diff(after.offsets))
    if (after.rows < waiters).all():
        return
    blocked = np.diff(after.offsets)
    followers: dict[int, list[int]] = {}
    for source, waiter in zip(after.rows.tolist(), waiters.tolist(), strict=True):
        followers.setdefault(source, []).append(waiter)
    free = np.flatnonzero(blocked == 0).tolist()
    count = len(free)
    while free:
        for waiter in followers.get(free.pop(), ()):
            blocked[waiter] -= 1
            if blocked[waiter] == 0:
                free.append(waiter)
                count += 1
    if count < n:
        raise UserError(f"trace {name}: row {int(np.flatnonzero(blocked)[0])}: waits for itself in a cycle")


def check_pauses(name: str, arrival_ns: Ints, after: After) -> None:
    """Raise UserError if delays between requests add up beyond the range of times, less two years for serving them."""
    latest = LAST - (1 << 56)
    if not len(after.rows) or float(arrival_ns[-1]) + float(after.delays_ns.sum(dtype=np.float64)) < latest:
        return
    ready: list[int] = []
    for row, arrival in enumerate(arrival_ns.tolist()):
        edges = [(source, delay) for source, _, delay, _ in after.edges(row)]
        ready.append(max([arrival, *(delay + (ready[source] if source < row else 0) for source, delay in edges)]))
        if ready[-1] >= latest:
            raise UserError(
                f"trace {name}: row {row} waits for more than 140 years, which is longer than the longest run"
            )
