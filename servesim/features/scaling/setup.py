"""Conversion of autoscaler settings into `servesim.features.scaling.part`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from servesim.contracts import make
from servesim.contracts.scaler import Scaler, scalers
from servesim.errors import UserError
from servesim.features.scaling.part import Scaled
from servesim.metrics.requests import SECOND
from servesim.plugins.user_policies import blaming
from servesim.run.scenario import fleet_varies
from servesim.run.start import start_of

if TYPE_CHECKING:
    from servesim.features.scaling import ScalingSettings
    from servesim.run.pool import PoolSetup

LEAST_S = 1e-3
"""Minimum number of seconds between two queries to an autoscaler; with a shorter interval, simulating hours
    would never end."""


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
    scaled = any(settings.scaler is not None for _, settings in pools)
    profiles = {pool.name: pool.pool.profile() for pool, _ in pools if scaled}
    shared: dict[tuple[type[Scaler], Hashable], Scaler] = {}
    for pool, settings in pools:
        if not pool.scenario.replicas:  # it is for replicas that are added one by one
            continue
        start = start_of(settings.start)
        if settings.scaler is None:
            if settings.start and not fleet_varies(pool.scenario):
                raise UserError(
                    f"start has no effect: no replica of pool {pool.name} starts without a scaler, or something in "
                    "cluster.failures that starts one"
                )
            continue
        cls, params = scalers.configured(settings.scaler)
        deployment = pool.deployment
        if not params.min <= pool.scenario.replicas <= params.max:
            replicas = pool.scenario.replicas
            raise UserError(f"scaler: replicas is {replicas} but must be from {params.min} to {params.max}")
        seconds = start.total_s(deployment.model.weight_bytes(deployment.dtype))
        profile = profiles[pool.name]
        key = cls.shared(params, profile)
        scaler = shared.get((cls, key)) if key is not None else None
        if scaler is None:
            scaler = make(cls, params, profile)
            scaler.profiles = profiles
            asked_every(scaler)
            shared[cls, key] = scaler
        found.append(Scaled(pool.pool, scaler, round(seconds * SECOND), params.min, params.max))
    return found
