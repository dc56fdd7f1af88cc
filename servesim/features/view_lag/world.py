"""Delayed views in a small world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.features.view_lag.part import Reporting


def with_reports(world: Any, draws: Any) -> Any:
    """Return the world with a router that sees reports, and at least two replicas."""
    every, lag = draws.one("report every", [700, 900, 30_000]), draws.one("report lag", [0, 0, 500])
    world = world if world.replicas > 1 else world.multiplied(2)
    return replace(world, features=(*world.features, lambda world, pools: Reporting(every, lag)))
