"""Conversion of autoscaler settings into `servesim.features.scaling.part`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from servesim.contracts import Batch, make
from servesim.contracts.router import Role
from servesim.contracts.scaler import Scaler, scalers
from servesim.engine.pool import Pool
from servesim.errors import UserError
from servesim.features.scaling.part import Scaled
from servesim.metrics.requests import SECOND
from servesim.plugins.user_policies import blaming
from servesim.run.start import start_of

if TYPE_CHECKING:
    from servesim.features.scaling import ScalingSettings
    from servesim.run.pool import PoolSetup

LEAST_S = 1e-3
"""Minimum number of seconds between two queries to an autoscaler; with a shorter interval, simulating hours
    would never end."""


class CostProfile:
    """A replica's limits, and its step times in seconds according to its cost model, with steps planned ahead. Tokens
    and sequences are spread evenly over its data-parallel `ranks`, each of `num_gpus` GPUs."""

    def __init__(self, pool: Pool, num_gpus: int = 1, ranks: int = 1) -> None:
        assert pool.spawn is not None
        core = pool.cores[0] if pool.cores else pool.spawn()
        limits = core.scheduler.limits
        self.role: Role = pool.role
        self._ranks = ranks
        self.num_gpus = num_gpus * ranks
        self.max_num_batched_tokens = limits.max_num_batched_tokens * ranks
        self.max_num_seqs = limits.max_num_seqs * ranks
        self.kv_tokens = core.kv.capacity_tokens * ranks
        self._cost = pool.cost
        self._known: dict[tuple[int, int], float] = {}  # of decode steps, by (sequences, context)

    def _s(self, batch: Batch) -> float:
        price = self._cost.prices([batch] * self._ranks)[0]
        return (price.gpu_ns + price.host.exposed) / SECOND

    def prefill_s(self, tokens: int) -> float:
        """Return the time of a step that computes only a prompt."""
        tokens = -(-tokens // self._ranks)
        return self._s(Batch(tokens, [(tokens, 0)], sampled=1, sampled_context=tokens))

    def decode_s(self, sequences: int, context: int) -> float:
        """Return the time of a step in which sequences with a given context each generate a token."""
        sequences = -(-sequences // self._ranks)
        total, key = sequences * context, (sequences, context)
        if key not in self._known:
            self._known[key] = self._s(Batch.decodes(sequences, total, total * context, context))
        return self._known[key]


def asked_every(scaler: Scaler) -> int:
    """Return the time between two queries to an autoscaler, in ns; raise UserError if it is invalid."""
    with blaming([type(scaler)]):
        every_s = scaler.every_s
        if isinstance(every_s, bool) or not LEAST_S <= every_s <= 1e7:
            raise UserError(f"scaler {scaler.name}: its interval is {every_s:g} s but must be from {LEAST_S:g} to 1e7")
        return round(every_s * SECOND)


def scaled_pools(pools: Iterable[tuple[PoolSetup, ScalingSettings]]) -> list[Scaled]:
    """Return the pools whose replicas come and go. Raise UserError if their settings are invalid."""
    found = []
    pools = list(pools)
    profiles = {
        pool.name: CostProfile(pool.pool, pool.scenario.tp * pool.scenario.pp, pool.scenario.dp)
        for pool, _ in pools
        if any(settings.scaler is not None for _, settings in pools)
    }
    joint: dict[tuple[type[Scaler], Any], Scaler] = {}
    for pool, settings in pools:
        if not pool.scenario.replicas:  # it is for replicas that are added one by one
            continue
        start = start_of(settings.start)
        if settings.scaler is None:
            if settings.start:
                raise UserError(f"start has no effect: no replica of pool {pool.name} starts without a scaler")
            continue
        cls, params = scalers.configured(settings.scaler)
        deployment = pool.deployment
        if not params.min <= pool.scenario.replicas <= params.max:
            replicas = pool.scenario.replicas
            raise UserError(f"scaler: replicas is {replicas} but must be from {params.min} to {params.max}")
        seconds = start.total_s(deployment.model.weight_bytes(deployment.dtype))
        scaler = joint.get((cls, params)) if cls.joint else None
        if scaler is None:
            scaler = joint[cls, params] = make(cls, params, profiles[pool.name])
            scaler.profiles = profiles
            asked_every(scaler)
        found.append(Scaled(pool.pool, scaler, round(seconds * SECOND), params.min, params.max))
    return found
