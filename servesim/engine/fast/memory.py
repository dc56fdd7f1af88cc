"""Fast mode's questions to memory: an allocator that can answer is a class of its own, beside the plain one.

Requests in lockstep grow by one token in every turn; `offset` is what a request has computed before a turn is planned,
minus the number of the turn. An allocator without an answer is stepped plainly, and right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import KVAllocator
from servesim.contracts.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class LockstepMemory:
    """Memory of requests that grow together: what a fast class of an allocator has as its attribute `turns`."""

    def __init__(self) -> None:
        self.looked = False
        """Whether the allocator was asked for something that changes as requests decode; the engine clears it."""
        self.look: Callable[[], None] = self.note
        """Called before such a question is answered; does what `note` does, and what the engine adds."""
        self.copies = 1
        """How often `usage` counts a token: once for each group of layers that have a table."""
        self.given_back: list[tuple[int, int]] = []
        """(turn from 1, tokens) that memory had used and gave back in turns of the last `extend_run` or `grow_rounds`,
        in order."""

    def note(self) -> None:
        """Note that the allocator is asked for something that changes as requests decode."""
        self.looked = True

    def complete(self, request: Request) -> None:
        """Enter what a member was given and is only entered when it is read. Default: nothing."""

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        """Take a request into lockstep that will have memory for `num_tokens` tokens or more when the next `extend`
        comes; False if it cannot be."""
        raise NotImplementedError

    def leave(self, request: Request, offset: int) -> None:
        """Let a request out of lockstep; its counters are up to date."""
        raise NotImplementedError

    def extend(self, turn: int, committed: int) -> bool:
        """Allocate one more token for every member for turn `turn`, given `committed` committed turns. False: out of
        memory, nothing taken."""
        raise NotImplementedError

    def only_takes(self) -> bool:
        """Return whether `usage().free` can only fall while these members go on decoding, turn by turn. Default: it
        does, so that a request which is refused memory stays refused."""
        return True

    def steps_until_full(self, turn: int, limit: int, reserve: int) -> int:
        """Return for how many turns from `turn` on, at most `limit`, `extend` succeeds and leaves `reserve` tokens
        free."""
        raise NotImplementedError

    def extend_run(self, turn: int, committed: int, k: int) -> list[tuple[int, int]]:
        """Do as `extend` does for k turns from `turn` on, one being committed before each. Return (turn from 1, tokens
        allocated in it, less those given back) for those in which any were, in order: each takes as much from
        `usage().free`, and `external` stays. Only with k <= steps_until_full(...)."""
        raise NotImplementedError

    def rounds_that_fit(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, limit: int
    ) -> int:
        """Return for how many rounds of several tokens each, at most `limit`, each of `requests` can have memory for
        the tokens that its own sequence in `tokens` names (rising) and `ahead` more, beyond `max_model_len` none.
        Default: none."""
        return 0

    def grow_rounds(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, k: int
    ) -> list[tuple[int, int]]:
        """For k rounds one by one, give each request in order that memory. `tokens` are known when a round begins; the
        requests' own counters are left to the caller. Return as `extend_run`. Only with as many rounds as fit."""
        raise NotImplementedError


def lockstep_memory(kv: KVAllocator) -> LockstepMemory | None:
    """Return what an allocator has for requests in lockstep; None: it is a plain one."""
    own: Any = kv
    turns: LockstepMemory | None = getattr(own, "turns", None)
    return turns


stand_ins: dict[type[KVAllocator], type[KVAllocator]] = {}
"""Classes that take the place of an allocator's in fast mode, by plain class."""


def stands_for(plain: type[KVAllocator], fast: type[KVAllocator]) -> None:
    """Let a class take the place of an allocator's in fast mode, though not of its subclasses'."""
    stand_ins[plain] = fast
