"""Many integers: packed in batches, and counted by value."""

from __future__ import annotations

from array import array
from struct import pack

import numpy as np

from servesim.records.columns import Rows


class Numbers:
    """Buffer of 64-bit integers. They are added to `staged` and packed in batches, because packing one by one costs
    five times as much."""

    __slots__ = ("packed", "staged")

    def __init__(self) -> None:
        self.staged: list[int] = []
        self.packed = array("q")

    def pack(self) -> None:
        """Pack the staged integers."""
        self.packed.frombytes(pack(f"{len(self.staged)}q", *self.staged))
        self.staged.clear()

    def take(self, most: int | None = None) -> Rows:
        """Remove and return the first `most` packed integers, or all of them."""
        taken = self.packed[:most]
        self.packed = self.packed[len(taken) :]
        return np.frombuffer(taken, dtype=np.int64)


def counted(values: Rows, counts: Rows) -> tuple[Rows, Rows]:
    """Return the distinct values, ascending, and the sum of the counts of each."""
    order = np.argsort(values, kind="stable")
    values = values[order]
    first = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1]))[: len(values)])
    return values[first], np.add.reduceat(counts[order], first) if len(first) else counts
