"""Searches for a limit. Each one returns the next value to try and records whether that value was carried."""

from __future__ import annotations

import math

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


class NearSearch:
    """Search for the smallest number of replicas that carries a load, moving away from a guess in steps that double.
    `too_few` and `fewest`, if known in advance, are a number that does not carry it and one that does."""

    def __init__(self, guess: int, most: int, too_few: int = 0, fewest: int | None = None) -> None:
        self._guess, self._most = min(guess, most), most
        self._too_few = too_few
        self._step = 1
        self._tried = False
        self.fewest = fewest
        """Smallest number of replicas known to carry the load, or None if not even the maximum does."""

    def next(self) -> int | None:
        """Return the number to try, or None if the smallest one is found or the maximum is too small."""
        beyond = self._most + 1 if self.fewest is None else self.fewest
        if beyond - 1 <= self._too_few:
            return None
        if not self._tried and self._too_few < self._guess < beyond:
            return self._guess
        if self.fewest is None:
            return min(self._too_few + self._step, self._most)
        return (self._too_few + self.fewest) // 2 if self._too_few else max(1, self.fewest - self._step)

    def tell(self, replicas: int, carried: bool) -> None:
        """Record whether a number of replicas carried the load."""
        if self._tried:
            self._step *= 2
        self._tried = True
        if carried:
            self.fewest = replicas
        else:
            self._too_few = replicas
