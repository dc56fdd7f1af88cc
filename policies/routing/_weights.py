"""Weights of unlike replicas: given, or by the speed that the cost model gives their pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servesim.contracts.params import check_least
from servesim.contracts.profile import Profile
from servesim.contracts.router import ReplicaView
from servesim.errors import UserError

FIRST = 100
"""Modeled weight of the first replica; weights are whole numbers, as in nginx and Envoy, and these have two digits."""


@dataclass(frozen=True)
class WeightParams:
    """Weights of the replicas."""

    weights: str = ""
    """Weight of each initial replica, in order: whole numbers of at least 1 such as `3/1`. A replica that comes later
    gets the weight of the first one of its pool, or 1. Empty: modeled, in proportion to the requests/s of a full
    replica, with 100 for the first one of each role."""
    prompt_len: int = 1000
    """Prompt tokens of the requests for which speeds are modeled."""
    output_len: int = 200
    """Output tokens of these requests."""

    def __post_init__(self) -> None:
        check_least(self, 1, "prompt_len", "output_len")
        self.given()

    def given(self) -> list[int]:
        """Return the given weights; raise ValueError if they are not whole numbers of at least 1."""
        parts = self.weights.split("/") if self.weights else []
        if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 32 for part in parts):
            raise ValueError(f"weights is {self.weights!r} but must be whole numbers of at least 1, such as 3/1")
        return [int(part) for part in parts]


def speed(profile: Profile, params: WeightParams) -> float:
    """Return the requests/s of a replica whose batch is full, by the cost model: a request takes its share of a step
    that computes a prompt, if the replica computes prompts, and of its decode steps, if it decodes."""
    prompt, output, seconds = params.prompt_len, params.output_len, 0.0
    if profile.role != "decode":
        chunk = min(prompt, profile.max_num_batched_tokens)
        seconds += profile.prefill_s(chunk) * prompt / chunk
    if profile.role != "prefill":
        batch = max(min(profile.max_num_seqs, profile.kv_tokens // (prompt + output)), 1)
        seconds += output * profile.decode_s(batch, prompt + output // 2) / batch
    return 1 / seconds


class Weights:
    """Weights of all replicas, including those that come later."""

    def __init__(self, router: str, params: WeightParams, num_replicas: int) -> None:
        self._params, self._given = params, params.given()
        self._known: list[int] = []
        self._of_pool: dict[str, int] = {}
        self._first: dict[str, float] = {}  # speed of the first replica of each role
        if self._given and len(self._given) != num_replicas:
            raise UserError(f"router {router}: weights has {len(self._given)} numbers for {num_replicas} replicas")

    def of(self, views: Sequence[ReplicaView]) -> Sequence[int]:
        """Return the weight of each replica, by index."""
        known = self._known
        while len(known) < len(views):
            known.append(self._weight(views[len(known)]))
        return known

    def _weight(self, view: ReplicaView) -> int:
        if view.index < len(self._given):
            weight = self._given[view.index]
            self._of_pool.setdefault(view.pool, weight)
            return weight
        if view.pool not in self._of_pool:
            self._of_pool[view.pool] = 1 if self._given else self._modeled(view.profile)
        return self._of_pool[view.pool]

    def _modeled(self, profile: Profile) -> int:
        found = speed(profile, self._params)
        return max(round(FIRST * found / self._first.setdefault(profile.role, found)), 1)
