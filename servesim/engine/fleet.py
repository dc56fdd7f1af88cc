"""Replicas of all pools, numbered in order, with their states and the views used to route requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaState, ReplicaView, Views
from servesim.engine.core import EngineCore
from servesim.engine.pool import Pool
from servesim.engine.replica import Replica
from servesim.errors import UserError
from servesim.workload.workload import Workload

ENTRANCE = ("both", "prefill")
"""Roles of the replicas that requests are sent to first."""


class Fleet:
    """Replicas and the router's views of them. `make` creates a replica from (index, core, pool), wired to its
    cluster."""

    def __init__(self, pools: Sequence[Pool], make: Callable[[int, EngineCore, Pool], Replica]) -> None:
        self.pools = [*pools]
        self._make = make
        self.replicas: list[Replica] = []
        self.pool_of: list[Pool] = []
        """Pool of each replica, by replica index."""
        self.spans: list[tuple[int, int | None]] = []
        """Start and end of each replica in ns, by index. The end is None while the replica is up."""
        self.history: list[tuple[int, int, str]] = []
        """(ns, replica, state) of each change, in order. A "crashed" entry does not change the state known to the
        router."""
        self.changed = False
        """Whether any replica was added or permanently removed."""
        self.view: Callable[[Replica], ReplicaView] = lambda replica: replica
        """Function that returns the router's view of a replica."""
        self.views = Views()
        """Views of the replicas for the router, including which are ready for the request being routed."""
        self.models = any(pool.models for pool in pools)
        """Whether the model named in a request matters."""
        self._ready: dict[str, list[int]] = {}  # by requested model
        for pool in pools:
            for core in pool.cores:
                self.add(core, pool)
        self.changed = False
        self.sort()

    def add(self, core: EngineCore, pool: Pool) -> Replica:
        """Add a replica under the next index, and return it."""
        replica = self._make(len(self.replicas), core, pool)
        replica.pool, replica.role, replica.profiled = pool.name, pool.role, pool.profile
        replica.model = pool.models[0] if pool.models else ""
        self.replicas.append(replica)
        self.views.append(self.view(replica))
        self.pool_of.append(pool)
        self.spans.append((replica.clock.ns, None))
        self.changed = True
        return replica

    def foretell(self, workload: Workload) -> None:
        """Pass the future requests to allocators that are oracles. Raise UserError if the future requests are
        unknown."""
        for kv in [replica.core.kv for replica in self.replicas if "future" in replica.core.kv.needs]:
            future = workload.future()
            if future is None:
                raise UserError(
                    f"kv {kv.name} needs to know future requests, but in this workload their order depends on the "
                    "answers"
                )
            if len(self.replicas) > 1:
                raise UserError(
                    f"kv {kv.name} needs to know future requests, but it is not known in advance which replica "
                    "serves each"
                )
            kv.foresee(future)

    def server(self, index: int) -> range:
        """Return the indices of the replicas that form one server with this one."""
        pool = self.pool_of[index]
        first = index if pool.ranks == 1 else index - sum(of is pool for of in self.pool_of[:index]) % pool.ranks
        return range(first, first + pool.ranks)

    def set_state(self, index: int, state: ReplicaState) -> None:
        """Set the state of a replica and of all that form one server with it, which are as much `up` as it is."""
        up = self.replicas[index].up
        for each in self.server(index):
            replica = self.replicas[each]
            replica.state, replica.up = state, up
            self.note(each, state)
            if state == "gone":
                self.changed, self.spans[each] = True, (self.spans[each][0], replica.clock.ns)
        self.sort()

    def note(self, index: int, state: str) -> None:
        """Record a replica's state with the current time."""
        self.history.append((self.replicas[index].clock.ns, index, state))

    def sort(self) -> None:
        """Recompute which replicas may be chosen."""
        self._ready.clear()
        self.views.ready = self._may_be_sent("")

    def offer(self, request: Request) -> bool:
        """Mark as ready the replicas that this request may be sent to. Return False if there are none."""
        if self.models:
            self.views.ready = self._may_be_sent(request.model)
        return bool(self.views.ready)

    def _may_be_sent(self, model: str) -> list[int]:
        found = self._ready.get(model)
        if found is None:
            found = [
                replica.index
                for replica, pool in zip(self.replicas, self.pool_of, strict=True)
                if replica.state == "ready" and pool.role in ENTRANCE and pool.serves(model)
            ]
            self._ready[model] = found
        return found
