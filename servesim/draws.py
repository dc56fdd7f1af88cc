"""Counter-based randomness: each draw is a hash of (seed, purpose, row, position), never "the next number".

The generator keeps no state. The same arguments give the same draw in any order, process and version, so two policies
that replay one trace see the same random draws, which makes paired comparisons tight. Every distribution is the inverse
transform of one uniform draw, so a draw is monotonic in its parameters.

    uniform(7, "accept", rows=np.arange(3))             # three rows, position 0
    uniform(7, "accept", rows=5, positions=np.arange(4))  # four positions of row 5
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # splitmix64's increment: the golden ratio as a 64-bit integer
_MIX1, _MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64's finalizer (Steele et al., OOPSLA 2014)


@lru_cache(maxsize=256)
def key(seed: int, purpose: str) -> int:
    """Return the 64-bit key of a stream of draws. Purposes that differ in any letter give unrelated streams."""
    digest = hashlib.blake2b(f"{int(seed)}\x00{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def bits(seed: int, purpose: str, rows: ArrayLike, positions: ArrayLike = 0) -> NDArray[np.uint64]:
    """Return 64 hashed bits as a non-negative integer for each (row, position), with rows and positions broadcast
    against each other."""
    row = np.asarray(rows).astype(np.uint64)
    position = np.asarray(positions).astype(np.uint64)
    start = np.array(key(seed, purpose), dtype=np.uint64)
    with np.errstate(over="ignore"):
        by_row = _mix(start + (row + np.uint64(1)) * np.uint64(_GAMMA))
        return _mix(by_row + (position + np.uint64(1)) * np.uint64(_GAMMA))


def uniform(seed: int, purpose: str, rows: ArrayLike, positions: ArrayLike = 0) -> Floats:
    """Return uniform draws strictly between 0 and 1 (53 bits) for each (row, position)."""
    high = (bits(seed, purpose, rows, positions) >> np.uint64(12)).astype(np.float64)
    return np.asarray((high + 0.5) * 2.0**-52, dtype=np.float64)


def stratified(seed: int, purpose: str, count: int, strata: int = 256) -> Floats:
    """Return stratified uniform draws for rows 0..count-1: of every `strata` consecutive draws, one falls in each of
    `strata` equal parts of (0, 1), in a keyed order. Sums over many rows vary far less than with `uniform`, while each
    single draw has the same distribution. A row's draw does not depend on `count`."""
    rows = np.arange(-(-count // strata) * strata)
    order = np.argsort(uniform(seed, f"{purpose} order", rows).reshape(-1, strata), axis=1, kind="stable")
    within = uniform(seed, purpose, rows).reshape(-1, strata)
    return np.asarray(((order + within) / strata).ravel()[:count], dtype=np.float64)


def uniform_one(seed: int, purpose: str, row: int, position: int = 0) -> float:
    """Return one draw without numpy's overhead, equal to `uniform(seed, purpose, row, position)` bit for bit."""
    state = _mix_one((key(seed, purpose) + (row + 1) * _GAMMA) & _MASK)
    state = _mix_one((state + (position + 1) * _GAMMA) & _MASK)
    return ((state >> 12) + 0.5) * 2.0**-52


def exponential(seed: int, purpose: str, rows: ArrayLike, positions: ArrayLike = 0) -> Floats:
    """Return exponential draws with mean 1."""
    return np.asarray(-np.log1p(-uniform(seed, purpose, rows, positions)), dtype=np.float64)


def normal(seed: int, purpose: str, rows: ArrayLike, positions: ArrayLike = 0) -> Floats:
    """Return standard normal draws."""
    from scipy.special import ndtri

    return np.asarray(ndtri(uniform(seed, purpose, rows, positions)), dtype=np.float64)


def gamma(seed: int, purpose: str, rows: ArrayLike, positions: ArrayLike = 0, *, cv: float = 1.0) -> Floats:
    """Return gamma draws with mean 1 and coefficient of variation `cv` (shape 1/cv^2); cv 0 gives the constant 1."""
    u = uniform(seed, purpose, rows, positions)
    if cv == 0:
        return np.ones_like(u)
    from scipy.special import gammaincinv

    shape = 1.0 / (cv * cv)
    return np.asarray(gammaincinv(shape, u) / shape, dtype=np.float64)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX2)
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def _mix_one(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)
