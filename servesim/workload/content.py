"""Prompts represented as content runs, which identify shared prefixes without storing any tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable
from itertools import count, pairwise

import numpy as np

from servesim.workload.trace import Content

MODULUS = (1 << 61) - 1
BASE = 0x1E3779B97F4A7C15
"""Prime modulus and base of the polynomial that numbers sequences of content runs (Karp & Rabin, 1987). For a random
base, two sequences of up to r runs get the same number with a chance below 2r / 2^61; real routers, too, know blocks
by 64 bits of a hash (KV events of vLLM 0.33 and SGLang 0.5.23)."""


def joined(content: Content) -> Content:
    """Return the same prompts in fewer runs: two successive runs are merged under the first run's id if every prompt
    that continues after the first run continues with the second run, and no prompt contains the first run at a greater
    length. The output of a row remains a separate run wherever it appears."""
    offsets, ids, lengths = content.offsets, content.ids, content.lengths
    if not len(ids):
        return content
    heads = offsets[:-1][np.diff(offsets) > 0]
    before = np.concatenate(([0], lengths[:-1]))  # token count of the same prompt's previous run
    before[heads] = 0
    names, name = np.unique(ids, return_inverse=True)
    _, length = np.unique(before, return_inverse=True)
    steps = (length * len(names) + name).tolist()
    width = max(steps) + 1
    numbers = defaultdict[int, int](count(1).__next__)  # (a prefix and its next run) -> the resulting prefix
    prefixes: list[int] = []
    rows = offsets.tolist()
    for first, last in pairwise(rows):
        prefix = 0
        for step in steps[first:last]:
            prefix = numbers[prefix * width + step]
            prefixes.append(prefix)
    parents = np.array([0, *prefixes[:-1]], dtype=np.int64)
    parents[heads] = 0
    parent_of = np.zeros(len(numbers) + 1, dtype=np.int64)
    parent_of[prefixes] = parents
    children = np.bincount(parent_of[1:], minlength=len(numbers) + 1)
    text = (ids >= 0) & (np.concatenate(([0], ids[:-1])) >= 0)
    longest = np.zeros(len(numbers) + 1, dtype=np.int64)
    np.maximum.at(longest, prefixes, lengths)
    starts = (parents == 0) | (children[parents] > 1) | (before < longest[parents]) | ~text
    kept = np.flatnonzero(starts)
    ends = np.concatenate(([0], np.cumsum(starts)))
    return Content(ends[offsets], ids[kept], np.add.reduceat(lengths, kept))


class RunContent:
    """A prompt as (content id, length) runs, followed by the request's own output.

    A prefix is identified by the sequence of runs up to the one it ends in, and by its length within that run, so one
    number per run serves all block sizes. A number follows from the runs alone, so none is remembered. The output of
    row r is the content -(r + 1) wherever it appears, including inside a later prompt.

    `told` gives the prompt's original runs in the trace, as (content of all rows, index), if `runs` may have been
    merged.
    """

    __slots__ = ("_ends", "_index", "_row", "_runs", "_sequence", "_told")

    def __init__(self, row: int, runs: list[tuple[int, int]], told: tuple[Content, int] | None = None) -> None:
        self._row = row
        self._runs = runs
        self._told = told
        self._ends: list[int] = []  # token at which run i ends
        self._sequence: list[int] = []  # number of the sequence of runs 0..i
        self._index = 0  # run of the last lookup, since lookups mostly ascend

    def prefix_key(self, stop: int) -> Hashable:
        """Return the key of a prefix; see PrefixIdentity."""
        i = self._index
        ends = self._ends
        if i and stop <= ends[i - 1]:
            i = 0
        while i >= len(ends) or ends[i] < stop:
            if i >= len(ends):
                self._open(i)
            else:
                i += 1
        self._index = i
        start = ends[i - 1] if i else 0
        return (self._sequence[i] << 32) | (stop - start)

    def fingerprint(self, stop: int) -> str:
        """Return the fingerprint of a prefix; see PromptContent."""
        runs = self._runs if self._told is None else self._told[0].runs(self._told[1])
        parts: list[str] = []
        for content, length in [*runs, (-self._row - 1, 1 << 31)]:
            parts.append(f"{content}:{min(length, stop)}")
            stop -= length
            if stop <= 0:
                break
        return " ".join(parts)

    def prefix_keys(self, stops: range) -> list[int]:
        """Return the `prefix_key` of each of the stops, which must ascend."""
        keys: list[int] = []
        stop, step = stops.start, stops.step
        while stop < stops.stop:
            self.prefix_key(stop)  # sets _index to the stop's run
            i = self._index
            base = (self._sequence[i] << 32) - (self._ends[i - 1] if i else 0)
            within = range(base + stop, base + min(stops.stop, self._ends[i] + 1), step)
            keys += within
            stop += len(within) * step
        return keys

    def block_runs(self, start: int, stop: int, size: int, lookahead: int = 0) -> list[tuple[int, int]]:
        """Return blocks `start` to `stop`, of `size` tokens each, grouped by the sequence of runs in which they end (or
        in which the token `lookahead` tokens later lies): for each group, the number of that sequence and the first
        block after the group. Two prompts are equal up to the end of a block exactly when their numbers for it are
        equal."""
        runs: list[tuple[int, int]] = []
        ends = self._ends
        i = bisect_left(ends, (start + 1) * size + lookahead)
        while start < stop:
            end = (start + 1) * size + lookahead
            while i >= len(ends) or ends[i] < end:
                if i >= len(ends):
                    self._open(i)
                else:
                    i += 1
            start = min((ends[i] - lookahead) // size, stop)
            runs.append((self._sequence[i], start))
        return runs

    def _open(self, i: int) -> None:
        """Assign a number to the sequence that ends with run i (the run after the prompt is the unbounded output)."""
        content, length = self._runs[i] if i < len(self._runs) else (-self._row - 1, 1 << 31)
        before, before_length = (self._sequence[i - 1], self._runs[i - 1][1]) if i else (0, 0)
        self._sequence.append(((before * BASE + before_length + 1) * BASE + content) % MODULUS)
        self._ends.append((self._ends[i - 1] if i else 0) + length)
