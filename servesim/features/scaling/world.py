"""Replicas that come and go in a small world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from servesim.contracts import make
from servesim.contracts.scaler import PoolLoad, Scaler, ScalerParams
from servesim.errors import PolicyError, UserError
from servesim.features.scaling.part import Scaled, Scaling
from servesim.features.scaling.setup import asked_every

MOST = 5
EVERY_NS = 7_000


class Told(Scaler):
    """Autoscaler that requests the given numbers of replicas one after the other, then repeats the last; it requests at
    least one while requests wait for a replica."""

    def __init__(self, answers: list[int]) -> None:
        super().__init__(ScalerParams(min=0, max=MOST), None)  # type: ignore[arg-type]
        self._answers = answers

    @property
    def every_s(self) -> float:
        return EVERY_NS / 1e9

    def wanted(self, load: PoolLoad) -> int:
        wanted = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return max(wanted, 1) if load.num_held else wanted


def with_scaler(world: Any, draws: Any) -> Any:
    """Return the world with an autoscaler for each pool."""
    answers = draws.many("replicas wanted", draws.one("times asked", range(1, 13)), range(MOST))
    start_ns = draws.one("start of a replica", [0, 900, 30_000])

    def scaling(world: Any, pools: Any) -> Scaling:
        return Scaling([Scaled(pool, Told([*answers]), start_ns, 0, MOST) for pool in pools])

    return replace(world, features=(*world.features, scaling))


def scaled_by(world: Any, draws: Any, cls: type[Scaler], params: Any) -> Any:
    """Return the world with one pool that an autoscaler of this class scales. The world's times are stretched so that
    the autoscaler is queried repeatedly, as in the worlds above."""
    factor = max(round(_every_ns(world, cls, params) / EVERY_NS), 1)
    start_ns = draws.one("start of a replica", [0, 900, 30_000]) * factor
    replicas = min(max(world.replicas, params.min), params.max)

    def scaling(world: Any, pools: Any) -> Scaling:
        scaler = make(cls, params, pools[0].profile())
        scaler.profiles = {pools[0].name: scaler.profile}
        asked_every(scaler)
        return Scaling([Scaled(pools[0], scaler, start_ns, params.min, params.max)])

    return replace(_slower(world, factor), replicas=replicas, features=(*world.features, scaling))


def _every_ns(world: Any, cls: type[Scaler], params: Any) -> int:
    """Return the time between two queries, or EVERY_NS if creating the autoscaler fails: its error is raised when it is
    created again."""
    try:
        return asked_every(make(cls, params, world.pools("reference", False)[0].profile()))
    except (PolicyError, UserError):
        return EVERY_NS


def _slower(world: Any, factor: int) -> Any:
    """Return the world with all times multiplied by `factor`."""
    trace, clients, cost = world.trace, world.clients, world.cost
    names = ("fixed", "token", "context", "overlapped", "exposed")
    waits = {
        name: ns * factor for name in ("timeout_ns", "ttft_timeout_ns", "retry_ns") if (ns := getattr(clients, name))
    }
    cancel = trace.cancel_ns
    if cancel is not None:
        cancel = np.where(cancel >= 0, cancel * factor, cancel)
    return replace(
        world,
        trace=replace(trace, arrival_ns=trace.arrival_ns * factor, cancel_ns=cancel),
        clients=replace(clients, **waits),
        cost=replace(cost, **{name: getattr(cost, name) * factor for name in names}),
    )
