"""Joining several traces into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from servesim.workload.trace import After, Content, Ints, Samples, Trace


def join(name: str, parts: Sequence[Trace], fresh: bool, suffixes: Sequence[str]) -> Trace:
    """Join traces into one, in time order. With `fresh`, no text is shared between parts. The names of requests,
    sessions and plays get the suffix of their part."""
    starts = np.cumsum([0] + [len(part) for part in parts])

    def column(field: str) -> Any:
        return np.concatenate([getattr(part, field) for part in parts])

    columns = {f: column(f) for f in ("prompt_len", "output_len", "max_tokens", "stop", "priority")}
    joined = Trace(
        name=name,
        arrival_ns=np.zeros(starts[-1], dtype=np.int64),
        **columns,
        request_id=_names([part.request_id for part in parts], suffixes),
        content=_content(parts, starts, fresh),
        after=_after(parts, starts),
        cancel_ns=_optional([part.cancel_ns for part in parts], parts),
        samples=_samples(parts),
        labels=_labels(parts, suffixes),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )
    return joined.at(column("arrival_ns"))


def _content(parts: Sequence[Trace], starts: Ints, fresh: bool) -> Content | None:
    known = [part.content for part in parts]
    if all(content is None for content in known):
        return None
    free = 1 + max(int(content.ids.max(initial=0)) for content in known if content is not None)
    ids, lengths, counts = [], [], []
    for i, part in enumerate(parts):
        content = part.content
        if content is None:  # separate texts
            alone = free * len(parts) + starts[i] + np.arange(len(part))
            content = Content(np.arange(len(part) + 1), alone, part.prompt_len)
        own = part.content is not None and fresh
        ids.append(np.where(content.ids < 0, content.ids - starts[i], content.ids + (free * i if own else 0)))
        lengths.append(content.lengths)
        counts.append(np.diff(content.offsets))
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(counts)))).astype(np.int64)
    return Content(offsets, np.concatenate(ids).astype(np.int64), np.concatenate(lengths))


def _after(parts: Sequence[Trace], starts: Ints) -> After | None:
    if all(part.after is None for part in parts):
        return None
    none = np.empty(0, dtype=np.int64)
    edges = [part.after or After(np.zeros(len(part) + 1, dtype=np.int64), none, none, none, none) for part in parts]
    counts = np.concatenate([np.diff(after.offsets) for after in edges])
    rows = np.concatenate([after.rows + start for after, start in zip(edges, starts, strict=False)])
    rest = [np.concatenate([getattr(e, name) for e in edges]) for name in ("triggers", "delays_ns", "relations")]
    return After(np.concatenate(([0], np.cumsum(counts))).astype(np.int64), rows, *rest)


def _samples(parts: Sequence[Trace]) -> Samples | None:
    lengths = [part.samples.output_len for part in parts if part.samples is not None]
    return Samples.of(np.concatenate([part.n - 1 for part in parts]), np.concatenate(lengths)) if lengths else None


def _names(ids: Sequence[tuple[str, ...] | None], suffixes: Sequence[str]) -> tuple[str, ...] | None:
    if any(part is None for part in ids):
        return None
    return tuple(f"{name}{suffix}" for part, suffix in zip(ids, suffixes, strict=True) for name in part or ())


def _labels(parts: Sequence[Trace], suffixes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Join labels. Sessions and plays of different parts are kept distinct; classes, tenants and models with the same
    name are taken to be the same in all parts."""
    labels = {}
    for name in dict.fromkeys(name for part in parts for name in part.labels):
        column: list[str] = []
        for part, suffix in zip(parts, suffixes, strict=True):
            own = suffix if name in ("session", "play") else ""
            column += [text + own if text else "" for text in part.labels.get(name, ("",) * len(part))]
        labels[name] = tuple(column)
    return labels


def _optional(columns: Sequence[Ints | None], parts: Sequence[Trace]) -> Ints | None:
    if all(column is None for column in columns):
        return None
    never = [np.full(len(part), -1, dtype=np.int64) for part in parts]
    return np.concatenate([absent if c is None else c for c, absent in zip(columns, never, strict=True)])
