"""A connector to nowhere in particular: each Nth request finds some blocks of its KV there."""

from __future__ import annotations

from servesim.contracts import Request
from servesim.contracts.connector import Connector
from servesim.engine.cluster import Cluster
from tests.support.worlds import World


class Elsewhere(Connector):
    """Each `every`-th request can have the KV of its first `tokens` tokens, `ns` after it asks."""

    def __init__(self, every: int, tokens: int, ns: int) -> None:
        self._every = every
        self._tokens = tokens
        self._ns = ns
        self.loads: list[tuple[int, int, int, int]] = []
        """(row, start, stop, ns at which it began) of each transfer."""

    def available(self, request: Request, num_tokens: int) -> int:
        if request.row % self._every:
            return 0
        return max(min(self._tokens, request.num_tokens) - num_tokens, 0)

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        self.loads.append((request.row, start, stop, now))
        return now + self._ns


def connected(world: World, mode: str, every: int, tokens: int, ns: int, check: bool = True) -> Cluster:
    """A cluster whose replicas each have such a connector."""
    cluster = world.cluster(mode, check=check)
    for replica in cluster.replicas:
        replica.connect(Elsewhere(every, tokens, ns))
    return cluster
