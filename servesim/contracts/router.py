"""Contract of routers: which replica serves a request, and which notifications a router receives afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.contracts.kv_events import KVEvent
from servesim.contracts.params import NoParams
from servesim.contracts.profile import Profile
from servesim.contracts.request import Request
from servesim.plugins.registry import Registry
from servesim.plugins.user_policies import settles

ReplicaState = Literal["starting", "ready", "draining", "gone", "failed"]
"""States of a replica. Requests are sent only to ready ones. A draining one finishes its requests. A failed one may
restart with a cold cache under its old index. One that is gone never returns, and its index is not reused."""
Role = Literal["both", "prefill", "decode"]
"""Work of a replica: whole requests; prompts only, whose KV another replica reads; or answers to such prompts."""
FinishStatus = Literal["finished", "cancelled", "failed"]
"""Way in which a request left a replica: with its last token; cancelled by its client; or lost with the replica or
refused by its engine."""
T = TypeVar("T")


class Pair(NamedTuple):
    """Decision: one replica computes the prompt, another the answer."""

    prefill: int
    decode: int


class Reject(NamedTuple):
    """Decision: the request is refused, and goodput counts it as a miss."""

    status: int = 503
    """HTTP status that its client gets: 408, 429 or 503."""


class Wait(NamedTuple):
    """Decision: the request waits in the router. See `Router.route`."""

    most_ns: int | None = None
    """Time after which it is refused if it still waits, as set by the decision that started its wait."""
    status: int = 503
    """HTTP status that its client gets in that case."""
    again_ns: int | None = None
    """Time, at least 1 ns, after which the router is called again even without any notification."""


WAIT: Final = Wait()
"""Decision to wait indefinitely."""

Decision = int | Pair | Reject | Wait
"""Index of a replica, or one of the above."""


class Report(NamedTuple):
    """Metrics of a replica at one instant, as its engine exports them."""

    num_waiting: int
    """Number of requests left waiting by its scheduler's latest plan."""
    num_running: int
    """Number of requests that hold a slot there."""
    kv_usage: float
    """Fraction of its KV memory in use, 0 to 1."""
    at_ns: int
    """Time of the report."""


class ReplicaView(Protocol):
    """A replica as its engine last reported it: now, or with the age set by `cluster.report_every_s` and
    `cluster.report_lag_s`."""

    @property
    def index(self) -> int:
        """Index in `views`."""

    @property
    def state(self) -> ReplicaState:
        """Current state, which routers always know without delay."""

    @property
    def pool(self) -> str:
        """Name of its pool."""

    @property
    def role(self) -> Role:
        """Role of the replica. Only replicas with role both or prefill are ready when a request is routed."""

    @property
    def model(self) -> str:
        """Model it serves if pools serve several; else empty. Only replicas that serve the requested model are ready
        when a request is routed."""

    @property
    def profile(self) -> Profile:
        """Performance of a replica of its pool by the scenario's cost model, as an operator would have measured it;
        looking it up costs a call, so keep it."""

    @property
    def num_waiting(self) -> int:
        """Number of requests left waiting by its scheduler's latest plan. An engine does not count requests that arrive
        during a step until it reads them (vLLM counts after each step, before it reads new arrivals)."""

    @property
    def num_unread(self) -> int:
        """Number of requests that have arrived since its scheduler's latest plan. No engine reports them, so it is 0 if
        views are delayed."""

    @property
    def num_running(self) -> int:
        """Number of requests that hold a slot there."""

    @property
    def kv_usage(self) -> float:
        """Fraction of its KV memory in use, 0 to 1."""

    @property
    def at_ns(self) -> int:
        """Time of these figures."""


Column = Literal["num_waiting", "num_running", "kv_usage"]
"""Figures of replicas that `column` collects."""


class Views(list[ReplicaView]):
    """All replicas in order of index, regardless of their states."""

    ready: Sequence[int] = ()
    """Indices of the replicas that may be chosen, ascending."""
    columns: Mapping[Column, NDArray[Any]] | None = None
    """Figures of all views by index, if views change by reports alone."""


def column(views: Sequence[ReplicaView], name: Column, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[Any]:
    """Return a figure of each of these replicas, in an array that must not be modified. Where views are live, each is
    read."""
    known = views.columns if isinstance(views, Views) else None
    if known is None:
        return np.array([getattr(views[i], name) for i in indices])
    return known[name] if len(indices) == len(views) else known[name].take(indices)


def ready(views: Sequence[ReplicaView]) -> Sequence[int]:
    """Return the indices of the replicas that may be chosen, ascending; do not modify them."""
    return views.ready if isinstance(views, Views) else [i for i, view in enumerate(views) if view.state == "ready"]


class Router(ABC):
    """Policy that sends each request to a replica: when it arrives, and again if the replica is lost before it answers.

    A router knows two kinds of things. What it counts itself, in attributes of its own, is exact; it counts in the
    notification verbs below, `on_sent` to `on_replica`, all of which do nothing by default. The engine calls only those
    that `hears` returns, so a router without them costs nothing; `on_output_block` requires every step to be simulated
    individually, which takes as long as reference mode, and so does `on_kv_events` unless the prefix cache is
    `prefix-hash` or evicts by rank, without drafts or memory elsewhere. What engines report (`views`) has an age.
    No verb changes requests or views. Whatever a router raises ends the run with a PolicyError that names its class and
    line.

    At any one instant, reports come first, then arrivals, the ends of steps, arrivals that follow from those, requests
    that wait in the router, and finally plans.
    """

    name: ClassVar[str] = "?"
    paper: ClassVar[str] = ""
    """Reference that describes the idea."""
    Params: ClassVar[type[Any]] = NoParams
    tiers: ClassVar[bool] = False
    """Whether `on_kv_events` also gets events of memory beyond the GPU (`medium` cpu or storage)."""
    blind: ClassVar[bool] = False
    """Whether it routes without looking at the replicas, which then do not depend on each other; such a router has no
    notification verbs."""
    seed = 0
    """Seed of its random draws: the scenario's, set before the first request."""
    output_block = 16
    """Tokens between two calls of `on_output_block`: the engine's block size, set before the first request."""
    role: Role = "both"
    """Side for which it chooses replicas if prefill and decode are separate; each side has its own router."""
    selective = False
    """Whether the replicas that it chooses for answers may have to compute the prompt, too (`disaggregate`)."""
    _drawn = 0

    def __init__(self, params: Any, num_replicas: int) -> None:
        self.params = params
        self.num_replicas = num_replicas
        self.clock: Callable[[], int] = lambda: 0
        """Function that returns the time in ns; the engine's own, set before the first request."""

    @classmethod
    def polls_s(cls, params: Any) -> float:
        """Return the seconds between the reports on which the real router decides if these are its parameters, or 0 if
        it looks at none: the value of `cluster.report_every_s` for a scenario that does not set it."""
        return 0.0

    def hears(self) -> frozenset[str]:
        """Return the notification verbs that the engine calls: those that its class overrides."""
        verbs = [verb for verb in vars(Router) if verb.startswith("on_")]
        return frozenset(verb for verb in verbs if getattr(type(self), verb) is not getattr(Router, verb))

    @abstractmethod
    def route(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        """Return the index of the replica that gets the request, or another Decision.

        Do not count the request as sent here; `on_sent` reports that. If the answer is a Wait, the router is called
        again after every notification, every report and every request that leaves: first for the waiting request that
        comes first by `queue_key`, then for the next ones, until it answers Wait. While no replica is ready, it is not
        called, and requests wait. The engine raises PolicyError if no replica has the index, and UserError for a Pair
        if no replica only computes prompts.
        """

    def queue_key(self, request: Request) -> Any:
        """Return the key by which requests that wait in the router are ordered, lowest first, and by arrival among
        equals. Called once, when a request begins to wait. Changes nothing. Default: all are equal."""
        return 0

    def cached_tokens(self, request: Request, replica: int) -> int:
        """Return how many leading tokens of a prompt it believes a replica to have cached. Changes nothing."""
        return 0

    def on_sent(self, request: Request, replica: int) -> None:  # noqa: B027
        """Record that a request goes to a replica: right after the decision, and again for each retry. Samples of one
        request (n > 1) follow the first without a decision; this is called for each one that is sent separately."""

    def on_prefill_done(self, request: Request, replica: int) -> None:  # noqa: B027
        """Record that a request's first token is out, so its prompt has been computed."""

    def on_output_block(self, request: Request, replica: int) -> None:  # noqa: B027
        """Record that the prompt and answer of a request have grown into one more block of `output_block` tokens (once
        for each block that starts after the prompt's last)."""

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:  # noqa: B027
        """Record that a request has left its replica. For samples forked from a request, this is called once, for the
        first, when all have left."""

    def on_dropped(self, request: Request) -> None:  # noqa: B027
        """Record that a request has left the router's queue without being sent: it waited too long, was finally
        refused, or its client gave up."""

    def on_kv_events(self, replica: int, events: Sequence[KVEvent]) -> None:  # noqa: B027
        """Record which blocks a replica's prefix cache can find from now on and which it no longer can, in order. After
        a crash its cache is empty, which `on_replica` reports instead."""

    def on_report(self, replica: int, report: Report) -> None:  # noqa: B027
        """Record an engine's report; called only if `cluster.report_every_s` is not 0. `report.at_ns` is the time of
        its figures, and views show them from now on."""

    def on_replica(self, replica: int, state: ReplicaState) -> None:  # noqa: B027
        """Record that a replica's state has changed. It is not called for replicas that are ready from the beginning; a
        new one has the next index, and its first reported state is starting."""

    def uniform(self) -> float:
        """Return the router's next draw, uniform between 0 and 1 (both excluded), keyed by seed, name and count."""
        self._drawn += 1
        return draws.uniform_one(self.seed, f"router {self.name}", self._drawn - 1)

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options, all equally likely, by the next draw; a single option needs no draw."""
        return options[int(self.uniform() * len(options))] if len(options) > 1 else options[0]


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
