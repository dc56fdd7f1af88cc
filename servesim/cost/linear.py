"""Times of linear layers and collectives over the tokens of a step, from measured points."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED, Curve
from servesim.cost.formula import Roofline
from servesim.cost.tables import KernelTables


@dataclass(frozen=True)
class GemmTables:
    """GEMM times of one GPU in one dtype.

    Token counts in between are linear: tile quantisation makes steps that a logarithm would smear. Widths in
    between take the share of the roofline their neighbours reach, bilinear in log n and log k, at every
    measured token count; widths outside take the share at the edge.
    """

    tables: KernelTables | None
    roofline: Roofline
    measured_on: Roofline
    """The GPU the table was measured on; where it differs, shares of its roofline are carried over."""
    monotone: bool = False
    """An interpolated GEMM over m tokens takes at most the time of one over more: the bad picks of a library
    among its kernels belong to the shapes they were measured on. (Whole curves held out of the H100 table: mean
    error 4.7 % without and 4.3 % with it up to 16 tokens, 6.2 and 6.0 % from 65 to 256, but 3 % too fast.)"""

    def curve(self, n: int, k: int, dtype: str) -> Curve:
        """Time of [m, k] x [k, n] over m."""
        rows = self.tables.rows("gemm", "bf16" if dtype == "fp16" else dtype) if self.tables else {}
        if not rows:
            return self.roofline.gemm_curve(n, k, dtype)
        widths = _neighbours(rows["n"], n), _neighbours(rows["k"], k)
        corners = [(wn * wk, cn, ck, _points(rows, cn, ck)) for cn, wn in widths[0] for ck, wk in widths[1]]
        corners = [c for c in corners if c[3]]  # the grid has holes where a GEMM did not fit
        total = sum(c[0] for c in corners)
        tokens = sorted(set.intersection(*(set(c[3]) for c in corners)))
        times = []
        for m in tokens:
            share = sum(
                w / total * self.measured_on.gemm(m, cn, ck, dtype) / points[m] for w, cn, ck, points in corners
            )
            times.append(self.roofline.gemm(m, n, k, dtype) / share)
        source = _source(rows, n, k)
        if source == MEASURED and self.roofline == self.measured_on:
            return Curve(tokens, [corners[0][3][m] for m in tokens])
        if self.monotone:
            for i in range(len(times) - 2, -1, -1):
                times[i] = min(times[i], times[i + 1])
        return Curve(tokens, times, EXTRAPOLATED if self.roofline != self.measured_on else source)


def collective_curve(
    tables: KernelTables | None, roofline: Roofline, op: str, gpus: int, bytes_per_token: int
) -> Curve:
    """Time of an `all_reduce` or `all_gather` over tokens of `bytes_per_token` bytes each."""
    rows = tables.rows(op, "bf16") if tables else {}
    mask = rows["gpus"] == gpus if rows else np.zeros(0, bool)
    if not mask.any():
        rounds = 2.0 if op == "all_reduce" else 1.0
        return roofline.collective(rounds * (gpus - 1) / gpus * bytes_per_token)
    size, time = rows["bytes"][mask], rows["time_us"][mask]
    order = np.argsort(size)
    return Curve((size[order] / bytes_per_token).tolist(), (time[order] * 1e3).tolist())


def _neighbours(column: NDArray[Any], value: int) -> list[tuple[int, float]]:
    """The measured widths around `value` with their weights, by log distance; one if it is measured."""
    grid = np.unique(column).tolist()
    i = bisect_left(grid, value)
    if i < len(grid) and grid[i] == value:
        return [(value, 1.0)]
    if i in (0, len(grid)):
        return [(grid[min(i, len(grid) - 1)], 1.0)]
    low, high = grid[i - 1], grid[i]
    weight = (log(value) - log(low)) / (log(high) - log(low))
    return [(low, 1.0 - weight), (high, weight)]


def _points(rows: dict[str, NDArray[Any]], n: int, k: int) -> dict[int, float]:
    """Nanoseconds by tokens at one measured pair of widths."""
    mask = (rows["n"] == n) & (rows["k"] == k)
    return dict(zip(rows["m"][mask].tolist(), (rows["time_us"][mask] * 1e3).tolist(), strict=True))


def _source(rows: dict[str, NDArray[Any]], n: int, k: int) -> int:
    if ((rows["n"] == n) & (rows["k"] == k)).any():
        return MEASURED
    inside = rows["n"].min() <= n <= rows["n"].max() and rows["k"].min() <= k <= rows["k"].max()
    return INTERPOLATED if inside else EXTRAPOLATED
