"""Costs and bookings of NVIDIA Dynamo's KV router (crate dynamo-kv-router of ai-dynamo-runtime 1.6.1).

Source: ai-dynamo/dynamo, lib/kv-router/src/scheduling and lib/llm/src/kv_router. In blocks, a request's cost at a
replica is the prefill that it adds to the booked prefill, plus the KV that decoding then holds:

    prefill = max((active prefill tokens + prompt) / block size - credit * blocks found, 0)
    decode  = distinct blocks of live prompts, including this one's, + blocks of answers
    cost    = prefill_load_scale * prefill + decode + decode_active_request_weight * active requests

For prefill workers the decode term is 0; for decode workers the cost is the decode term alone, and blocks count once
per request. Decode workers that may have to compute prompts (conditional disaggregation) have the credit of cached
blocks subtracted from it.

Blocks that continue those in GPU memory in host memory, and then on disk, add a credit of `host_cache_hit_weight` and
`disk_cache_hit_weight` each (scheduling/overlap.rs); a router without reports of them has none.

Bookings are made when a request is sent: its blocks are booked until it ends, and its prompt tokens not found in caches
until its first token. Replicas above a threshold get nothing, by what workers publish to the router: here its own
bookings, and KV usage as reported. Not modeled: shared pools, the selection function `lmetric`, and priorities in the
queue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil, exp
from typing import Any, Literal, NamedTuple

from servesim.contracts.params import check_least, check_most
from servesim.contracts.request import Request
from servesim.contracts.router import WAIT, Decision, FinishStatus, Reject, ReplicaState, ReplicaView, ready
from servesim.policies.routing._block_sets import BlockSets, block_keys
from servesim.policies.routing._in_flight import InFlightRouter


@dataclass(frozen=True)
class DynamoParams:
    """Cost weights, with the defaults of ai-dynamo-runtime 1.6.1."""

    overlap_score_credit: float = 1.0
    """Blocks of prefill saved per block found (formerly kv-overlap-score-weight)."""
    overlap_score_credit_decay: float = 0.0
    """Reduction of `overlap_score_credit` at a replica that has more prefill pending than another."""
    prefill_load_scale: float = 1.0
    """Weight of booked and needed prefill blocks."""
    decode_active_request_weight: float = 0.0
    """Cost of each request active at a replica, in blocks."""
    router_temperature: float = 0.0
    """Sampling temperature. 0: lowest cost, ties broken at random; otherwise, drawn with weights exp(-cost /
    temperature), with costs scaled to 0 to 1."""
    router_queue_threshold: float | None = None
    """Multiple of `max_num_batched_tokens`; requests wait in the router while every replica has more active prefill
    tokens than this. None: they never wait (the default of 1.6.1; that of 1.1.1 is 4.0)."""
    max_num_batched_tokens: int = 8192
    """The engine's `max_num_batched_tokens`, for the threshold."""
    router_queue_policy: Literal["fcfs", "lcfs", "wspt"] = "fcfs"
    """Order in which requests leave the queue: first come first served, last come first served, or the fewest prompt
    tokens first, not counting those that the best replica had when the request began to wait."""
    active_decode_blocks_threshold: float | None = None
    """Share of a replica's KV blocks, active by the router's count or used by its engine's, above which it is busy and
    gets no requests. Requests are refused with 503 while all replicas are busy. None: never busy by this."""
    active_prefill_tokens_threshold: int | None = None
    """Active prefill tokens above which a replica is busy. None: never busy by this."""
    active_prefill_tokens_threshold_frac: float | None = None
    """The same as a multiple of `max_num_batched_tokens`."""

    def __post_init__(self) -> None:
        check_least(
            self, 0, "overlap_score_credit", "overlap_score_credit_decay", "prefill_load_scale",
            "decode_active_request_weight", "router_temperature", "router_queue_threshold",
            "active_decode_blocks_threshold", "active_prefill_tokens_threshold", "active_prefill_tokens_threshold_frac",
        )  # fmt: skip
        check_most(self, 1, "active_decode_blocks_threshold")
        check_least(self, 1, "max_num_batched_tokens")


class Counters(NamedTuple):
    """Overlap and load that a request would encounter, by replica."""

    overlap_blocks: list[int]
    potential_prefill_tokens: list[int]
    potential_decode_blocks: list[int]
    active_requests: list[int]


class Booking(NamedTuple):
    """Load that a live request puts on its replica."""

    keys: Sequence[Hashable]
    prefill_tokens: int


class DynamoRouter(InFlightRouter):
    """Base router that keeps counts and costs; subclasses determine which blocks a replica has."""

    Params = DynamoParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.active = BlockSets()
        """Blocks of live prompts."""
        self.prefill_tokens = [0] * num_replicas
        """Booked prompt tokens whose prefill has not finished."""
        self.output_blocks = [0] * num_replicas
        self.prompt_blocks = [0] * num_replicas
        """Blocks of live prompts, counting shared blocks once per prompt."""
        self._bookings: dict[Request, Booking] = {}
        self._asked: tuple[Request | None, Sequence[Hashable]] = (None, ())

    @abstractmethod
    def overlap(self, request: Request, keys: Sequence[Hashable]) -> list[int]:
        """Return how many leading blocks of a prompt each replica has."""

    def lower_credit(self, keys: Sequence[Hashable], overlap: Sequence[int]) -> Sequence[float]:
        """Return for each replica the blocks that continue `overlap` blocks in memory beyond the GPU, times their
        weights. Default: empty, for none."""
        return ()

    def cached_tokens(self, request: Request, replica: int) -> int:
        return self._cached(request)[replica]

    def _cached(self, request: Request) -> list[int]:
        """Return by replica how many tokens of a prompt count as cached there."""
        keys = self.keys(request)
        overlap = self.overlap(request, keys)
        return self._tokens(overlap, self.lower_credit(keys, overlap))

    def _tokens(self, overlap: Sequence[int], lower: Sequence[float]) -> list[int]:
        size = self.output_block
        if not lower:
            return [blocks * size for blocks in overlap]
        return [int((blocks + more) * size + 0.5) for blocks, more in zip(overlap, lower, strict=True)]

    def keys(self, request: Request) -> Sequence[Hashable]:
        """Return the keys of a prompt's full blocks."""
        if self._asked[0] is not request:
            self._asked = request, block_keys(request, self.output_block)
        return self._asked[1]

    def counters(self, request: Request) -> Counters:
        """Return what a request would encounter at each replica, before it is booked."""
        keys, num = self.keys(request), len(self.load)
        overlap = self.overlap(request, keys)
        cached = self._tokens(overlap, self.lower_credit(keys, overlap))
        shared = self.active.leading(keys, num)
        sizes = self.active.sizes
        return Counters(
            overlap,
            [self.prefill_tokens[i] + request.prompt_len - cached[i] for i in range(num)],
            [sizes.get(i, 0) + len(keys) - shared[i] + self.output_blocks[i] for i in range(num)],
            list(self.load),
        )

    def costs(self, request: Request, counters: Counters, choices: Sequence[int]) -> dict[int, float]:
        """Return the cost of a request at each eligible replica."""
        params, size = self.params, self.output_block
        lower = self.lower_credit(self.keys(request), counters.overlap_blocks) or [0.0] * len(self.load)
        if self.role == "decode":
            own = len(self.keys(request))
            held: dict[int, float] = {i: own + self.prompt_blocks[i] + self.output_blocks[i] for i in choices}
            if not self.selective:
                return held
            credit = params.overlap_score_credit
            return {i: max(held[i] - credit * counters.overlap_blocks[i] - lower[i], 0.0) for i in choices}
        least = min(self.prefill_tokens[i] for i in choices)
        prompt_blocks = max(ceil(request.prompt_len / size), 1)
        costs = {}
        for i in choices:
            ahead = (self.prefill_tokens[i] - least) / size / prompt_blocks
            credit = params.overlap_score_credit / (1 + params.overlap_score_credit_decay * ahead)
            found = credit * counters.overlap_blocks[i] + lower[i]
            blocks = (self.prefill_tokens[i] + request.prompt_len) / size - found
            costs[i] = (
                params.prefill_load_scale * max(blocks, 0.0)
                + (counters.potential_decode_blocks[i] if self.role == "both" else 0)
                + params.decode_active_request_weight * self.load[i]
            )
        return costs

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int | Decision:
        choices = self._not_busy(views)
        if not choices:
            return Reject(503)
        threshold = self.params.router_queue_threshold
        if threshold is not None:
            most = threshold * self.params.max_num_batched_tokens
            if all(self.prefill_tokens[i] > most for i in choices):
                return WAIT
        costs = self.costs(request, self.counters(request), choices)
        least = min(costs.values())
        if self.params.router_temperature > 0:
            return self._drawn_by(costs, least)
        return self.pick([i for i in choices if costs[i] == least])

    def _not_busy(self, views: Sequence[ReplicaView]) -> Sequence[int]:
        """Return the replicas that are ready and below all thresholds (lib/llm/src/discovery/worker_monitor.rs)."""
        params, choices = self.params, ready(views)
        frac, share = params.active_prefill_tokens_threshold_frac, params.active_decode_blocks_threshold
        limits = [] if frac is None else [int(frac * params.max_num_batched_tokens)]
        limits += [] if params.active_prefill_tokens_threshold is None else [params.active_prefill_tokens_threshold]
        if limits:
            choices = [i for i in choices if self.prefill_tokens[i] <= min(limits)]
        if share is not None:
            choices = [i for i in choices if self._kv_share(views[i]) <= share]
        return choices

    def _kv_share(self, view: ReplicaView) -> float:
        """Return the larger share of a replica's blocks that are active or used."""
        active = self.active.sizes.get(view.index, 0) + self.output_blocks[view.index]
        return max(active * self.output_block / view.profile.kv_tokens, view.kv_usage)

    def _drawn_by(self, costs: dict[int, float], least: float) -> int:
        spread = max(costs.values()) - least
        scale = spread * self.params.router_temperature
        weights = {i: exp(-(cost - least) / scale) if spread else 1.0 for i, cost in costs.items()}
        left = self.uniform() * sum(weights.values())
        for i, weight in weights.items():
            left -= weight
            if left < 0:
                return i
        return next(reversed(weights))

    def queue_key(self, request: Request) -> Any:
        policy = self.params.router_queue_policy
        if policy != "wspt":
            return 0 if policy == "fcfs" else -request.arrival_ns
        found = max(self.overlap(request, self.keys(request)), default=0)
        return max(request.prompt_len - found * self.output_block, 1)

    def on_sent(self, request: Request, replica: int) -> None:
        keys = self.keys(request)
        booking = Booking(keys, request.prompt_len - self._cached(request)[replica])
        super().on_sent(request, replica)
        self._bookings[request] = booking
        self.active.add(replica, keys)
        self.prompt_blocks[replica] += len(keys)
        self.prefill_tokens[replica] += booking.prefill_tokens
        self._asked = None, ()

    def on_prefill_done(self, request: Request, replica: int) -> None:
        booking = self._bookings.get(request)
        if booking is not None:
            self.prefill_tokens[replica] -= booking.prefill_tokens
            self._bookings[request] = booking._replace(prefill_tokens=0)

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        booking = self._bookings.pop(request, None)
        if booking is None:
            return  # a forked sample, never sent by itself
        super().on_finish(request, replica, status)
        self.prefill_tokens[replica] -= booking.prefill_tokens
        self.active.discard(replica, booking.keys)
        self.prompt_blocks[replica] -= len(booking.keys)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        while len(self.output_blocks) <= replica:
            self.output_blocks.append(0)
            self.prefill_tokens.append(0)
            self.prompt_blocks.append(0)
