"""One request on its way through two replicas, and the request that computes its prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from servesim.contracts.request import Request, State


@dataclass(eq=False)
class Passage:
    """One request on its way through two replicas. Times in ns; -1 if the event has not happened."""

    request: Request
    output_len: int
    leg: Request
    """The request that computes its prompt."""
    prefill: int
    decode: int = -1
    sent_ns: int = -1
    """Time of arrival at the decode side."""
    reserved_ns: int = -1
    """Time at which the decode side allocates memory for it, so that the transfer can begin."""
    received_ns: int = -1
    """Time at which the transfer ends."""
    released_ns: int = -1
    """Time at which the memory at the source is freed."""
    num_bytes: int = 0
    loading: bool = field(default=False)
    """Whether its memory on the decode side is waiting for KV to arrive."""
    stop: Callable[[], None] | None = None
    """Function that breaks off its transfer, which is under way."""
    promised: bool = False
    """Whether the decode router has counted it at its decode replica, where it is not sent yet."""
    crashed: bool = False
    """Whether its KV was lost with the source."""
    lost: bool = False
    """Whether its request was lost with a replica, so that this passage has no end."""

    @property
    def prefilled(self) -> bool:
        """Return whether its KV is at the source and not freed yet."""
        return self.leg.state is State.FINISHED and self.released_ns < 0


def leg_of(request: Request) -> Request:
    """Return a request that computes another request's prompt, and what it has generated elsewhere, and generates one
    token."""
    leg = Request(
        row=request.row,
        name=request.name,
        prompt_len=request.num_tokens,
        max_tokens=1,
        arrival_ns=request.arrival_ns,
        priority=request.priority,
        salt=request.salt,
        content=request.content,
        session=request.session,
        tenant=request.tenant,
        slo_class=request.slo_class,
        model=request.model,
        predicted_output_len=1,
        owner=request,
    )
    if request.num_migrations:  # admitted once, as the record of the request says
        leg.state, request.state = request.state, State.WAITING
        leg.scheduled_ns, leg.hit_tokens = request.scheduled_ns, request.hit_tokens
    return leg
