"""Failures in a small world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.features.failures.part import Crash, Failing, Failures, Slowdown


def with_failures(world: Any, draws: Any) -> Any:
    """Return the world with at least two replicas, which crash and restart, and are slow for a time."""
    world = world if world.replicas > 1 else world.multiplied(2)
    crashes = draws.one("crashes", [1, 2, 3])
    times = draws.many("crash at", crashes, [0, 900, 7_000, 30_000, 90_000, 200_000])
    downs = draws.many("down for", crashes, [0, 5_000, 90_000])
    slow = draws.one("slow at", [None, 0, 20_000])
    failures = Failures(
        tuple(Crash(number % 2, at, down) for number, (at, down) in enumerate(zip(times, downs, strict=True))),
        (Slowdown(0, slow, slow + 50_000, 2.5),) if slow is not None else (),
        detect_ns=draws.one("detection", [0, 3_000]),
        reroutes=draws.one("reroutes", [1, 5]),
        migrations=draws.one("migrations", [0, 0, 1, 3]),
        backoff_ns=draws.one("reroute delay", [0, 2_000]),
    )
    return replace(world, features=(*world.features, lambda world, pools: Failing(failures)))
