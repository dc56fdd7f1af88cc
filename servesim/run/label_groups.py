"""Requests by label: separately for the labels with the most requests, and together for all other labels."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from servesim.metrics.requests import INPUT_WEIGHT, MS, OUTPUT_WEIGHT, SECOND, Part, RequestColumns
from servesim.metrics.streamed import StreamedPart

MOST_APART = 100
"""Maximum number of labels of one kind whose requests have figures of their own."""
Slo = Mapping[str, float]
_SUMS = ("arrived", "good", "given", "refused", "answers", "seconds")


@dataclass(frozen=True)
class LabelSums:
    """Sums over the requests of each label, for comparisons of labels; each column has one value per label."""

    columns: dict[str, NDArray[np.float64]]

    def share(self, of: str, *whole: str) -> NDArray[np.float64]:
        """Return one sum as a share of the total of others, or 0 where that total is 0."""
        total = sum((self.columns[name] for name in whole), np.zeros_like(self.columns[of]))
        return np.divide(self.columns[of], total, out=np.zeros_like(total), where=total > 0)


@dataclass(frozen=True)
class Labels:
    """Requests grouped by one kind of label."""

    parts: Mapping[str, Part]
    """Requests of each label, sorted by label; the last entry may stand for all other labels."""
    sums: LabelSums | None = None
    """Sums of every label, if some labels are grouped as others."""


def others(count: int) -> str:
    """Return the name of the group of all labels without figures of their own."""
    return f"({count:,} others)"


def group_name(label: str) -> str:
    """Return the name of a label's own group: the label, in one more pair of quotes if it looks like `others`."""
    return f'"{label}"' if re.fullmatch(r'"*\([\d,]+ others\)"*', label) else label


def counted_together(name: str) -> int | None:
    """Return how many labels are counted together under this name, or None if it is the name of a single label."""
    found = re.fullmatch(r"\(([\d,]+) others\)", name)
    return int(found[1].replace(",", "")) if found else None


def by_label(columns: RequestColumns, labels: Sequence[str], slo: Slo, kept: Collection[str] = ()) -> Labels:
    """Group requests by their labels, one per trace row; retries have the label of their row. `kept`: labels that have
    figures of their own in any case."""
    names, code = _coded([labels[row] for row in (columns.table["row"] % len(labels)).tolist()])
    counts = np.bincount(code, minlength=len(names)).tolist()
    order = sorted(range(len(names)), key=lambda i: (names[i] not in kept, -counts[i]))
    apart = sorted(order[: max(MOST_APART, len(kept))])
    parts: dict[str, Part] = {group_name(names[i]): columns.take(code == i) for i in apart}
    if len(apart) == len(names):
        return Labels(parts)
    parts[others(len(names) - len(apart))] = columns.take(~np.isin(code, apart))
    return Labels(parts, LabelSums(_sums(columns, code, len(names), slo, len(labels))))


def _coded(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts, sorted, and the position of each text among them."""
    names = sorted(set(texts))
    number = {name: i for i, name in enumerate(names)}
    return names, np.array([number[text] for text in texts], dtype=np.int64)


def _sums(
    columns: RequestColumns, code: NDArray[np.int64], count: int, slo: Slo, rows: int
) -> dict[str, NDArray[np.float64]]:
    """Return the sums of each label, as `RequestColumns.service` and `met` define them."""
    table, done = columns.table, columns.done
    request = table["row"] % rows
    failed = np.flatnonzero(~np.isin(request, request[done]))
    failed = failed[np.unique(request[failed], return_index=True)[1]]
    within = np.ones(int(done.sum()), dtype=np.bool_)
    for name, limit in slo.items():
        within &= getattr(columns, name) <= limit * MS
    given = INPUT_WEIGHT * table["prompt_len"] + OUTPUT_WEIGHT * table["output_len"]
    asked = INPUT_WEIGHT * table["prompt_len"] + OUTPUT_WEIGHT * table["max_tokens"]
    of = code[done]
    found = (
        (code, None),
        (of, within),
        (of, given[done]),
        (code[failed], asked[failed]),
        (of, None),
        (of, columns.ntpot / SECOND),
    )
    sums = [np.bincount(which, weight, count).astype(np.float64) for which, weight in found]
    return dict(zip(_SUMS, sums, strict=True))


@dataclass
class StreamedLabels:
    """Requests by label, to which records are added in pieces. The first labels to appear have figures of their own; of
    labels that appear in the same piece, those with the most requests come first."""

    parts: dict[str, StreamedPart] = field(default_factory=dict)
    _rest: StreamedPart = field(default_factory=StreamedPart)
    _number: dict[str, int] = field(default_factory=dict)
    _sums: dict[str, NDArray[np.float64]] = field(default_factory=lambda: {name: np.zeros(0) for name in _SUMS})

    def add(self, columns: RequestColumns, texts: Sequence[str], slo: Slo, slos: Mapping[str, Slo]) -> None:
        """Add records with their labels. `slos`: limits of labels that have their own."""
        names, code = _coded(texts)
        counts = np.bincount(code, minlength=len(names))
        for i in np.argsort(-counts, kind="stable").tolist():
            if names[i] not in self._number and (len(self.parts) < MOST_APART or names[i] in slos):
                self.parts[names[i]] = StreamedPart()
        apart = [i for i, name in enumerate(names) if name in self.parts]
        for i in apart:
            self.parts[names[i]].add(columns.take(np.flatnonzero(code == i)), slos.get(names[i], slo))
        if len(apart) < len(names):
            self._rest.add(columns.take(np.flatnonzero(~np.isin(code, apart))), slo)
        at = np.array([self._number.setdefault(name, len(self._number)) for name in names], dtype=np.int64)
        for name, new in _sums(columns, code, len(names), slo, 1 << 62).items():
            known = self._sums[name]
            self._sums[name] = np.concatenate([known, np.zeros(len(self._number) - len(known))])
            self._sums[name][at] += new

    def grouped(self) -> Labels:
        """Return the added requests, grouped by label."""
        parts: dict[str, Part] = {group_name(label): part for label, part in sorted(self.parts.items())}
        if len(parts) == len(self._number):
            return Labels(parts)
        parts[others(len(self._number) - len(parts))] = self._rest
        return Labels(parts, LabelSums(self._sums))
