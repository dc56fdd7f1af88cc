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

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.params import check_least, check_most
from servesim.contracts.request import Request
from servesim.contracts.router import WAIT, Decision, FinishStatus, Reject, ReplicaState, ReplicaView, ready
from servesim.policies.routing._block_sets import BlockSets, block_keys
from servesim.policies.routing._in_flight import InFlightRouter

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


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

    overlap_blocks: Counts
    potential_prefill_tokens: Counts
    potential_decode_blocks: Counts
    active_requests: Counts


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
        self.active_blocks = np.zeros(num_replicas, np.int64)
        """Number of these by replica, each counted once."""
        self.prefill_tokens = np.zeros(num_replicas, np.int64)
        """Booked prompt tokens whose prefill has not finished."""
        self.output_blocks = np.zeros(num_replicas, np.int64)
        self.prompt_blocks = np.zeros(num_replicas, np.int64)
        """Blocks of live prompts, counting shared blocks once per prompt."""
        self._bookings: dict[Request, Booking] = {}
        self._asked: tuple[Request | None, Sequence[Hashable]] = (None, ())

    @abstractmethod
    def overlap(self, keys: Sequence[Hashable]) -> Counts:
        """Return how many leading blocks of a prompt each replica has."""

    @abstractmethod
    def overlap_at(self, replica: int, keys: Sequence[Hashable]) -> int:
        """Return the same for one replica."""

    def lower_credit(self, keys: Sequence[Hashable], overlap: Counts) -> Floats | None:
        """Return for each replica the blocks that continue `overlap` blocks in memory beyond the GPU, times their
        weights. Default: None, for none."""
        return None

    def lower_credit_at(self, replica: int, keys: Sequence[Hashable], overlap: int) -> float:
        """Return the same for one replica."""
        return 0.0

    def cached_tokens(self, request: Request, replica: int) -> int:
        keys = self.keys(request)
        blocks = self.overlap_at(replica, keys)
        return int((blocks + self.lower_credit_at(replica, keys, blocks)) * self.output_block + 0.5)

    def keys(self, request: Request) -> Sequence[Hashable]:
        """Return the keys of a prompt's full blocks."""
        if self._asked[0] is not request:
            self._asked = request, block_keys(request, self.output_block)
        return self._asked[1]

    def counters(self, request: Request) -> Counters:
        """Return what a request would encounter at each replica, before it is booked."""
        keys, num, size = self.keys(request), len(self.load), self.output_block
        overlap = self.overlap(keys)
        lower = self.lower_credit(keys, overlap)
        cached = overlap * size if lower is None else ((overlap + lower) * size + 0.5).astype(np.int64)
        new = len(keys) - self.active.leading(keys, num)
        return Counters(
            overlap,
            self.prefill_tokens + request.prompt_len - cached,
            self.active_blocks + new + self.output_blocks,
            np.array(self.load, np.int64),
        )

    def costs(self, request: Request, counters: Counters, choices: Sequence[int]) -> Floats:
        """Return the cost of a request at each of `choices`."""
        params, size, keys, at = self.params, self.output_block, self.keys(request), np.array(choices, np.int64)
        overlap = counters.overlap_blocks
        lower = self.lower_credit(keys, overlap)
        more: Floats | float = 0.0 if lower is None else lower[at]
        if self.role == "decode":
            held: Floats = (len(keys) + self.prompt_blocks + self.output_blocks)[at].astype(float)
            if not self.selective:
                return held
            return np.asarray(np.maximum(held - params.overlap_score_credit * overlap[at] - more, 0.0))
        booked = self.prefill_tokens[at]
        ahead = (booked - booked.min()) / size / max(ceil(request.prompt_len / size), 1)
        found = params.overlap_score_credit / (1 + params.overlap_score_credit_decay * ahead) * overlap[at] + more
        costs = params.prefill_load_scale * np.maximum((booked + request.prompt_len) / size - found, 0.0)
        if self.role == "both":
            costs += counters.potential_decode_blocks[at]
        return np.asarray(costs + params.decode_active_request_weight * counters.active_requests[at])

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int | Decision:
        choices = self._not_busy(views)
        if not choices:
            return Reject(503)
        threshold = self.params.router_queue_threshold
        if threshold is not None:
            most = threshold * self.params.max_num_batched_tokens
            if self.prefill_tokens.take(choices).min() > most:
                return WAIT
        costs = self.costs(request, self.counters(request), choices)
        least = costs.min()
        if self.params.router_temperature > 0:
            return self._drawn_by(dict(zip(choices, costs.tolist(), strict=True)), float(least))
        return self.pick([choices[i] for i in np.flatnonzero(costs == least).tolist()])

    def _not_busy(self, views: Sequence[ReplicaView]) -> Sequence[int]:
        """Return the replicas that are ready and below all thresholds (lib/llm/src/discovery/worker_monitor.rs)."""
        params, choices = self.params, ready(views)
        frac, share = params.active_prefill_tokens_threshold_frac, params.active_decode_blocks_threshold
        limits = [] if frac is None else [int(frac * params.max_num_batched_tokens)]
        limits += [] if params.active_prefill_tokens_threshold is None else [params.active_prefill_tokens_threshold]
        if limits:
            booked, most = self.prefill_tokens, min(limits)
            choices = [i for i in choices if booked[i] <= most]
        if share is not None:
            choices = [i for i in choices if self._kv_share(views[i]) <= share]
        return choices

    def _kv_share(self, view: ReplicaView) -> float:
        """Return the larger share of a replica's blocks that are active or used."""
        active = int(self.active_blocks[view.index] + self.output_blocks[view.index])
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
        found = int(self.overlap(self.keys(request)).max(initial=0))
        return max(request.prompt_len - found * self.output_block, 1)

    def on_sent(self, request: Request, replica: int) -> None:
        keys = self.keys(request)
        booking = Booking(keys, request.prompt_len - self.cached_tokens(request, replica))
        super().on_sent(request, replica)
        self._bookings[request] = booking
        self.active.add(replica, keys)
        self.active_blocks[replica] = self.active.sizes[replica]
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
        self.active_blocks[replica] = self.active.sizes[replica]
        self.prompt_blocks[replica] -= len(booking.keys)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        more = np.zeros(len(self.load) - len(self.active_blocks), np.int64)
        if len(more):
            self.active_blocks = np.append(self.active_blocks, more)
            self.prefill_tokens = np.append(self.prefill_tokens, more)
            self.output_blocks = np.append(self.output_blocks, more)
            self.prompt_blocks = np.append(self.prompt_blocks, more)
