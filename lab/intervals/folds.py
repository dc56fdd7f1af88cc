"""Folds: the cells that are predicted together, and the cells that must not contribute to their prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servesim.intervals.case import Case
from servesim.intervals.distance import Kind, label

Bools = NDArray[np.bool_]

DEALT = 10
"""Number of folds among which the pairs of lengths of one server are distributed, in order."""
MOST = 12
"""Maximum number of folds that leave out one label; further values share a fold."""
FEWEST = 3
"""Minimum number of values of a label for the remaining cells to have folds of that kind."""


@dataclass(frozen=True)
class Fold:
    """One fold over n cells."""

    predicted: Bools
    """Mask (n) of the predicted cells."""
    barred: Bools
    """Mask (n) of the excluded cells, including the predicted ones: those with the same server, model, version or
    GPU."""


def folds(
    cases: Sequence[Case],
    kind: Kind,
    lengths: Sequence[tuple[int, int]],
    used: Bools | None = None,
    most: int = MOST,
) -> list[Fold]:
    """Return the folds of the cases `used` (n; None means all) for a kind of distance. `lengths` (n) are the prompt and
    output lengths: cells of one server that share them are left out together, since their errors are alike."""
    used = np.ones(len(cases), dtype=bool) if used is None else used
    if not kind.unknown:
        return _dealt(cases, lengths, used)
    labels = np.array([[label(case, name) for name in kind.unknown] for case in cases])
    keys = [tuple(row) for row in labels]
    values = sorted({key for key, in_use in zip(keys, used, strict=True) if in_use})
    found = []
    count = min(len(values), most)
    for i in range(count):
        mine = set(values[i::count])
        predicted = np.array([key in mine for key in keys])
        shared = [{key[j] for key in mine} for j in range(len(kind.unknown))]
        barred = np.array([any(part in shared[j] for j, part in enumerate(key)) for key in keys])
        found.append(Fold(predicted & used, barred))
    return found


def _dealt(cases: Sequence[Case], lengths: Sequence[tuple[int, int]], used: Bools) -> list[Fold]:
    numbers = np.full(len(cases), -1)
    seen: dict[str, dict[tuple[int, int], int]] = {}
    for i in np.flatnonzero(used).tolist():
        pairs = seen.setdefault(cases[i].deployment, {})
        numbers[i] = pairs.setdefault(lengths[i], len(pairs)) % DEALT
    return [Fold(numbers == k, numbers == k) for k in range(DEALT) if (numbers == k).any()]
