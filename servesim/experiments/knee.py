"""Knee of a latency-load curve."""

from __future__ import annotations

from collections.abc import Sequence

BEND = 0.1
"""Minimum depth of a knee below the chord, as a fraction of the curve's rise."""


def knee(rates: Sequence[float], values: Sequence[float | None], stable: Sequence[bool]) -> float | None:
    """Return the rate at which a rising curve bends most: the stable point farthest below the chord from the first to
    the last point (Satopaa et al., Kneedle, 2011). Return None if there are fewer than three points, or if none lies
    below the chord by at least a tenth of the rise."""
    known = [(r, v, ok) for r, v, ok in zip(rates, values, stable, strict=True) if v is not None]
    if len(known) < 3 or known[-1][1] <= known[0][1]:
        return None
    (r0, v0, _), (r1, v1, _) = known[0], known[-1]
    below = [((r - r0) / (r1 - r0) - (v - v0) / (v1 - v0), r) for r, v, ok in known[1:-1] if ok]
    depth, rate = max(below, default=(0.0, 0.0))
    return rate if depth > BEND else None
