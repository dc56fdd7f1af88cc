"""Runs of steps with drafts, kept as they are computed and turned into rows many runs at a time.

Most runs are a dozen steps long, so that calls of numpy for each run would cost more than their work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Split
from servesim.records.columns import LATE_COLUMNS, STEP_COLUMNS, Rows

_AT = {name: i for i, name in enumerate(STEP_COLUMNS)}
_SOURCES = slice(_AT["measured_ns"], _AT["roofline_ns"] + 1)


class StepRun:
    """`count` successive steps that verify the same number of drafts of the same requests. Step j, from 0, is planned
    at `times[j]`, begins at `times[depth + j - 1]` and ends at `times[depth + j]`."""

    __slots__ = (
        "allocated", "cells", "contexts", "copies", "count", "depth", "freed", "gpu", "split", "times",
    )  # fmt: skip

    def __init__(
        self,
        cells: tuple[int, ...],
        count: int,
        times: Rows,
        depth: int,
        contexts: Rows,
        gpu: Rows,
        split: Split | Rows,
        copies: int,
        allocated: list[tuple[int, int]],
        freed: list[tuple[int, int]],
    ) -> None:
        self.cells = cells
        """Row of the step before them."""
        self.count, self.times, self.depth = count, times, depth
        self.contexts = contexts
        """Sums of contexts of the steps, and of `depth` more."""
        self.gpu = gpu
        self.split = split
        """Sources of the GPU times, or an array of shape (steps, 4)."""
        self.copies = copies
        """Number of times that memory counts a token."""
        self.allocated, self.freed = allocated, freed
        """(step from 1, tokens): memory taken when a step was planned, and tokens freed then after use."""


def step_rows(runs: Sequence[StepRun]) -> tuple[Rows, list[int]]:
    """Return the rows of the step table for these runs, and the number of rows of each."""
    counts = [run.count for run in runs]
    starts = [0, *accumulate(counts)][:-1]
    rows: Rows = np.repeat(np.array([run.cells for run in runs], dtype=np.int64), counts, axis=0)
    total = len(rows)
    begins, ends, planned, contexts, gpu = (np.empty(total, dtype=np.int64) for _ in range(5))
    before = np.empty(total, dtype=np.int64)  # contexts one commit before `after`
    after = np.empty(total, dtype=np.int64)
    for run, first, count in zip(runs, starts, counts, strict=True):
        last, depth, times, sums = first + count, run.depth, run.times, run.contexts
        planned[first:last] = times[:count]
        begins[first:last] = times[depth - 1 : depth - 1 + count]
        ends[first:last] = times[depth : depth + count]
        contexts[first:last] = sums[:count]
        before[first:last] = sums[depth - 1 : depth - 1 + count]
        after[first:last] = sums[depth : depth + count]
        gpu[first:last] = run.gpu[:count]
    each = np.repeat(np.array(starts, dtype=np.int64), counts)
    peak = rows[:, _AT["kv_used"]] + rows[:, _AT["kv_internal"]]
    peak += _running([run.allocated for run in runs], starts, counts, each)
    filled = (contexts - rows[:, _AT["decode_context"]]) * np.repeat([run.copies for run in runs], counts)
    used = rows[:, _AT["kv_used"]] + filled - _running([run.freed for run in runs], starts, counts, each)
    rows[:, _AT["step"]] += np.arange(1, total + 1) - each
    rows[:, _AT["accepted"]] = after - before - rows[:, _AT["sampled"]]
    ns, internal = ends - begins, peak - used
    for name, column in (
        ("planned_ns", planned), ("start_ns", begins), ("end_ns", ends), ("elapsed_ns", ns),
        ("decode_context", contexts), ("gpu_ns", gpu), ("kv_used", used), ("kv_internal", internal),
        ("kv_peak", peak), ("kv_used_ns", used * ns), ("kv_internal_ns", internal * ns),
    ):  # fmt: skip
        rows[:, _AT[name]] = column
    rows[:, _SOURCES] = _sources(runs, starts, counts, gpu)
    return rows, counts


def _running(
    changes: Sequence[list[tuple[int, int]]], starts: Sequence[int], counts: Sequence[int], each: Rows
) -> Rows:
    """Return the sums of the (step from 1, change) pairs of each run up to each of its steps."""
    found = np.zeros(len(each) + 1, dtype=np.int64)
    at, by = [], []
    for pairs, first, count in zip(changes, starts, counts, strict=True):
        for step, change in pairs:
            if step <= count:
                at.append(first + step)
                by.append(change)
    if at:
        found[at] = by
        np.add.accumulate(found, out=found)
    return found[1:] - found[each]


def _sources(runs: Sequence[StepRun], starts: Sequence[int], counts: Sequence[int], gpu: Rows) -> Rows:
    """Return the GPU times by source, of shape (steps, 4)."""
    splits = [run.split if isinstance(run.split, Split) else _NONE for run in runs]
    found: Rows = np.repeat(np.array([split.fixed for split in splits], dtype=np.int64), counts, axis=0)
    rest = gpu - np.repeat([split.less for split in splits], counts)
    found[np.arange(len(gpu)), np.repeat([split.source for split in splits], counts)] += rest
    for run, first, count in zip(runs, starts, counts, strict=True):
        if not isinstance(run.split, Split):
            found[first : first + count] = run.split[:count]
    return found


_NONE = Split((0, 0, 0, 0), 0, 0)


class LateRun:
    """Deliveries of successive steps, ending at `ends`, to the requests at `rows`; `gains` are the tokens of the first
    request in each step, then those of the next one. All got their previous tokens at `before`."""

    __slots__ = ("before", "ends", "gains", "rows")

    def __init__(self, rows: list[int], gains: bytes, ends: Rows, before: int) -> None:
        self.rows, self.gains, self.ends, self.before = rows, gains, ends, before


def late_rows(runs: Sequence[LateRun]) -> tuple[Rows, list[int]]:
    """Return the rows of the table of irregular deliveries, which have more than one token, and the number of rows of
    each run: step by step, and within a step in the order of the requests."""
    sizes = [len(run.gains) for run in runs]
    across, along = [len(run.rows) for run in runs], [len(run.ends) for run in runs]
    gains = np.frombuffer(b"".join([run.gains for run in runs]), dtype=np.uint8)
    first = np.repeat([0, *accumulate(sizes)][:-1], sizes)
    step, which = np.divmod(np.arange(len(gains)) - first, np.repeat(across, sizes))
    tokens: NDArray[np.uint8] = gains[first + which * np.repeat(along, sizes) + step]
    kept = tokens > 1
    ends = np.concatenate([run.ends for run in runs])
    since = np.empty_like(ends)
    since[1:] = ends[:-1]
    begins = [0, *accumulate(along)][:-1]
    since[begins] = [run.before for run in runs]
    step = (step + np.repeat(begins, sizes))[kept]
    which = (which + np.repeat([0, *accumulate(across)][:-1], sizes))[kept]
    rows = np.empty((len(step), len(LATE_COLUMNS)), dtype=np.int64)
    rows[:, 0] = np.array([row for run in runs for row in run.rows], dtype=np.int64)[which]
    rows[:, 1], rows[:, 2], rows[:, 3] = ends[step], since[step], tokens[kept]
    counts: list[int] = np.add.reduceat(kept, [0, *accumulate(sizes)][:-1], dtype=np.int64).tolist()
    return rows, counts
