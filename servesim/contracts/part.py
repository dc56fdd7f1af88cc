"""Contract of parts: what an optional feature does during one run, and what it says when the run is over.

The cluster calls the verbs that the class of a part overrides, and no others, so that a feature that is off costs no
call. There are two kinds of verbs. *Told*: all parts are told, in the order of their features' ranks. *Asked*: parts
are asked in that order until one answers otherwise than by default; that part has then dealt with the matter. A part
that answers by default changes nothing, so parts need not know of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from mypy_extensions import mypyc_attr

from servesim.contracts.request import Deadline, Request, State
from servesim.contracts.router import ReplicaState, Router


class ClusterView(Protocol):
    """The members of a cluster that a part may use."""

    clock: Any
    """servesim.engine.clock.Clock: `ns`; `at(ns, order, call)`; `background`, events that keep no run going."""
    fleet: Any
    """servesim.engine.fleet.Fleet: `pools`, `pool_of` by replica, `views`, `add(core, pool)`, `note(index, state)`."""
    replicas: Any
    """List of servesim.engine.replica.Replica, by index; it grows."""
    waiting: Any
    """servesim.engine.waiting.Waiting: `recall()` asks the router again for what waits in it; `num_for(serves)`."""
    telling: Any
    """servesim.engine.telling.Telling: `finish(request)` tells the router that a request has left its replica."""
    router: Router

    @property
    def busy(self) -> bool:
        """Whether a request has not left yet or may still come."""

    def place(self, request: Request, output_len: int) -> None:
        """Ask the router where a request goes, and send it there."""

    def tell_sent(self, request: Request, output_len: int, index: int) -> None:
        """Tell all parts that a request goes to a replica."""

    def new_core(self, replica: Any) -> None:
        """Tell all parts that a core begins at a replica."""

    def set_state(self, index: int, state: ReplicaState) -> None:
        """Change the state of a replica that routers know."""

    def end(self, request: Request, state: State, reason: str) -> None:
        """End a request that is with no replica."""

    def gone(self, request: Request) -> None:
        """Take a request that has left its replica out of the run."""


class Served(NamedTuple):
    """Requests that more than one replica served, and what each replica did for them."""

    rows: Iterable[int]
    sums: Iterable[tuple[Any, Mapping[str, Any]]]
    """Arguments of ReplicaTotals.add_served (servesim.metrics.replicas)."""


class Finished(NamedTuple):
    """A run that is over, as parts see it."""

    requests: Any
    """servesim.metrics.requests.RequestColumns: arrays by request; of a streamed run, StreamedRequests (sums)."""
    records: Any
    """servesim.run.records.Records: `table` (requests.parquet), `totals` of steps, `groups` by label."""
    again: Callable[[Mapping[str, Any]], Any]
    """Simulates the scenario with changed settings and returns a servesim.Result: one more run."""


RUN_VERBS = (
    *("join", "core_made", "start", "sent", "state_changed", "left"),
    *("takes", "reaches", "gives_up", "held"),
)
"""Verbs that are called while a run goes on."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Part:
    """A feature's work in one run. Every verb is optional. A part may raise UserError in `join` and PolicyError when
    a policy breaks its contract; whatever else one of the user's own raises becomes a PolicyError that names its class
    and line. It changes requests, replicas and the clock only by their methods."""

    # Told.

    def join(self, cluster: ClusterView) -> None:
        """Serve this cluster, whose replicas exist; called once, before the first event."""

    def core_made(self, replica: Any) -> None:
        """Called when a core begins at a replica: before the first event, after a crash, in a new replica."""

    def start(self) -> None:
        """Schedule the first events: the clock is about to run."""

    def sent(self, request: Request, output_len: int, index: int) -> None:
        """Called when a request goes to a replica; `reaches` decides whether it gets there."""

    def state_changed(self, index: int, state: ReplicaState) -> None:
        """Called when the state of a replica that routers know has changed."""

    def left(self, request: Request) -> None:
        """Called when a request has left the run, before the workload sends what waits for it."""

    # Asked.

    def takes(self, request: Request, output_len: int, decision: Any) -> bool:
        """Return whether this part carries out the router's decision instead of the cluster. Default: no."""
        return False

    def reaches(self, request: Request, index: int) -> bool:
        """Return whether a request that was sent gets to its replica; if not, this part deals with it. Default: yes."""
        return True

    def gives_up(self, request: Request, deadline: Deadline) -> bool:
        """Return whether this part cancels a request whose deadline has passed. Default: no."""
        return False

    def held(self) -> int:
        """Return the number of requests that this part keeps outside of router and replicas. All parts are
        asked. Changes nothing."""
        return 0

    # After the run, whose records none of these changes.

    def columns(self, rows: Any) -> dict[str, Any]:
        """Return columns of integers for requests.parquet. `rows`: row numbers of its requests, in order."""
        return {}

    def served(self) -> Served | None:
        """Return what was served by more than one replica. Default: nothing."""
        return None

    def figures(self, finished: Finished) -> dict[str, Any]:
        """Return sections of the summary, by key. A section of the same name is replaced."""
        return {}

    def conclusions(self, summary: Mapping[str, Any], finished: Finished) -> dict[str, Any]:
        """Return sections that follow from the whole summary, which has the scenario and provenance, too."""
        return {}

    def notes(self, summary: Mapping[str, Any]) -> list[str]:
        """Return what a reader must know of this run."""
        return []

    def wants(self, verb: str) -> bool:
        """Return whether a verb is to be called; asked once, when the part joins. Default: if the class has its own."""
        return getattr(type(self), verb) is not getattr(Part, verb)


def verbs(parts: Sequence[Part], verb: str) -> tuple[Callable[..., Any], ...]:
    """Return a verb of those parts that want it, bound."""
    return tuple(getattr(part, verb) for part in parts if part.wants(verb))
