"""Conversion of autoscaler settings into `servesim.features.scaling.part`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from servesim.contracts import Batch, make
from servesim.contracts.cost import CostModel
from servesim.contracts.scaler import Scaler, scalers
from servesim.errors import UserError, shown, suggest
from servesim.features.scaling.part import Scaled
from servesim.metrics.requests import SECOND
from servesim.plugins.user_policies import blaming

if TYPE_CHECKING:
    from servesim.features.scaling import ScalingSettings
    from servesim.run.pool import PoolSetup

LEAST_S = 1e-3
"""Minimum number of seconds between two queries to an autoscaler; with a shorter interval, simulating hours
    would never end."""


@dataclass(frozen=True)
class Start:
    """Parts of a replica's start, in order. The defaults are the times of one vLLM server that loads from a warm disk
    (vllm issue 20264: compiled code from the cache, all CUDA graph sizes); a cold compile usually takes 30 to 60 s."""

    node_s: float = 0.0
    """Time to provision a node: 0 if one exists, otherwise 60 to 180 s."""
    pull_s: float = 0.0
    """Time to pull the container's image: 0 if it is already on the node."""
    weights_gb_s: float = 2.0
    """GB/s at which weights are read, over all GPUs of the replica together; servers reach 1 to 5."""
    compile_s: float = 7.5
    """Time of torch.compile with a warm cache."""
    graphs_s: float = 17.0
    """Time to capture CUDA graphs."""
    warm_up_s: float = 5.0
    """Time until the first request is accepted."""

    def total_s(self, weight_bytes: float) -> float:
        """Return the time from the decision until the replica accepts requests."""
        fixed = self.node_s + self.pull_s + self.compile_s + self.graphs_s + self.warm_up_s
        return fixed + weight_bytes / (self.weights_gb_s * 1e9)


class CostProfile:
    """A replica's step times in seconds according to its cost model, with steps planned ahead."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._known: dict[tuple[int, int], float] = {}  # of decode steps, by (sequences, context)

    def _s(self, batch: Batch) -> float:
        price = self._cost.price(batch)
        return (price.gpu_ns + price.host.exposed) / SECOND

    def prefill_s(self, tokens: int) -> float:
        """Return the time of a step that computes only a prompt."""
        return self._s(Batch(tokens, [(tokens, 0)], sampled=1, sampled_context=tokens))

    def decode_s(self, sequences: int, context: int) -> float:
        """Return the time of a step in which sequences with a given context each generate a token."""
        total, key = sequences * context, (sequences, context)
        if key not in self._known:
            self._known[key] = self._s(Batch.decodes(sequences, total, total * context, context))
        return self._known[key]


def start_of(given: Mapping[str, float]) -> Start:
    """Return the parts of a replica's start; raise UserError for an unknown part."""
    known = [part.name for part in fields(Start)]
    for key, value in given.items():
        if key not in known:
            raise UserError(f"start: unknown part {shown(key)}{suggest(key, known)}")
        if not (1e-3 if key == "weights_gb_s" else 0) <= value <= 1e7:
            raise UserError(f"start: {key} is {value:g} but must be a number up to 1e7 (at least 0.001 for a rate)")
    return Start(**given)


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
    for pool, settings in pools:
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
        scaler: Scaler = make(cls, params, CostProfile(pool.cost))
        asked_every(scaler)
        found.append(Scaled(pool.pool, scaler, round(seconds * SECOND), params.min, params.max))
    return found
