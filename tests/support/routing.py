"""Routers asked without an engine: requests of known content, and views of replicas as one wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from servesim.contracts import Request, Router, build_params, make, routers
from servesim.contracts.router import ReplicaState, ReplicaView, Views
from servesim.workload.content import RunContent


class View(NamedTuple):
    """A replica as reported."""

    index: int
    state: ReplicaState = "ready"
    num_waiting: int = 0
    num_running: int = 0
    num_unread: int = 0
    kv_usage: float = 0.0
    at_ns: int = 0
    pool: str = "default"
    model: str = ""
    profile: Any = None


def views_of(views: int | Sequence[View]) -> Views:
    """Return views of N idle replicas, or those given."""
    given = [View(i) for i in range(views)] if isinstance(views, int) else views
    found = Views(cast(ReplicaView, view) for view in given)
    found.ready = [view.index for view in given if view.state == "ready"]
    return found


def router_of(name: str, replicas: int, **params: Any) -> Router:
    cls, _ = routers.resolve(name)
    return make(cls, build_params(name, cls.Params, params), replicas)


class Prompts:
    """Makes requests whose prompts are runs (content id, length)."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, *runs: tuple[int, int], session: str = "") -> Request:
        row, self._count = self._count, self._count + 1
        length = sum(n for _, n in runs)
        content = RunContent(row, list(runs))
        return Request(row, str(row), length, 1, 0, content=content, session=session)
