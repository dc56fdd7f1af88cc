"""`hybrid` and `hybrid-paged` in fast mode."""

from __future__ import annotations

from servesim.contracts.kv import KVMemory
from servesim.contracts.request import Request
from servesim.engine.fast.kv.group_turns import GroupTurns
from servesim.engine.fast.kv.others import Asked
from servesim.engine.fast.memory import stands_for
from servesim.policies.kv.hybrid import Hybrid, HybridPaged, HybridParams


class _Grouped(Asked):
    """Lockstep bookkeeping shared by `hybrid` and `hybrid-paged`, whose tables are completed when they are read."""

    turns: GroupTurns

    @property
    def tables(self) -> dict[Request, list[list[int]]]:
        """See `Hybrid`."""
        self.turns.complete_all()
        return super().tables  # type: ignore[misc,no-any-return]

    def check_integrity(self) -> None:
        self.turns.complete_all()
        super().check_integrity()


class FastHybrid(_Grouped, Hybrid):  # type: ignore[misc]
    """`hybrid` in fast mode."""

    def __init__(self, params: HybridParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.turns = GroupTurns(self)


class FastHybridPaged(_Grouped, HybridPaged):  # type: ignore[misc]
    """`hybrid-paged` in fast mode."""

    def __init__(self, params: HybridParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.turns = GroupTurns(self)


stands_for(Hybrid, FastHybrid)
stands_for(HybridPaged, FastHybridPaged)
