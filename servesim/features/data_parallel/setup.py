"""Conversion of pools into ranks that step together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from servesim.features.data_parallel.group import DataParallel
from servesim.features.data_parallel.part import Ranks

if TYPE_CHECKING:
    from servesim.run.pool import PoolSetup


def ranks_of(pools: Sequence[PoolSetup]) -> Ranks:
    """Return the part that groups the replicas of these pools as ranks."""
    return Ranks([(pool.pool, terms_of(pool)) for pool in pools])


def terms_of(pool: PoolSetup) -> DataParallel:
    """Return how a pool's ranks step together: as those of its engine and version do."""
    scenario, facts = pool.scenario, pool.server.engine
    own = scenario.preset in (None, facts.engine)
    interval, after_first = facts.get("dp_sync", (1, False)) if own else (1, False)
    return DataParallel(scenario.dp, interval, after_first, while_loading=own and facts.engine == "vllm")
