"""A router in front of another one, which it asks for a replica and to which it forwards events."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.kv_events import KVEvent
from servesim.contracts.request import Request
from servesim.contracts.router import Decision, FinishStatus, ReplicaState, ReplicaView, Report, Router, routers
from servesim.contracts.section import Settings, policy_settings
from servesim.errors import UserError


@dataclass(frozen=True, kw_only=True)
class InFrontParams:
    """The router behind this one."""

    router: str | Settings
    """Router behind this one: a name, a mapping with `name` and parameters, or `name:key=value`, in brackets if it has
    several parameters."""

    def __post_init__(self) -> None:
        """Fill in all parameters of the router behind. Raise UserError if it is not one."""
        settings = _settings(self.router)
        _check_chain(settings)
        _, params = routers.configured(settings)
        object.__setattr__(self, "router", {"name": settings["name"], **dataclasses.asdict(params)})


def _settings(given: Any) -> Settings:
    """Return a router's name and parameters. Raise UserError if they are none."""
    if isinstance(given, str) and given.startswith("(") and given.endswith(")"):
        given = given[1:-1]
    return policy_settings(given)


def _check_chain(router: Settings) -> None:
    """Raise UserError if one of the routers behind one another comes twice, which might go on without end."""
    names: list[str] = []
    inner: Any = router
    while inner is not None:
        settings = _settings(inner)
        name = settings["name"]
        if name in names:
            raise UserError(f"router {name} stands behind itself: {' -> '.join([*names, name])}")
        names.append(name)
        cls, _ = routers.resolve(name)
        behind = getattr(cls.Params, "router", None) if issubclass(cls.Params, InFrontParams) else None
        inner = settings.get("router", behind)


class InFront(Router):
    """Router in front of another one, which `params.router` describes."""

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        _check_chain({"name": self.name, "router": params.router})
        cls, inner = routers.configured(params.router)
        self.inner: Router = cls(inner, num_replicas)

    @classmethod
    def polls_s(cls, params: Any) -> float:
        inner, values = routers.configured(params.router)
        return inner.polls_s(values)

    def hears(self) -> frozenset[str]:
        """Return the verbs that the router behind hears, and those that this one's class overrides itself."""
        own = {verb for verb in super().hears() if getattr(type(self), verb) is not getattr(InFront, verb)}
        return frozenset(own) | self.inner.hears()

    def route(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        """Return the inner router's decision for a decode replica, since the request was admitted before its prefill;
        otherwise, return the decision of `admit`."""
        return self.ask(request, views) if self.role == "decode" else self.admit(request, views)

    @abstractmethod
    def admit(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        """Return a decision as `route` does; it may also hold the request back or reject it."""

    def ask(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        """Return the decision of the inner router."""
        inner = self.inner
        inner.seed, inner.clock, inner.role, inner.output_block = self.seed, self.clock, self.role, self.output_block
        inner.selective = self.selective
        return inner.route(request, views)

    def queue_key(self, request: Request) -> Any:
        return self.inner.queue_key(request)

    def cached_tokens(self, request: Request, replica: int) -> int:
        return self.inner.cached_tokens(request, replica)

    def on_sent(self, request: Request, replica: int) -> None:
        self.inner.on_sent(request, replica)

    def on_prefill_done(self, request: Request, replica: int) -> None:
        self.inner.on_prefill_done(request, replica)

    def on_output_block(self, request: Request, replica: int) -> None:
        self.inner.on_output_block(request, replica)

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        self.inner.on_finish(request, replica, status)

    def on_dropped(self, request: Request) -> None:
        self.inner.on_dropped(request)

    def on_kv_events(self, replica: int, events: Sequence[KVEvent]) -> None:
        self.inner.on_kv_events(replica, events)

    def on_report(self, replica: int, report: Report) -> None:
        self.inner.on_report(replica, report)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        self.inner.on_replica(replica, state)
