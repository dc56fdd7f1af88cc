"""Data-parallel ranks: separate schedulers whose steps begin and end together.

Each rank plans, verifies and commits as a replica does, with its own KV memory, memory beyond it, and drafts. Experts
are spread over the GPUs of all ranks, so no rank can compute a step without the others: they plan at the same instant,
the slowest sets the duration (a barrier), and a rank that has nothing to do still takes part (a dummy step, with dummy
drafts). vLLM's ranks check whether all have finished only every few steps (`finish_sync`; v1/engine/core.py,
DPEngineCoreProc._has_global_unfinished_reqs), and requests whose KV is on its way are not finished (`while_loading`).
Until then they make dummy steps, and a request that arrives has to wait for them. The ranks of SGLang and TensorRT-LLM
check in every step (1), and do nothing while none has a batch.

The ranks of a replica are one server (`Pool.ranks`), which starts, drains and fails as a whole: if one of vLLM's engine
cores dies, the front end shuts down the others (v1/engine/core_client.py, start_engine_core_monitor).

Fast mode takes runs of steps at once where all ranks only decode (`fast`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts.part import ClusterView, Part
from servesim.contracts.request import Request, State
from servesim.engine import turnover
from servesim.engine.pool import Pool
from servesim.engine.replica import Replica
from servesim.features.data_parallel.fast import FastGroup, FastRank
from servesim.features.data_parallel.group import DataParallel, Group, Rank

RANKS: Mapping[str, type[Replica]] = {"reference": Rank, "fast": FastRank}
"""Rank classes by mode."""


class Ranks(Part):
    """Part that groups successive replicas of some pools as ranks. `terms`: the pools, each with the settings for how
    its ranks step together. Create the part before the cluster."""

    def __init__(self, terms: Sequence[tuple[Pool, DataParallel]]) -> None:
        self._terms = terms
        self.groups: list[Group[Any]] = []
        for pool, each in terms:
            pool.made_of, pool.ranks = RANKS, each.ranks

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._groups: dict[int, Group[Any]] = {}  # by index of the first rank

    def core_made(self, replica: Any) -> None:
        pool = self._cluster.fleet.pool_of[replica.index]
        terms = next((terms for of, terms in self._terms if of is pool), None)
        if terms is None or hasattr(replica, "group"):
            return
        first = self._cluster.fleet.server(replica.index)[0]
        if first not in self._groups:
            made_of: type[Group[Any]] = FastGroup if isinstance(replica, FastRank) else Group
            self._groups[first] = made_of(self._cluster.clock, replica, terms)
            self.groups.append(self._groups[first])
        replica.group = self._groups[first]
        replica.group.ranks.append(replica)

    def left(self, request: Request) -> None:
        if request.replica >= 0:
            turnover.left_draining(self._cluster, request.replica)

    def crashed(self, index: int) -> list[Request]:
        """Let the other ranks of a server fail with the one that has."""
        others = [r for i in self._cluster.fleet.server(index) if (r := self._cluster.replicas[i]).up]
        for rank in others:
            rank.up = False
        lost = []
        for rank in others:
            lost += _sent_to(rank)
            lost += turnover.lose(self._cluster, rank.index)
        return lost


def _sent_to(rank: Replica) -> list[Request]:
    """Return the unfinished requests at a rank that the cluster, and not another part, sent there."""
    core = rank.core
    there = dict.fromkeys([*core.scheduler.running, *core.scheduler.waiters(), *core.fetched])
    own = [r for r in there if r.owner is None and r.leg is None and r.state < State.FINISHED]
    return sorted(own, key=lambda request: request.row)
