"""A step in which requests may be counted instead of listed."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts.cost import Batch
from servesim.contracts.kv import Usage
from servesim.contracts.request import Request
from servesim.engine.step import NO_DRAFTS, Step

PAUSE = -1


@dataclass(slots=True, init=False)
class FastStep(Step):
    """Before those in `sampled`, `together` requests in lockstep get a token."""

    together: int
    turn: int
    """Number of the turn of those in lockstep; PAUSE: they take no part, though there are some."""

    def __init__(  # written out, that a compiled build compiles it
        self,
        id: int,
        batch: Batch,
        sampled: list[Request],
        usage: Usage,
        drafts: dict[Request, int] = NO_DRAFTS,
        preempted: int = 0,
        planned_ns: int = 0,
        start_ns: int = 0,
        end_ns: int = 0,
        gpu_ns: int = 0,
        host_ns: int = 0,
        shares: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0),
        together: int = 0,
        turn: int = PAUSE,
    ) -> None:
        Step.__init__(
            self, id, batch, sampled, usage, drafts, preempted, planned_ns, start_ns, end_ns, gpu_ns, host_ns, shares
        )
        self.together = together
        self.turn = turn
