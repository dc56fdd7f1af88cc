"""The fewest replicas that carry something: the search is asked what to try next and told whether that was enough."""

from __future__ import annotations


class ReplicaSearch:
    """The fewest replicas that carry a load: doubled until they do, then bisected."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._too_few = 0
        self._given_up = False
        self.fewest: int | None = None
        """The fewest known to carry it."""

    def next(self) -> int | None:
        """Return the number to try; None when found, or when the most allowed are too few."""
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
        """Try no more: further replicas change nothing."""
        self._given_up = True

    @property
    def left(self) -> int:
        """Numbers that will probably be tried yet."""
        if self.next() is None:
            return 0
        return max((self.fewest - self._too_few - 1).bit_length(), 1) if self.fewest is not None else 2
