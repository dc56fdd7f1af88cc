"""Contract of routers: which replica serves a request, and what a router hears of it afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeVar

from servesim import draws
from servesim.contracts.kv_events import KVEvent
from servesim.contracts.params import NoParams
from servesim.contracts.request import Request
from servesim.plugins.registry import Registry
from servesim.plugins.user_policies import settles

ReplicaState = Literal["starting", "ready", "draining", "gone", "failed"]
"""Life of a replica. Requests are sent to ready ones alone; a draining one finishes what it has; a failed one may start
again with a cold cache, under its old index; one that is gone never comes back, and its index is not used again."""
Role = Literal["both", "prefill", "decode"]
"""The work of a replica: whole requests; prompts alone, whose KV another one reads; answers to such prompts."""
FinishStatus = Literal["finished", "cancelled", "failed"]
"""How a request left a replica: with its last token; given up by its client; or lost with the replica, or refused by
its engine."""
T = TypeVar("T")


class Pair(NamedTuple):
    """A decision: one replica computes the prompt, another the answer."""

    prefill: int
    decode: int


class Reject(NamedTuple):
    """A decision: the request is refused, and goodput counts it as a miss."""

    status: int = 503
    """HTTP status its client gets: 408, 429 or 503."""


class Wait(NamedTuple):
    """A decision: the request waits in the router. See `Router.route`."""

    most_ns: int | None = None
    """Time after which it is refused if it still waits, as the decision with which its wait began has it."""
    status: int = 503
    """HTTP status its client gets then."""
    again_ns: int | None = None
    """Time, from 1 ns, after which the router is asked again even if it hears of nothing."""


WAIT: Final = Wait()
"""The decision to wait without end."""

Decision = int | Pair | Reject | Wait
"""The index of a replica, or one of the above."""


class Report(NamedTuple):
    """Metrics of a replica at one instant, as its engine exports them."""

    num_waiting: int
    """Requests that its scheduler left waiting when it last planned."""
    num_running: int
    """Requests that hold a slot there."""
    kv_usage: float
    """Share of its KV memory that is in use, 0 to 1."""
    at_ns: int
    """The instant."""


class ReplicaView(Protocol):
    """A replica as its engine last reported it: now, or as old as
    `cluster.report_every_s` and `cluster.report_lag_s` have it."""

    @property
    def index(self) -> int:
        """Its place in `views`."""

    @property
    def state(self) -> ReplicaState:
        """Its state as the router knows it, which has no age."""

    @property
    def pool(self) -> str:
        """The name of its pool."""

    @property
    def role(self) -> Role:
        """Its work. Only replicas of role both and prefill are ready where a request is routed."""

    @property
    def model(self) -> str:
        """The model it serves, where pools serve several; else empty. Only replicas that serve what a request asks
        for are ready where it is routed."""

    @property
    def num_waiting(self) -> int:
        """Requests that its scheduler left waiting when it last planned: an engine does not count those that came while
        a step runs before it looks at them (vLLM counts after each step, before it reads what came)."""

    @property
    def num_unread(self) -> int:
        """Requests that came since then. No engine reports them: 0 where views have an age."""

    @property
    def num_running(self) -> int:
        """Requests that hold a slot there."""

    @property
    def kv_usage(self) -> float:
        """Share of its KV memory that is in use, 0 to 1."""

    @property
    def at_ns(self) -> int:
        """The time of which these figures are."""


class Views(list[ReplicaView]):
    """All replicas in order of their indices, whatever their states."""

    ready: Sequence[int] = ()
    """Indices of those that may be chosen, ascending."""


def ready(views: Sequence[ReplicaView]) -> Sequence[int]:
    """Return the indices of the replicas that may be chosen, ascending; not to be changed."""
    return views.ready if isinstance(views, Views) else [i for i, view in enumerate(views) if view.state == "ready"]


class Router(ABC):
    """Sends each request to a replica: when it arrives, and again when the replica was lost before it answered.

    A router knows two kinds of things. What it counts by itself, in attributes of its own, is exact; it counts by the
    verbs of its life below, `on_sent` to `on_replica`, all of which do nothing by default. The engine calls only those
    that a class overrides, so that a router without a life costs nothing; `on_output_block` and `on_kv_events` have
    every step simulated by itself, which takes as long as reference mode. What engines report (`views`) has an age.
    No verb changes requests or views. Whatever a router raises ends the run with a PolicyError that names its class
    and line.

    At one instant reports come first, then arrivals, then the ends of steps, arrivals that follow from those, requests
    that wait in the router, and plans.
    """

    name: ClassVar[str] = "?"
    paper: ClassVar[str] = ""
    """Where the idea is described."""
    Params: ClassVar[type[Any]] = NoParams
    blind: ClassVar[bool] = False
    """Routes without looking at the replicas, which then do not depend on each other; has no life."""
    seed = 0
    """Seed of its draws: the scenario's, from before the first request."""
    output_block = 16
    """Tokens between two calls of `on_output_block`: the engine's block size, from before the first request."""
    role: Role = "both"
    """The side it chooses replicas for if prompts and answers are computed apart: two routers of one class then
    choose."""
    _drawn = 0

    def __init__(self, params: Any, num_replicas: int) -> None:
        self.params = params
        self.num_replicas = num_replicas
        self.clock: Callable[[], int] = lambda: 0
        """Called for the time, in ns; the engine's own from before the first request."""

    @abstractmethod
    def route(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        """Return the index of the replica that gets the request, or another Decision.

        Nothing is booked here: `on_sent` says that a request was sent. Where the answer is a Wait, the router is asked
        again after everything that it is told of, each report and each request that leaves: of those that wait the
        first by `queue_key`, and as long as it does not answer Wait the next ones. While no replica is ready it is not
        asked, and requests wait. The engine raises PolicyError for the index of no replica, and UserError for a Pair
        where none is for prompts alone.
        """

    def queue_key(self, request: Request) -> Any:
        """Return what requests that wait in the router are ordered by, lowest first; among equals by arrival. Asked
        once, when a request begins to wait. Changes nothing. Default: all are equal."""
        return 0

    def on_sent(self, request: Request, replica: int) -> None:  # noqa: B027
        """Note that a request goes to a replica: right after the decision, each retry again. Samples of one request
        (n > 1) follow the first without a decision; here each is told of that is sent by itself."""

    def on_prefill_done(self, request: Request, replica: int) -> None:  # noqa: B027
        """Note that a request's first token has come, with which its prompt is computed."""

    def on_output_block(self, request: Request, replica: int) -> None:  # noqa: B027
        """Note that prompt and answer of a request have grown into one more block of `output_block` tokens (once for
        each block begun after those of the prompt)."""

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:  # noqa: B027
        """Note that a request has left its replica. Of samples that are forked off one, the first is told of when all
        have left."""

    def on_dropped(self, request: Request) -> None:  # noqa: B027
        """Note that a request has left the router's queue without being sent: it waited too long, was refused at last,
        or its client gave up."""

    def on_kv_events(self, replica: int, events: Sequence[KVEvent]) -> None:  # noqa: B027
        """Note which blocks a replica's prefix cache can find from now on and which no longer, in order. After a crash
        its cache is empty, which `on_replica` says and not this."""

    def on_report(self, replica: int, report: Report) -> None:  # noqa: B027
        """Note what an engine reports; only where `cluster.report_every_s` is not 0. `report.at_ns` is the time of
        which it is, and views show it from now on."""

    def on_replica(self, replica: int, state: ReplicaState) -> None:  # noqa: B027
        """Note that a replica's state is another one. Replicas that are ready from the beginning are not told of; a new
        one has the next index, and is told of first as starting."""

    def uniform(self) -> float:
        """Return the router's next draw, uniform between 0 and 1, both excluded: keyed by seed, name and count."""
        self._drawn += 1
        return draws.uniform_one(self.seed, f"router {self.name}", self._drawn - 1)

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options, all equally likely, by the next draw; the only one without a draw."""
        return options[int(self.uniform() * len(options))] if len(options) > 1 else options[0]


def life(router: Router) -> frozenset[str]:
    """Return the verbs of a router's life that its class overrides."""
    verbs = [verb for verb in vars(Router) if verb.startswith("on_")]
    return frozenset(verb for verb in verbs if getattr(type(router), verb) is not getattr(Router, verb))


def _decision(decision: Any) -> Decision:
    if isinstance(decision, Wait):
        return Wait(_from(decision.most_ns, 0), index(decision.status), _from(decision.again_ns, 1))
    return decision if isinstance(decision, Pair | Reject) else index(decision)


def _from(number: Any, least: int) -> int | None:
    if number is not None and index(number) < least:
        raise TypeError
    return None if number is None else index(number)


settles("Decision", _decision, "an int", usual=int)
routers: Registry[Router] = Registry("router", Router, "servesim.policies.routing")
