"""Weighted scorers of the llm-d router (commit ebab68792, the endpoint picker of the Gateway API inference extension).

Source: llm-d/llm-d-router, pkg/epp. Each replica's score is the sum of weight x scorer, with every scorer between 0 and
1; the highest score wins, with ties broken at random. To add a custom scorer, subclass and extend `scores`. Metrics are
polled every 50 ms, as by the real router. Not modeled: predicted latency, LoRA affinity, flow control, and stale
metrics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.params import check_least, check_most
from servesim.contracts.request import Request
from servesim.contracts.router import FinishStatus, ReplicaState, ReplicaView, ready
from servesim.policies.routing._in_flight import InFlightRouter

Scores = dict[int, float]
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

    @classmethod
    def polls_s(cls, params: Any) -> float:
        return POLL_S

    @abstractmethod
    def prefix_shares(self, request: Request) -> Sequence[float]:
        """Return the share of the prompt's blocks that each replica is known to have."""

    def scores(self, request: Request, views: Sequence[ReplicaView], shares: Sequence[float]) -> Scores:
        """Return the weighted sum of all scorers for each eligible replica."""
        params, choices = self.params, self._kept(views, shares)
        totals = dict.fromkeys(choices, 0.0)

        def add(weight: float, scores: Scores) -> None:
            if weight:
                for i in choices:
                    totals[i] += weight * min(max(scores[i], 0.0), 1.0)

        waiting = {i: views[i].num_waiting for i in choices}
        add(params.prefix_weight, {i: shares[i] for i in choices})
        add(params.queue_weight, _relative(waiting))
        add(params.kv_utilization_weight, {i: 1 - views[i].kv_usage for i in choices})
        add(params.running_weight, _relative({i: views[i].num_running for i in choices}))
        add(params.load_aware_weight, {i: 0.5 * (1 - min(n, QUEUE_MOST) / QUEUE_MOST) for i, n in waiting.items()})
        add(params.token_load_weight, {i: 1 - min(self.tokens[i], TOKENS_MOST) / TOKENS_MOST for i in choices})
        most = max(self.load[i] for i in choices) or 1
        add(params.active_request_weight, {i: (most - self.load[i]) / most if self.load[i] else 1.0 for i in choices})
        if params.no_hit_lru_weight:
            add(params.no_hit_lru_weight, self._by_cold(choices))
        home = self._homes.get(request.session, -1)
        add(params.session_weight, {i: float(i == home) for i in choices})
        return totals

    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> Sequence[int]:
        """Return the replicas with the highest score."""
        shares = self.prefix_shares(request)
        self._hit = any(shares)
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

    def _kept(self, views: Sequence[ReplicaView], shares: Sequence[float]) -> Sequence[int]:
        choices, least = ready(views), self.params.affinity_filter
        if least is None:
            return choices
        best = max(shares[i] for i in choices)
        return [i for i in choices if shares[i] >= least * best]

    def _by_cold(self, choices: Sequence[int]) -> Scores:
        if self._hit or len(choices) < 2:
            return dict.fromkeys(choices, 0.5)
        never = [i for i in choices if i not in self._cold]
        order = never + [i for i in self._cold if i in choices]
        return {i: 1 - rank / (len(order) - 1) for rank, i in enumerate(order)}


def _relative(counts: dict[int, int]) -> Scores:
    low, high = min(counts.values()), max(counts.values())
    return {i: (high - n) / (high - low) if high > low else 1.0 for i, n in counts.items()}
