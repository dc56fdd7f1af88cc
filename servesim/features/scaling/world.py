"""Replicas that come and go in a small world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.contracts.scaler import PoolLoad, Scaler, ScalerParams
from servesim.features.scaling.part import Scaled, Scaling

MOST = 5
EVERY_NS = 7_000


class Told(Scaler):
    """Wants the numbers it is given, one after the other, then the last; one at least while requests wait for it."""

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
    """Return the world with an autoscaler of each pool."""
    answers = draws.many("replicas wanted", draws.one("times asked", range(1, 13)), range(MOST))
    start_ns = draws.one("start of a replica", [0, 900, 30_000])

    def scaling(world: Any, pools: Any) -> Scaling:
        return Scaling([Scaled(pool, Told([*answers]), start_ns, 0, MOST) for pool in pools])

    return replace(world, features=(*world.features, scaling))
