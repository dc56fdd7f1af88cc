"""Grids of attention curves by number of sequences, built from the rows of a table at the model's head counts."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED, Curve
from servesim.cost.curves import blend, rise, without_spikes
from servesim.cost.gaps import Lines, missing
from servesim.cost.tables import KernelTables

TOKEN_WORK = 256.0
"""Fixed work of a new token (its query, output, and tile edges), in equivalent query-key pairs. With it, the times of
short and long prompts lie on nearly straight lines; among values from 0 to 1024, this one gave the smallest median
error on held-out points of the A100 table, and close to the smallest on H100."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Attention heads on one GPU, after tensor parallelism."""

    heads: int
    kv_heads: int
    head_dim: int


def work(new: float, past: float, window: int = 0) -> float:
    """Return the work of a prefill chunk in query-key pairs: for each new token, the cached keys, half the new ones,
    and a fixed part; with a window, count only the keys inside it."""
    if not window:
        return new * (past + new / 2 + TOKEN_WORK)
    growing = min(max(window - past, 0.0), new)  # tokens that attend to less than a full window
    return growing * (past + growing / 2) + (new - growing) * window + new * TOKEN_WORK


Entries = list[tuple[float, Curve]]
"""Curves by number of sequences, in ascending order."""


class Grid:
    """Curves by number of sequences, with linear interpolation between the measured numbers."""

    def __init__(self, entries: Entries, spread: float = 1.0) -> None:
        """Build the grid. `spread` is the number of measured sequences equivalent to one sequence of the priced
        model."""
        self._entries, self._spread = entries, spread
        self._counts = [count for count, _ in entries]
        self._curves: dict[int, Curve] = {}

    def curve(self, count: int) -> Curve:
        """Return the curve of `count` sequences."""
        curve = self._curves.get(count)
        if curve is None:
            curve = self._curves[count] = self._between(count * self._spread)
        return curve

    def at(self, count: float, x: float) -> tuple[float, int]:
        """Return the time and source at x for any number of sequences, without building its curve."""
        count *= self._spread
        counts, entries = self._counts, self._entries
        if count <= counts[0]:
            return entries[0][1].look_up(x)
        i = bisect_right(counts, count) - 1
        low, curve = entries[i]
        ns, source = curve.look_up(x)
        if count == low:
            return ns, source
        if i + 1 == len(entries):
            return ns * (count / low), EXTRAPOLATED
        high, above = entries[i + 1]
        weight = (count - low) / (high - low)
        ns_above, source_above = above.look_up(x)
        return ns * (1.0 - weight) + ns_above * weight, max(INTERPOLATED, source, source_above)

    def _between(self, count: float) -> Curve:
        i = bisect_right(self._counts, count) - 1
        if i < 0:
            return self._entries[0][1]
        low, curve = self._entries[i]
        if low == count:
            return curve
        if i + 1 == len(self._entries):
            beyond = curve.scaled(count / low)
            return Curve(beyond.xs, beyond.ys, EXTRAPOLATED, last_slope=beyond.slopes[-1])
        high, above = self._entries[i + 1]
        return blend(curve, above, (count - low) / (high - low))


def decode_grid(rows: dict[str, NDArray[Any]], shape: HeadShape, slowdown: float) -> tuple[Entries, float]:
    """Return the curves by number of sequences, as functions of mean context, and the number of measured sequences
    equivalent to one sequence of the priced model."""
    dim = _nearest_above(rows["head_dim"], shape.head_dim)
    rows = _where(rows, head_dim=dim)
    known = np.unique(rows["kv_heads"]).tolist()
    dividing = [k for k in known if shape.kv_heads % k == 0]
    kv_heads = max(dividing) if dividing else min(known, key=lambda k: abs(k - shape.kv_heads))
    spread = shape.kv_heads / kv_heads
    exact = spread == 1.0 and dim == shape.head_dim and slowdown == 1.0
    grid = _head_grid(_where(rows, kv_heads=kv_heads), shape.heads / spread, "past_tokens", exact)
    return _rescaled(grid, shape.head_dim / dim * slowdown), spread


def prefill_grid(rows: dict[str, NDArray[Any]], shape: HeadShape, window: int) -> Entries:
    """Return the curves by number of sequences, as functions of the work per sequence."""
    dim = _nearest_above(rows["head_dim"], shape.head_dim)
    rows = _where(rows, head_dim=dim)
    if "past_tokens" in rows:
        rows = _where(rows, past_tokens=0)
    measured = np.unique(rows["kv_heads"][rows["heads"] >= shape.heads]).tolist()
    kv_heads = min(measured or np.unique(rows["kv_heads"]).tolist(), key=lambda k: abs(k - shape.kv_heads))
    exact = kv_heads == shape.kv_heads and dim == shape.head_dim
    grid = _head_grid(_where(rows, kv_heads=kv_heads), float(shape.heads), "new_tokens", exact, window)
    return _rescaled(grid, shape.head_dim / dim)


def _head_grid(rows: dict[str, NDArray[Any]], heads: float, axis: str, exact: bool, window: int = 0) -> Entries:
    """Return the curves by number of sequences at `heads` query heads, interpolated linearly between the measured
    numbers of heads, and in proportion to heads outside them."""
    counts = np.unique(rows["heads"]).tolist()
    i = bisect_right(counts, heads) - 1
    low = counts[max(i, 0)]
    grid = _curves(_where(rows, heads=low), axis, MEASURED if exact and low == heads else INTERPOLATED, window)
    if low == heads:
        return grid if exact else _marked(grid)
    if i < 0 or i + 1 == len(counts):
        return _rescaled(grid, heads / low)
    high = counts[i + 1]
    above = dict(_curves(_where(rows, heads=high), axis, INTERPOLATED, window))
    weight = (heads - low) / (high - low)
    mixed = [(n, blend(curve, above[n], weight)) for n, curve in grid if n in above]
    if not mixed:
        return _rescaled(grid, heads / low)
    return mixed if exact else _marked(mixed)


def _curves(rows: dict[str, NDArray[Any]], axis: str, source: int, window: int) -> Entries:
    lines: Lines = {}
    columns = (rows[name].tolist() for name in ("batch", axis, "time_us"))
    for batch, size, us in zip(*columns, strict=True):
        # a decode step's token attends to the cached tokens and itself
        x = size + 1.0 if axis == "past_tokens" else work(size, 0.0, window)
        lines.setdefault(float(batch), {})[x] = us * 1e3
    return completed(lines, source)


def completed(lines: Lines, source: int = MEASURED) -> Entries:
    """Return the curves by grid line, in ascending order, without spikes and with missing points inside the grid filled
    in."""
    lines = {y: without_spikes(points) for y, points in lines.items()}
    gaps = missing(lines)
    entries: Entries = []
    for y in sorted(lines):
        points = lines[y] | gaps.get(y, {})
        xs = sorted(points)
        sources = [source if x in lines[y] else max(source, INTERPOLATED) for x in xs]
        ys = [points[x] for x in xs]
        entries.append((y, Curve(xs, ys, sources, last_slope=rise(xs, ys))))
    return entries


def _marked(grid: Entries) -> Entries:
    """Return the same curves marked as extrapolated, for a head shape that was not measured."""
    return [(n, Curve(c.xs, c.ys, EXTRAPOLATED, last_slope=c.slopes[-1])) for n, c in grid]


def _rescaled(grid: Entries, factor: float) -> Entries:
    """Return the grid with everything above the fixed cost of a call multiplied by `factor`."""
    if factor == 1.0:
        return grid
    floor = grid[0][1].at(0.0)
    scaled = []
    for n, c in grid:
        ys = [floor + max(0.0, y - floor) * factor for y in c.ys]
        scaled.append((n, Curve(c.xs, ys, EXTRAPOLATED, last_slope=c.slopes[-1] * factor)))
    return scaled


def at_best_rate(grid: Entries) -> Entries:
    """Extend every curve past its last context at the best rate that any batch reached at its own last context. (Large
    batches were measured only on short contexts, which are too short to reach the full bandwidth or may be in the
    cache.)"""
    best = min(c.ys[-1] / (n * c.xs[-1]) for n, c in grid)
    return [(n, Curve(c.xs, c.ys, c.knot_source, last_slope=n * best)) for n, c in grid]


def window_rows(
    tables: KernelTables, shape: HeadShape, dtype: str, window: int
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]] | None:
    """Return the decode and prefill rows measured with this window and head size, or None if there are none."""
    found = []
    for op in ("window_decode", "window_prefill"):
        rows = tables.rows(op, dtype)
        if rows:
            rows = _where(rows, window=window, head_dim=shape.head_dim)
        if not rows or not len(rows["time_us"]):
            return None
        found.append(rows)
    return found[0], found[1]


def in_window(grid: Entries, window: int, measured: bool) -> Entries:
    """Return decode curves that stay constant for contexts beyond the window."""
    if measured:
        return _up_to_window(grid, window)
    cut = []
    for n, c in grid:
        xs = [x for x in c.xs if x < window]
        edge = c.source(window)
        sources = [*c.knot_source[: len(xs)], edge]
        ys = [*c.ys[: len(xs)], c.at(window)]
        cut.append((n, Curve([*xs, window], ys, sources, last_slope=0.0, beyond=max(INTERPOLATED, edge))))
    return cut


def _up_to_window(grid: Entries, window: int) -> Entries:
    """Return curves measured with the window, constant beyond it. Extend a curve measured only on contexts shorter than
    the window up to the window, at the best rate that any batch reached but never below the curve of a smaller
    batch."""
    ends = [(n, c, min(c.xs[-1], float(window))) for n, c in grid]
    best = min(c.at(end) / (n * end) for n, c, end in ends)
    whole: Entries = []
    for n, c, end in ends:
        xs, ys, sources = list(c.xs), list(c.ys), list(c.knot_source)
        fewer = whole[-1][1] if whole else None
        for x in sorted({*(fewer.xs if fewer is not None else ()), float(window)}) if end < window else ():
            if end < x <= window:
                ys.append(max(c.ys[-1] + n * best * (x - end), fewer.at(x) if fewer is not None else 0.0))
                xs.append(x)
                sources.append(EXTRAPOLATED)
        beyond = EXTRAPOLATED if end < window else c.segment_source[-2]
        whole.append((n, Curve(xs, ys, sources, last_slope=0.0, beyond=beyond)))
    return whole


def _nearest_above(column: NDArray[Any], value: int) -> int:
    """Return the smallest measured value not below `value` (kernels pad to it), or the largest measured value."""
    grid: list[int] = np.unique(column).tolist()
    return next((g for g in grid if g >= value), grid[-1])


def head_rows(rows: dict[str, NDArray[Any]], shape: HeadShape, batch: int | None = None) -> dict[str, NDArray[Any]]:
    """Return the rows for exactly these heads and, if `batch` is given, for calls with `batch` sequences."""
    found = _where(rows, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim)
    return found if batch is None else _where(found, batch=batch)


def _where(rows: dict[str, NDArray[Any]], **equal: int) -> dict[str, NDArray[Any]]:
    mask = np.logical_and.reduce([rows[name] == value for name, value in equal.items()])
    return {name: column[mask] for name, column in rows.items()}
