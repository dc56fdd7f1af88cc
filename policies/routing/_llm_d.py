"""Weighted scorers of the llm-d router (commit ebab68792, the endpoint picker of the Gateway API inference extension).

Source: llm-d/llm-d-router, pkg/epp. Each replica's score is the sum of weight x scorer, with every scorer between 0 and
1; the highest score wins, with ties broken at random. To add a custom scorer, subclass and extend `scores`. Metrics are
polled every 50 ms, as by the real router. Not modeled: predicted latency, LoRA affinity, flow control, and stale
metrics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.params import check_least, check_most
from servesim.contracts.request import Request
from servesim.contracts.router import FinishStatus, ReplicaState, ReplicaView, column, ready
from servesim.policies.routing._in_flight import InFlightRouter

Scores = dict[int, float]
Floats = NDArray[np.float64]
POLL_S = 0.05
"""Seconds between polls of a replica's metrics."""
QUEUE_MOST = 128
"""Number of waiting requests at which the load-aware scorer gives 0."""
TOKENS_MOST = 4_194_304
"""Number of tokens in flight at which the token-load scorer gives 0."""


@dataclass(frozen=True)
class LlmDParams:
    """Scorer weights (0: not used), with the defaults of the default profile."""

    prefix_weight: float = 3
    """Weight of the share of the prompt's blocks that the replica is known to have."""
    queue_weight: float = 2
    """Weight of (most - waiting) / (most - least) over all replicas, or 1 if all are equal."""
    kv_utilization_weight: float = 2
    """Weight of 1 - share of KV memory in use."""
    running_weight: float = 0
    """Weight of a scorer like `queue` that counts running requests."""
    load_aware_weight: float = 0
    """Weight of a scorer that gives 0.5 with an empty queue, falling to 0 at 128 waiting requests."""
    token_load_weight: float = 0
    """Weight of 1 - prompt tokens in flight (by the router's own count) / 4,194,304."""
    active_request_weight: float = 0
    """Weight of a scorer that gives 1 to an idle replica, else (most - own) / most by requests in flight, by the
    router's own count."""
    no_hit_lru_weight: float = 0
    """Weight of a scorer for prompts that no replica has: 1 for the replica that received one longest ago, 0 for the
    most recent; for other prompts, 0.5 for all."""
    session_weight: float = 0
    """Weight of a scorer that gives 1 to the replica that last received the session."""
    affinity_filter: float | None = None
    """Minimum share of the best replica's known prefix for a replica to be kept (0.8 in llm-d's filter); None: all are
    scored."""

    def __post_init__(self) -> None:
        check_least(self, 0, *(name for name in self.__dataclass_fields__))
        check_most(self, 1, "affinity_filter")


class LlmDRouter(InFlightRouter):
    """Filter, scorers, and picker; subclasses determine which blocks replicas are known to have cached."""

    Params = LlmDParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.tokens = [0] * num_replicas
        """Prompt tokens in flight, by replica."""
        self._cold: dict[int, None] = {}  # replicas by when they last got a prompt that no replica had
        self._homes: dict[str, int] = {}
        self._hit = False
        self._asked_for: tuple[Sequence[int], NDArray[np.int64]] = (), np.zeros(0, np.int64)

    @classmethod
    def polls_s(cls, params: Any) -> float:
        return POLL_S

    @abstractmethod
    def prefix_shares(self, request: Request) -> Floats:
        """Return the share of the prompt's blocks that each replica is known to have."""

    def scores(self, request: Request, views: Sequence[ReplicaView], shares: Floats) -> Scores:
        """Return the weighted sum of all scorers for each eligible replica."""
        choices = self._kept(views, shares)
        totals = self._totals(request, views, shares, choices)
        return dict(zip(choices, totals.tolist(), strict=True))

    def _totals(self, request: Request, views: Sequence[ReplicaView], shares: Floats, choices: Sequence[int]) -> Floats:
        """Return the weighted sum of all scorers for each of `choices`."""
        params, at, totals = self.params, self._indices(choices), np.zeros(len(choices))

        def add(weight: float, score: Callable[[], Floats]) -> None:
            if weight:
                totals[:] += weight * np.clip(score(), 0.0, 1.0)

        def waiting() -> NDArray[Any]:
            return column(views, "num_waiting", at)

        add(params.prefix_weight, lambda: shares[at])
        add(params.queue_weight, lambda: _relative(waiting()))
        add(params.kv_utilization_weight, lambda: 1 - column(views, "kv_usage", at))
        add(params.running_weight, lambda: _relative(column(views, "num_running", at)))
        add(params.load_aware_weight, lambda: 0.5 * (1 - np.minimum(waiting(), QUEUE_MOST) / QUEUE_MOST))
        add(params.token_load_weight, lambda: 1 - np.minimum(np.array(self.tokens)[at], TOKENS_MOST) / TOKENS_MOST)
        add(params.active_request_weight, lambda: _idle(np.array(self.load)[at]))
        add(params.no_hit_lru_weight, lambda: self._by_cold(choices))
        add(params.session_weight, lambda: (at == self._homes.get(request.session, -1)).astype(float))
        return totals

    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> Sequence[int]:
        """Return the replicas with the highest score."""
        shares = self.prefix_shares(request)
        self._hit = bool(shares.any())
        totals = self.scores(request, views, shares)
        best = max(totals.values())
        return [i for i, total in totals.items() if total == best]

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        return self.pick(self.candidates(request, views))

    def on_sent(self, request: Request, replica: int) -> None:
        super().on_sent(request, replica)
        self.tokens[replica] += request.prompt_len
        if request.session and self.params.session_weight:
            self._homes[request.session] = replica
        if not self._hit:
            self._cold.pop(replica, None)
            self._cold[replica] = None

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        super().on_finish(request, replica, status)
        self.tokens[replica] -= request.prompt_len

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        while len(self.tokens) <= replica:
            self.tokens.append(0)

    def _kept(self, views: Sequence[ReplicaView], shares: Floats) -> Sequence[int]:
        choices, least = ready(views), self.params.affinity_filter
        if least is None:
            return choices
        at = self._indices(choices)
        kept: list[int] = at[shares[at] >= least * shares[at].max()].tolist()
        return kept

    def _indices(self, choices: Sequence[int]) -> NDArray[np.int64]:
        """Return replicas as an array, which is kept, since the same are ready most of the time."""
        if self._asked_for[0] is not choices:
            self._asked_for = choices, np.array(choices, np.int64)
        return self._asked_for[1]

    def _by_cold(self, choices: Sequence[int]) -> Floats:
        if self._hit or len(choices) < 2:
            return np.full(len(choices), 0.5)
        eligible = set(choices)
        order = [i for i in choices if i not in self._cold] + [i for i in self._cold if i in eligible]
        ranks = {i: 1 - rank / (len(order) - 1) for rank, i in enumerate(order)}
        return np.array([ranks[i] for i in choices])


def _relative(counts: NDArray[Any]) -> Floats:
    low, high = counts.min(), counts.max()
    return np.asarray((high - counts) / (high - low) if high > low else np.ones(len(counts)))


def _idle(load: NDArray[Any]) -> Floats:
    most = max(int(load.max()), 1)
    return np.where(load == 0, 1.0, (most - load) / most)
