"""Contract of routers: which replica serves a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from servesim.contracts.params import NoParams
from servesim.contracts.request import Request
from servesim.plugins.registry import Registry


class ReplicaView(Protocol):
    """The part of a replica's state that a router may know."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait there."""

    @property
    def num_running(self) -> int:
        """Requests that hold a slot there."""


class Router(ABC):
    """Sends each arriving request to one replica, once."""

    name: ClassVar[str] = "?"
    paper: ClassVar[str] = ""
    """Where the idea is described."""
    Params: ClassVar[type[Any]] = NoParams
    blind: ClassVar[bool] = False
    """Routes without looking at the replicas, which then do not depend on each other."""

    def __init__(self, params: Any, num_replicas: int) -> None:
        self.params = params
        self.num_replicas = num_replicas

    @abstractmethod
    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        """Return the index of the replica that gets the request."""


routers: Registry[Router] = Registry("router", Router, "servesim.policies.routing")
