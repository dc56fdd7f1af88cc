"""Search for the minimum number of replicas that carry a load: it returns the next number to try and receives the
outcome."""

from __future__ import annotations


class ReplicaSearch:
    """Search for the minimum number of replicas that carry a load: the number is doubled until it suffices, then
    bisected."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._too_few = 0
        self._given_up = False
        self.fewest: int | None = None
        """Smallest number known to carry the load."""

    def next(self) -> int | None:
        """Return the next number to try, or None if the minimum is found or even the maximum number is too small."""
        if self._given_up:
            return None
        if self.fewest is None:
            return min(max(1, 2 * self._too_few), self._most) if self._too_few < self._most else None
        middle = (self._too_few + self.fewest) // 2
        return middle if middle > self._too_few else None

    def tell(self, replicas: int, carried: bool) -> None:
        """Record whether a number of replicas carried the load."""
        if carried:
            self.fewest = replicas
        else:
            self._too_few = replicas

    def give_up(self) -> None:
        """Stop the search, because more replicas would change nothing."""
        self._given_up = True

    @property
    def left(self) -> int:
        """Estimated number of further trials."""
        if self.next() is None:
            return 0
        return max((self.fewest - self._too_few - 1).bit_length(), 1) if self.fewest is not None else 2
