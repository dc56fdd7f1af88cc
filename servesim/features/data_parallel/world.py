"""Data-parallel ranks in a small world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.features.data_parallel.group import DataParallel
from servesim.features.data_parallel.part import Ranks


def with_ranks(world: Any, draws: Any) -> Any:
    """Return the world with ranks instead of replicas, planned at most one step ahead."""
    terms = DataParallel(
        draws.one("ranks", [2, 2, 3]),
        draws.one("finish sync", [1, 3, 32]),
        after_first=draws.one("also after the first", [False, True]),
        while_loading=world.cost.fixed > 1 and draws.one("while loading", [False, True]),
    )
    ahead = world.asynchronous and world.depth == 2
    return replace(
        world.multiplied(terms.ranks),
        depth=2 if ahead else 1,
        asynchronous=ahead,
        features=(*world.features, lambda world, pools: Ranks([(pool, terms) for pool in pools])),
    )
