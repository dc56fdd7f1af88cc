"""Contract of parts: the work of an optional feature during one run, and its results after the run.

The cluster calls only the verbs that the class of a part overrides, so that a feature that is off costs no call. There
are two kinds of verbs. *Told*: all parts are called, in the order of their features' ranks. *Asked*: parts are called
in that order until one returns a non-default answer; that part has then handled the matter. A part with the default
answer changes nothing, so parts need not be aware of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, Protocol

from mypy_extensions import mypyc_attr

from servesim.contracts.request import Deadline, Request, State
from servesim.contracts.router import ReplicaState, Router
from servesim.plugins.user_policies import settles


class ClusterView(Protocol):
    """Members of a cluster that a part may use."""

    clock: Any
    """servesim.engine.clock.Clock: `ns`; `at(ns, order, call)`; `background`, events that do not keep a run alive."""
    fleet: Any
    """servesim.engine.fleet.Fleet: `pools`, `pool_of` by replica, `views`, `add(core, pool)`, `note(index, state)`,
    `server(index)`, the indices of the replicas that form one server with this one."""
    replicas: Any
    """List of servesim.engine.replica.Replica, by index, which may grow."""
    waiting: Any
    """servesim.engine.waiting.Waiting: `recall()` calls the router again for the requests waiting in it;
    `num_for(serves)`; `holds(request)`."""
    telling: Any
    """servesim.engine.telling.Telling: `finish(request)` notifies the router that a request has left its replica."""
    router: Router

    @property
    def busy(self) -> bool:
        """Whether any request has not left yet or may still arrive."""

    def place(self, request: Request, output_len: int) -> None:
        """Get the router's decision for a request, and send it there."""

    def enter(self, request: Request, output_len: int) -> None:
        """Let a request arrive that a part has made, and send it as `place` does."""

    def tell_sent(self, request: Request, output_len: int, index: int) -> None:
        """Notify all parts that a request goes to a replica."""

    def tell_passed_on(self, request: Request, output_len: int, index: int) -> None:
        """Notify all parts that a request goes to a replica for answers."""

    def held_for(self, pool: Any) -> int:
        """Return the number of requests outside of all replicas that may be sent to this pool."""

    def new_core(self, replica: Any) -> None:
        """Notify all parts that a core starts at a replica."""

    def reaches(self, request: Request, index: int) -> bool:
        """Return whether a request that was sent reaches its replica; if not, a part has handled it."""

    def set_state(self, index: int, state: ReplicaState) -> None:
        """Change the router-visible state of a replica, and of all that form one server with it."""

    def crashed(self, index: int) -> list[Request]:
        """Notify all parts that a replica has lost all its state; return the requests lost with it that parts had
        there."""

    def lost(self, request: Request) -> None:
        """Notify all parts that a request was lost with its replica, before it is rerouted or fails."""

    def keeps(self, index: int) -> bool:
        """Return whether any part keeps a draining replica that has no unfinished request."""

    @property
    def has_network(self) -> bool:
        """Whether any part sends something over a network."""

    def network_changed(self, index: int, factor: float) -> None:
        """Notify all parts that the network links of a replica have their bandwidth divided by `factor` from now on."""

    def replacing(self, pool: Any) -> list[tuple[int, int]]:
        """Return the replicas of a pool that parts are replacing, each with its successor (see `Part.replacing`)."""

    def end(self, request: Request, state: State, reason: str) -> None:
        """End a request that is not at any replica."""

    def gone(self, request: Request) -> None:
        """Remove a request that has left its replica from the run."""


class Served(NamedTuple):
    """Requests served by more than one replica, with each replica's contribution."""

    rows: Iterable[int]
    sums: Iterable[tuple[Any, Mapping[str, Any]]]
    """Arguments of ReplicaTotals.add_served (servesim.metrics.replicas)."""


class Finished(NamedTuple):
    """A finished run, as seen by parts."""

    requests: Any
    """servesim.metrics.requests.RequestColumns: arrays by request; for a streamed run, StreamedRequests (sums)."""
    records: Any
    """servesim.run.records.Records: `table` (requests.parquet), `totals` of steps, `groups` by label."""
    again: Callable[[Mapping[str, Any]], Any]
    """Function that simulates the scenario with changed settings in another run and returns a servesim.Result."""


RUN_VERBS = (
    *("join", "core_made", "start", "sent", "passed_on", "state_changed", "crashed", "lost", "network_changed", "left"),
    *("sends", "takes", "reaches", "gives_up", "keeps", "held", "held_for", "replacing"),
)
"""Verbs called during a run."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Part:
    """A feature's work in one run. Every verb is optional. A part may raise UserError in `join`, and PolicyError when a
    policy breaks its contract; any other exception from a user's own part becomes a PolicyError that names its class
    and line. A part changes requests, replicas and the clock only through their methods."""

    has_end: bool = True
    """Whether the run has an end, after which its results are asked for. A live server has none, so what a part would
    keep for its results would only grow."""

    # Told.

    def join(self, cluster: ClusterView) -> None:
        """Join this cluster, whose replicas exist; called once, before the first event."""

    def core_made(self, replica: Any) -> None:
        """Handle the start of a core at a replica: before the first event, after a crash, in a new replica."""

    def start(self) -> None:
        """Schedule the first events; the clock is about to start."""

    def sent(self, request: Request, output_len: int, index: int) -> None:
        """Handle a request that is sent to a replica; `reaches` decides whether it arrives. A request with an `owner`
        computes that one's prompt; `output_len` is then the owner's."""

    def passed_on(self, request: Request, output_len: int, index: int) -> None:
        """Handle a request that is sent to a replica for answers; another one computed its prompt if it has a `leg`,
        otherwise this one does."""

    def state_changed(self, index: int, state: ReplicaState) -> None:
        """Handle a change in a replica's router-visible state."""

    def crashed(self, index: int) -> Iterable[Request]:
        """Handle a replica that has just lost all its state and has a new core. Return the requests lost with it that
        this part, and not the cluster, sent there."""
        return ()

    def lost(self, request: Request) -> None:
        """Handle a request that was lost with its replica, before it is rerouted or fails: take back what was done
        for it."""

    def network_changed(self, index: int, factor: float) -> None:
        """Handle that the network links of a replica, which may be about to start, have their bandwidth divided by
        `factor` from now on; 1: as at first. Only parts that send something over a network want this."""

    def left(self, request: Request) -> None:
        """Handle a request that has left the run, before the workload sends requests that depend on it."""

    # Asked.

    def sends(self, request: Request, output_len: int) -> bool:
        """Return whether this part sends a request that has arrived, or is sent again, without the router. Default:
        no."""
        return False

    def takes(self, request: Request, output_len: int, decision: Any) -> bool:
        """Return whether this part carries out the router's decision instead of the cluster. Default: no."""
        return False

    def reaches(self, request: Request, index: int) -> bool:
        """Return whether a sent request reaches its replica; if not, this part handles it. Default: yes."""
        return True

    def gives_up(self, request: Request, deadline: Deadline) -> bool:
        """Return whether this part cancels a request whose deadline has passed. Default: no."""
        return False

    def keeps(self, index: int) -> bool:
        """Return whether a draining replica without unfinished requests is still needed. Changes nothing. The part
        calls servesim.engine.turnover.left_draining when that changes. Default: no."""
        return False

    def held_for(self, pool: Any) -> int:
        """Return the number of requests that this part keeps until a replica of this pool (servesim.engine.pool.Pool)
        is ready. All parts are asked. Changes nothing."""
        return 0

    def replacing(self, pool: Any) -> Iterable[tuple[int, int]]:
        """Return the replicas of a pool that this part is replacing, each with the replica that is starting for it, or
        -1 if that is yet to start. Both together count as one. All parts are asked. Changes nothing."""
        return ()

    def held(self) -> int:
        """Return the number of requests that this part keeps outside of the router and the replicas. All parts are
        asked. Changes nothing."""
        return 0

    # Verbs called after the run, the first three once for all requests. In a streamed run, these are called again and
    # again, each time for some requests that have left. None changes the records.

    def columns(self, rows: Any) -> dict[str, Any]:
        """Return integer columns for requests.parquet. `rows`: row numbers of its requests, in order."""
        return {}

    def served(self, rows: Any) -> Served | None:
        """Return the requests among `rows` (row numbers) that more than one replica served. Default: none."""
        return None

    def settled(self, requests: Any) -> None:
        """Handle the complete records of requests (servesim.metrics.requests.RequestColumns), of which nothing is asked
        afterwards: sum up what `figures` needs and drop the rest."""

    def figures(self, finished: Finished) -> dict[str, Any]:
        """Return sections of the summary, by key. A section of the same name is replaced."""
        return {}

    def conclusions(self, summary: Mapping[str, Any], finished: Finished) -> dict[str, Any]:
        """Return sections that follow from the whole summary, which includes the scenario and provenance."""
        return {}

    def notes(self, summary: Mapping[str, Any]) -> list[str]:
        """Return notes that a reader of this run needs."""
        return []

    def wants(self, verb: str) -> bool:
        """Return whether a verb is to be called; called once, when the part joins. Default: whether the class overrides
        it."""
        return getattr(type(self), verb) is not getattr(Part, verb)


def verbs(parts: Sequence[Part], verb: str) -> tuple[Callable[..., Any], ...]:
    """Return the bound verb of each part that wants it."""
    return tuple(getattr(part, verb) for part in parts if part.wants(verb))


def _request(request: Any) -> Request:
    if not isinstance(request, Request):
        raise TypeError
    return request


def _pair(pair: Any) -> tuple[int, int]:
    replica, successor = map(index, pair)
    return replica, successor


settles("Iterable[tuple[int, int]]", lambda pairs: [*map(_pair, pairs)], "pairs of ints")
settles("Iterable[Request]", lambda requests: [*map(_request, requests)], "requests")
