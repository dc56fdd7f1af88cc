"""Searches for a limit. Each one returns the next load to try and records whether that load was carried."""

from __future__ import annotations

import math

from servesim.run.replica_search import ReplicaSearch

START = 1.0
"""First rate to try if none is known, in requests/s."""
FARTHEST = 20
"""Number of doublings or halvings after which a search gives up."""


class RateSearch:
    """Search for the highest rate that is carried. It doubles or halves the rate until the limit is bracketed, then
    bisects on a log scale.

    Rates have four significant digits, so that searches that converge try the same rates. `step` replaces 2 as the
    first factor if the limit is expected near the start; each later factor is the square of the one before, up to 2.
    """

    def __init__(self, tolerance: float, start: float = START, step: float = 2.0) -> None:
        self._tolerance = tolerance
        self._start = float(f"{start:.4g}")
        self._step = step
        self._carried: list[float] = []
        self.high = math.inf
        """Lowest rate that was not carried, or infinity if there is none."""

    @property
    def low(self) -> float:
        """Highest rate below `high` that was carried, or 0 if there is none."""
        return max((rate for rate in self._carried if rate < self.high), default=0.0)

    @property
    def found(self) -> float | None:
        """Highest rate that was carried, or None if there is none."""
        return self.low or None

    def next(self) -> float | None:
        """Return the rate to try, or None if the bracket is narrow enough or no limit can be found."""
        if self.low == 0 and self.high == math.inf:
            return self._start
        if self.high == math.inf:
            return self._digits(self.low * self._step) if self.low < self._start * 2**FARTHEST else None
        if self.low == 0:
            return self._digits(self.high / self._step) if self.high > self._start / 2**FARTHEST else None
        middle = float(f"{math.sqrt(self.low * self.high):.4g}")
        narrow = self.high / self.low <= 1 + self._tolerance
        return None if narrow or not self.low < middle < self.high else middle

    def _digits(self, rate: float) -> float:
        """Return a rate rounded to four significant digits, or unchanged if rates are doubled and halved."""
        return rate if self._step == 2 else float(f"{rate:.4g}")

    @property
    def left(self) -> int:
        """Number of rates that will probably still be tried: bisection steps, once the limit is bracketed."""
        ratio = self.high / self.low if self.low > 0 and self.high < math.inf else 2.0
        steps = math.ceil(math.log2(max(math.log(ratio) / math.log1p(self._tolerance), 1.0)))
        return 0 if self.next() is None else max(steps, 1)

    def tell(self, rate: float, carried: bool) -> None:
        """Record whether a rate was carried."""
        if self._carried or self.high < math.inf:
            self._step = min(self._step**2, 2.0)
        if carried:
            self._carried.append(rate)
        else:
            self.high = min(self.high, rate)


LimitSearch = RateSearch | ReplicaSearch
"""Search for the limit of a deployment: the highest rate that it carries, or the number of replicas it needs."""
