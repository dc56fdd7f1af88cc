"""Performance of a pool's replicas by its cost model, for policies that plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servesim.contracts.cost import Batch
from servesim.contracts.router import Role

if TYPE_CHECKING:
    from servesim.engine.pool import Pool

SECOND = 1e9


class CostProfile:
    """A replica's limits, and its step times in seconds according to its cost model, with steps planned ahead. Tokens
    and sequences are spread evenly over its data-parallel ranks."""

    def __init__(self, pool: Pool) -> None:
        assert pool.spawn is not None
        core = pool.cores[0] if pool.cores else pool.spawn()
        limits = core.scheduler.limits
        self.role: Role = pool.role
        self.models = pool.models
        self._ranks = ranks = pool.ranks
        self.num_gpus = pool.num_gpus * ranks
        self.usd_per_hour = pool.usd_per_hour * ranks
        self.max_num_batched_tokens = limits.max_num_batched_tokens * ranks
        self.max_num_seqs = limits.max_num_seqs * ranks
        self.kv_tokens = core.kv.capacity_tokens * ranks
        self._cost = pool.cost
        self._known: dict[tuple[int, int], float] = {}  # of decode steps, by (sequences, context)

    def _s(self, batch: Batch) -> float:
        price = self._cost.prices([batch] * self._ranks)[0]
        return (price.gpu_ns + price.host.exposed) / SECOND

    def prefill_s(self, tokens: int) -> float:
        """Return the time of a step that computes only a prompt."""
        tokens = -(-tokens // self._ranks)
        return self._s(Batch(tokens, [(tokens, 0)], sampled=1, sampled_context=tokens))

    def decode_s(self, sequences: int, context: int) -> float:
        """Return the time of a step in which sequences with a given context each generate a token."""
        sequences = -(-sequences // self._ranks)
        total, key = sequences * context, (sequences, context)
        if key not in self._known:
            self._known[key] = self._s(Batch.decodes(sequences, total, total * context, context))
        return self._known[key]
