"""Curves made from measured points and from other curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median

from servesim.cost.curve import INTERPOLATED, Curve


def rise(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Return the nanoseconds per unit at the end of a curve: the median of the slopes between its last point and the
    points at a half and a quarter of its size, since any single slope may be an outlier."""
    last = sizes[-1]
    places = sorted({next(i for i, size in enumerate(sizes) if size * part >= last) for part in (1, 2, 4)})
    slopes = [(times[j] - times[i]) / (sizes[j] - sizes[i]) for i, j in combinations(places, 2)]
    return max(median(slopes), 0.0) if slopes else times[-1] / last


_SPIKE = 1.7
"""Ratio to both neighbors above which a measured time is attributed to a pause of the machine, not to the kernel."""


def without_spikes(points: Mapping[float, float]) -> dict[float, float]:
    """Return times by size without those that take over `_SPIKE` times as long as the next smaller and the next larger
    size (for the first size, only as the next). At most 3 of 1,000 attention rows do, and none in most tables."""
    xs = sorted(points)
    kept = {}
    for i, x in enumerate(xs):
        beside = [points[other] for other in (*xs[max(i - 1, 0) : i], *xs[i + 1 : i + 2])]
        if i + 1 == len(xs) or points[x] <= _SPIKE * max(beside):
            kept[x] = points[x]
    return kept


def monotone(curve: Curve) -> Curve:
    """Return the curve with no knot higher than the next one. Humps are cut off, since a larger call can do the same
    work."""
    ys = list(curve.ys)
    for i in range(len(ys) - 2, -1, -1):
        ys[i] = min(ys[i], ys[i + 1])
    return Curve(curve.xs, ys, curve.knot_source, last_slope=curve.slopes[-1], beyond=curve.segment_source[-1])


def blend(a: Curve, b: Curve, weight: float, source: int = INTERPOLATED) -> Curve:
    """Return (1 - weight) * a + weight * b at the knots of both curves, with a source at least as uncertain as
    `source`."""
    xs = sorted({*a.xs, *b.xs})
    ys = [a.at(x) * (1.0 - weight) + b.at(x) * weight for x in xs]
    sources = [max(source, a.source(x), b.source(x)) for x in xs]
    slope = a.slopes[-1] * (1.0 - weight) + b.slopes[-1] * weight
    return Curve(xs, ys, sources, last_slope=slope)


def free_up_to(curve: Curve, n: int) -> Curve:
    """Return a curve that is 0 up to `n` and unchanged from n + 1 on."""
    if n < 1:
        return curve
    xs = [n + 1.0, *(x for x in curve.xs if x > n + 1)]
    sources = [curve.source(n), curve.source(n), *(curve.source(x) for x in xs)]
    ys = [0.0, 0.0, *(curve.at(x) for x in xs)]
    return Curve([0.0, n, *xs], ys, sources, last_slope=curve.slopes[-1], beyond=curve.segment_source[-1])


def total(curves: Sequence[Curve]) -> Curve:
    """Return the sum of curves at the knots of all of them; the source of each point is the least certain of their
    sources."""
    if len(curves) == 1:
        return curves[0]
    xs = sorted({x for curve in curves for x in curve.xs})
    ys = [sum(curve.at(x) for curve in curves) for x in xs]
    sources = [max(curve.source(x) for curve in curves) for x in xs]
    slope = sum(curve.slopes[-1] for curve in curves)
    beyond = max(curve.segment_source[-1] for curve in curves)
    return Curve(xs, ys, sources, last_slope=slope, beyond=beyond)


def upper(a: Curve, b: Curve) -> Curve:
    """Return the larger of two curves at every knot of either."""
    xs = sorted({*a.xs, *b.xs})
    pairs = [(max(a.at(x), b.at(x)), x) for x in xs]
    sources = [(a if a.at(x) >= b.at(x) else b).source(x) for x in xs]
    return Curve(xs, [y for y, _ in pairs], sources, last_slope=max(a.slopes[-1], b.slopes[-1]))
