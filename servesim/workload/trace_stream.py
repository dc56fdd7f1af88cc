"""Traces larger than memory: chunks that can be read repeatedly, and facts about a whole trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from servesim.errors import UserError
from servesim.workload.trace import Trace
from servesim.workload.trace_digest import TraceDigest

CHUNK = 1 << 16
"""Approximate number of requests in memory at any time."""


@dataclass(frozen=True)
class TraceStream:
    """A trace as successive chunks. Each chunk is a Trace whose rows follow those of the previous chunk. Content ids
    and labels have the same meaning in all chunks, and no row waits for another."""

    name: str
    read: Callable[[], Iterator[Trace]]
    """Function that returns an iterator over the chunks, from the first, on each call."""

    @classmethod
    def of(cls, trace: Trace, chunk: int | None = None) -> TraceStream:
        """Split an in-memory trace into a stream."""
        if trace.after is not None:
            raise waits(trace.name)

        def read() -> Iterator[Trace]:
            size = chunk or CHUNK
            for first in range(0, len(trace), size):
                yield trace.take(np.arange(first, min(first + size, len(trace))))

        return cls(trace.name, read)

    def cut(self, skip: int, requests: int | None) -> TraceStream:
        """Return the stream without its first `skip` requests and, if `requests` is set, with at most that many of the
        rest."""

        def read() -> Iterator[Trace]:
            first, end = skip, None if requests is None else skip + requests
            for chunk in self.read():
                stop = len(chunk) if end is None else min(end, len(chunk))
                if first < stop:
                    yield chunk if stop - first == len(chunk) else chunk.take(np.arange(first, stop))
                first = max(first - len(chunk), 0)
                if end is not None:
                    end -= len(chunk)
                    if end <= 0:
                        return

        return replace(self, read=read) if skip or requests is not None else self

    def with_rate(self, rate: float) -> TraceStream:
        """Scale gaps as Trace.with_rate does, after reading the whole stream once to find its span."""
        count = first = last = 0
        for chunk in self.read():
            first = first if count else int(chunk.arrival_ns[0])
            count, last = count + len(chunk), int(chunk.arrival_ns[-1])
        span = (count, first, last)
        return replace(self, read=lambda: (chunk.with_rate(rate, span) for chunk in self.read()))

    def faster(self, factor: float) -> TraceStream:
        """Scale gaps as Trace.faster does."""
        start = next((int(chunk.arrival_ns[0]) for chunk in self.read()), 0)
        return replace(self, read=lambda: (chunk.faster(factor, start) for chunk in self.read()))


def waits(name: str) -> UserError:
    """Return the error for a trace that cannot be split into chunks."""
    return UserError(
        f"trace {name}: requests wait for others (conversations or agents), which a streamed run does not support. "
        "Run it without --stream."
    )


@dataclass(frozen=True)
class TraceFacts:
    """Facts about a whole trace that a run needs."""

    name: str
    requests: int
    notes: tuple[str, ...]
    first_ns: int
    last_ns: int
    """Times of the first and the last arrival."""
    longest_prompt: int
    longest_output: int
    blocks: int
    """Number of KV blocks that all requests together would fill at their length caps."""
    one_priority: bool
    at_caps: bool
    """Whether every request's output is as long as its cap."""
    has_content: bool
    samples: bool
    """Whether requests ask for several samples (n > 1)."""
    labels: tuple[str, ...]
    """Kinds of labels that the rows have."""
    classes: frozenset[str]
    models: Mapping[str, int]
    """Number of requests for each model, among requests that name one."""
    sha256: str

    def __len__(self) -> int:
        return self.requests

    @classmethod
    def of(cls, trace: Trace | TraceStream, block_size: int) -> TraceFacts:
        """Read a stream once. Raise UserError if it is empty, if its arrival times decrease, or if some chunks have
        content or labels that others lack."""
        chunks: Iterable[Trace] = (trace,) if isinstance(trace, Trace) else trace.read()
        digest, notes, at_caps = TraceDigest(), dict[str, None](), True
        samples = False
        models = Counter[str]()
        classes, priorities, kinds = set[str](), set[int](), set[tuple[bool, tuple[str, ...]]]()
        count = blocks = prompt = output = first = last = 0
        for chunk in chunks:
            if count and chunk.arrival_ns[0] < last:
                raise UserError(f"trace {trace.name}: row {count}: arrives before the row above it")
            first, last = (first if count else int(chunk.arrival_ns[0])), int(chunk.arrival_ns[-1])
            count += len(chunk)
            samples = samples or chunk.samples is not None
            digest.add(chunk)
            notes.update(dict.fromkeys(chunk.notes))
            kinds.add((chunk.content is not None, tuple(sorted(chunk.labels))))
            classes.update(chunk.labels.get("class", ()))
            models.update(filter(None, chunk.labels.get("model", ())))
            priorities.update((int(chunk.priority.min()), int(chunk.priority.max())))
            at_caps = at_caps and np.array_equal(chunk.max_tokens, chunk.output_len)
            prompt, output = max(prompt, int(chunk.prompt_len.max())), max(output, int(chunk.output_len.max()))
            blocks += int((-(-(chunk.prompt_len + chunk.max_tokens) // block_size)).sum())
        if not count:
            raise UserError(f"trace {trace.name}: no requests")
        if len(kinds) > 1:
            raise UserError(f"trace {trace.name}: some chunks have content or labels that others lack")
        has_content, labels = kinds.pop()
        return cls(
            name=trace.name,
            requests=count,
            notes=tuple(notes),
            first_ns=first,
            last_ns=last,
            longest_prompt=prompt,
            longest_output=output,
            blocks=blocks,
            one_priority=len(priorities) == 1,
            at_caps=at_caps,
            has_content=has_content,
            samples=samples,
            labels=labels,
            classes=frozenset(classes),
            models=dict(sorted(models.items())),
            sha256=digest.hexdigest(),
        )
