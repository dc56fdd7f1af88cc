"""Contract of deciders: with prefill and decode on different replicas, which requests a decode replica serves alone,
prompt included.

A built-in decider is a module of servesim/features/handoff/deciders, found by its name. A package may add one through
the entry-point group `servesim.decider`. A user's own decider is named `path/to/file.py:Class`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from servesim.contracts.params import NoParams
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView
from servesim.plugins.registry import Registry


class Outlook(NamedTuple):
    """The replicas that could serve a request, and what they would have to do."""

    uncached: int
    """Number of its tokens that the decode replica would compute, as far as the decode router knows: a router that
    knows nothing of caches (`Router.cached_tokens`) counts them all."""
    decode: ReplicaView
    """The decode replica that the decode router has chosen for it."""
    prefill: Sequence[ReplicaView]
    """Ready prefill replicas that serve its model; none if all are down or starting."""
    num_queued: int
    """Number of prompts that wait to be computed: in the router, and at these prefill replicas as they report it."""


class Decider(ABC):
    """Policy that decides for each request whether its prompt is computed apart. Called when a request arrives and a
    decode replica is ready, and again if the request was lost with its replica. It changes neither the request nor the
    views."""

    name: ClassVar[str] = "?"
    Params: ClassVar[type[Any]] = NoParams
    reserves: ClassVar[bool] = True
    """Whether a request whose prompt is computed apart keeps the decode replica that was chosen before, which counts
    there from then on. Otherwise the decode router is asked again when the prompt is computed."""
    needs_cached: ClassVar[bool] = False
    """Whether it decides by cached tokens, so that the decode router must know of them."""

    def __init__(self, params: Any) -> None:
        self.params = params

    @abstractmethod
    def apart(self, request: Request, outlook: Outlook) -> bool:
        """Return whether a prefill replica computes the prompt; otherwise the decode replica does."""


deciders: Registry[Decider] = Registry("decider", Decider, "servesim.features.handoff.deciders")
