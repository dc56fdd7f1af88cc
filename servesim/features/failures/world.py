"""Failures in a small world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.features.failures.happenings import Crash, Failures, OnNode, Slowdown
from servesim.features.failures.networks import SlowNet
from servesim.features.failures.nodes import Nodes
from servesim.features.failures.part import Failing
from servesim.features.failures.upgrade import Upgrade


def with_failures(world: Any, draws: Any) -> Any:
    """Return the world with at least two replicas, which crash and restart, and are slow for a time, alone or with
    their node, and may be replaced in turn."""
    world = world if world.replicas > 1 else world.multiplied(2)
    crashes = draws.one("crashes", [1, 2, 3])
    times = draws.many("crash at", crashes, [0, 900, 7_000, 30_000, 90_000, 200_000])
    downs = draws.many("down for", crashes, [0, 5_000, 90_000])
    slow = draws.one("slow at", [None, 0, 20_000])
    of_node = draws.one("of a node", [None, Crash(-1, 900, 0), Crash(-1, 4_000, 9_000), Slowdown(-1, 0, 9_000, 3.0)])
    failures = Failures(
        tuple(Crash(number % 2, at, down) for number, (at, down) in enumerate(zip(times, downs, strict=True))),
        (Slowdown(0, slow, slow + 50_000, 2.5),) if slow is not None else (),
        nodes=(OnNode(0, of_node),) if of_node is not None else (),
        detect_ns=draws.one("detection", [0, 3_000]),
        reroutes=draws.one("reroutes", [1, 5]),
        migrations=draws.one("migrations", [0, 0, 1, 3]),
        backoff_ns=draws.one("reroute delay", [0, 2_000]),
    )
    upgrade = _upgrade(draws) if draws.one("upgraded", [False, False, True]) else None
    size, network = draws.one("node size", [1, 2, 3]), draws.one("network slower", [None, 1.5, 40.0])

    def failing(world: Any, pools: Any) -> Failing:
        found = failures
        if upgrade is not None:
            found = found._replace(upgrades=tuple(upgrade._replace(pool=i, into=i) for i in range(len(pools))))
        if network is not None and any(pool.role != "both" for pool in pools):
            found = found._replace(networks=(SlowNet(2_000, 9_000, network), SlowNet(4_000, 40_000, 3.0, node=0)))
        return Failing(found, Nodes(size, lambda pool: 1))

    return replace(world, features=(*world.features, failing))


def _upgrade(draws: Any) -> Upgrade:
    return Upgrade(
        draws.one("upgrade at", [0, 3_000, 30_000]),
        draws.one("upgrade start", [0, 900, 30_000]),
        batch=draws.one("upgrade batch", [1, 2]),
        surge=draws.one("upgrade surge", [False, True]),
        grace_ns=draws.one("upgrade grace", [0, 4_000, 10**9]),
    )
