"""Search for the minimum number of replicas that carry a load: it returns the next number to try and receives the
outcome."""

from __future__ import annotations


class ReplicaSearch:
    """Search for the minimum number of replicas that carry a load: it moves away from a guess in steps that double
    until the minimum is bracketed, then bisects. Steps that begin with the guess double the number.

    `too_few` and `fewest`, if known in advance, are a number that does not carry the load and one that does.
    """

    def __init__(self, most: int, guess: int = 1, step: int = 1, too_few: int = 0, fewest: int | None = None) -> None:
        self._guess, self._most = min(guess, most), most
        self._too_few = too_few
        self._step = step
        self._tried = self._given_up = False
        self.fewest = fewest
        """Smallest number known to carry the load, or None if not even the maximum does."""

    def next(self) -> int | None:
        """Return the next number to try, or None if the minimum is found or even the maximum number is too small."""
        beyond = self._most + 1 if self.fewest is None else self.fewest
        if self._given_up or beyond - 1 <= self._too_few:
            return None
        if not self._tried and self._too_few < self._guess < beyond:
            return self._guess
        if self.fewest is None:
            return min(self._too_few + self._step, self._most)
        return (self._too_few + self.fewest) // 2 if self._too_few else max(1, self.fewest - self._step)

    def tell(self, replicas: float, carried: bool) -> None:
        """Record whether a number of replicas carried the load."""
        if self._tried:
            self._step *= 2
        self._tried = True
        if carried:
            self.fewest = int(replicas)
        else:
            self._too_few = int(replicas)

    def give_up(self) -> None:
        """Stop the search, because more replicas would change nothing."""
        self._given_up = True

    @property
    def found(self) -> float | None:
        """Limit that was found, as of any search: the smallest number known to carry the load."""
        return self.fewest

    @property
    def left(self) -> int:
        """Estimated number of further trials."""
        if self.next() is None:
            return 0
        return max((self.fewest - self._too_few - 1).bit_length(), 1) if self.fewest is not None else 2
