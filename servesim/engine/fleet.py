"""The replicas of all pools: numbered in order, by state, and what of them a request may be sent to."""

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
"""Roles of replicas that requests are sent to first."""


class Fleet:
    """Holds replicas and views of them. `make` makes a replica of (index, core, pool), wired to its cluster."""

    def __init__(self, pools: Sequence[Pool], make: Callable[[int, EngineCore, Pool], Replica]) -> None:
        self.pools = pools
        self._make = make
        self.replicas: list[Replica] = []
        self.pool_of: list[Pool] = []
        """Pool of each replica, by index."""
        self.spans: list[tuple[int, int | None]] = []
        """Start and end of each replica in ns, by index; the end is None while it is up."""
        self.history: list[tuple[int, int, str]] = []
        """(ns, replica, state) of each change, in order; "crashed": not in the state that is known."""
        self.changed = False
        """Whether replicas came or went for good."""
        self.view: Callable[[Replica], ReplicaView] = lambda replica: replica
        """Returns what the router sees of a replica."""
        self.views = Views()
        """Views of the replicas for the router; the request being routed may choose those that are ready."""
        self.models = any(pool.models for pool in pools)
        """Whether it matters which model a request asks for."""
        self._ready: dict[str, list[int]] = {}  # by model asked for
        for pool in pools:
            for core in pool.cores:
                self.add(core, pool)
        self.changed = False
        self.sort()

    def add(self, core: EngineCore, pool: Pool) -> Replica:
        """Return one more replica, under the next index."""
        replica = self._make(len(self.replicas), core, pool)
        replica.pool, replica.role = pool.name, pool.role
        replica.model = pool.models[0] if pool.models else ""
        self.replicas.append(replica)
        self.views.append(self.view(replica))
        self.pool_of.append(pool)
        self.spans.append((replica.clock.ns, None))
        self.changed = True
        return replica

    def foretell(self, workload: Workload) -> None:
        """Tell allocators that are oracles what will be asked of them; UserError if it is not known."""
        for kv in [replica.core.kv for replica in self.replicas if "future" in replica.core.kv.needs]:
            future = workload.future()
            if future is None:
                raise UserError(f"kv {kv.name} needs future requests, but here their order depends on answers")
            if len(self.replicas) > 1:
                raise UserError(
                    f"kv {kv.name} needs future requests, but which replica serves each is not known in advance"
                )
            kv.foresee(future)

    def set_state(self, index: int, state: ReplicaState) -> None:
        """Note a replica's state."""
        self.replicas[index].state = state
        self.note(index, state)
        if state == "gone":
            self.changed, self.spans[index] = True, (self.spans[index][0], self.replicas[index].clock.ns)
        self.sort()

    def note(self, index: int, state: str) -> None:
        """Write a replica's state down, with the time."""
        self.history.append((self.replicas[index].clock.ns, index, state))

    def sort(self) -> None:
        """Find out again which replicas may be chosen."""
        self._ready.clear()
        self.views.ready = self._may_be_sent("")

    def offer(self, request: Request) -> bool:
        """Show as ready what this request may be sent to; False where that is nothing."""
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
