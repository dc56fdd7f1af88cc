"""A step between its plan and its commit."""

from __future__ import annotations

from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from servesim.contracts.cost import Batch, Sources
from servesim.contracts.kv import Usage
from servesim.contracts.request import Request

NO_DRAFTS: dict[Request, int] = {}  # read-only
_NOBODY: frozenset[Request] = frozenset()


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True, init=False)
class Step:
    """A planned step until it is committed."""

    id: int
    batch: Batch
    sampled: list[Request]
    """Requests that get a token when the step is done, in batch order."""
    usage: Usage
    drafts: dict[Request, int]
    preempted: int
    accepted: int
    """Number of draft tokens accepted and delivered, once the step is committed."""
    verified: list[tuple[int, int]] | None
    """(depth, accepted) of the drafts that the step verified, once it is committed."""
    dummies: frozenset[Request]
    """Requests whose drafts only keep the batch uniform (newly admitted requests): none can be accepted."""
    stale: set[Request] | None
    """Requests preempted since planning: their tokens are still delivered, and their counters are kept."""
    planned_ns: int
    start_ns: int
    end_ns: int
    gpu_ns: int
    host_ns: int
    sources: Sources
    """The parts of `gpu_ns` by origin."""

    def __init__(  # explicit so that mypyc compiles it
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
        sources: Sources = (0, 0, 0, 0),
    ) -> None:
        self.id, self.batch, self.sampled = id, batch, sampled
        self.usage, self.drafts, self.preempted = usage, drafts, preempted
        self.accepted, self.dummies = 0, _NOBODY
        self.verified, self.stale = None, None
        self.planned_ns, self.start_ns, self.end_ns = planned_ns, start_ns, end_ns
        self.gpu_ns, self.host_ns, self.sources = gpu_ns, host_ns, sources


Late = tuple[int, int, int]
"""(row, time of the request's previous tokens, number of tokens it got now)."""
