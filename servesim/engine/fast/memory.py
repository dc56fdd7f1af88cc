"""Fast mode's interface to memory. An allocator that supports it also has a separate fast-mode class.

Requests in lockstep grow by one token per turn; `offset` is the number of tokens that a request has computed before a
turn is planned, minus the number of the turn. With an allocator that lacks this interface, the engine takes one step at
a time, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import KVAllocator
from servesim.contracts.request import CounterKeeper, Request


@mypyc_attr(allow_interpreted_subclasses=True)
class LockstepMemory(CounterKeeper):
    """Memory of requests that grow together. Fast allocator classes hold an instance in their attribute `turns`. As the
    keeper of requests with drafts, which keep their own counters, it notes that one was read."""

    def __init__(self) -> None:
        self.looked = False
        """Whether any value that changes as requests decode was read from the allocator, or from a request that it
        keeps. The engine resets this flag."""
        self.look: Callable[[], None] = self.note
        """Callback invoked before such a value is read. It does the work of `note` and whatever the engine adds."""
        self.copies = 1
        """Number of times `usage` counts a token: once for each group of layers that has a table."""
        self.given_back: list[tuple[int, int]] = []
        """(turn, tokens) in order, with turns numbered from 1: tokens that were used and then freed in each turn of the
        last `extend_run` or `grow_rounds`."""

    def note(self) -> None:
        """Record that a value that changes as requests decode was read from the allocator."""
        self.looked = True

    def settle(self, request: Request) -> None:
        self.look()

    def complete(self, request: Request) -> None:
        """Apply a member's pending allocations, which are deferred until they are needed. The default does nothing."""

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        """Add a request to lockstep. It will have memory for at least `num_tokens` tokens at the next `extend`. Return
        False if that is not possible."""
        raise NotImplementedError

    def leave(self, request: Request, offset: int) -> None:
        """Remove a request from lockstep. Its counters must already be up to date."""
        raise NotImplementedError

    def extend(self, turn: int, committed: int) -> bool:
        """Allocate one more token for every member in turn `turn`, after `committed` committed turns. If out of memory,
        allocate nothing and return False."""
        raise NotImplementedError

    def only_takes(self) -> bool:
        """Return whether `usage().free` can only fall while these members keep decoding, turn by turn, so that a
        request that is refused memory stays refused. The default is True."""
        return True

    def steps_until_full(self, turn: int, limit: int, reserve: int) -> int:
        """Return the number of turns from `turn` on, at most `limit`, in which `extend` succeeds and leaves `reserve`
        tokens free."""
        raise NotImplementedError

    def extend_run(self, turn: int, committed: int, k: int) -> list[tuple[int, int]]:
        """Extend as `extend` does for k turns from `turn` on, with one turn committed before each. Return (turn,
        tokens) in order, with turns numbered from 1, for each turn in which `usage().free` changed: tokens allocated
        minus tokens freed. `external` does not change. Requires k <= steps_until_full(...)."""
        raise NotImplementedError

    def taken_in(self, turn: int, k: int) -> int | None:
        """Return how many tokens `extend_run` would allocate in k turns from `turn` on, or None if only that can tell.
        The default is None."""
        return None

    def tell(self) -> bool:
        """Report blocks from now on in the very turn in which they are published or evicted, request by request. Call
        it before the first request. Return False if that is not possible, as by default."""
        return False

    def silent_turns(self, turn: int, committed: int, limit: int) -> int:
        """Return the number of turns from `turn` on, at most `limit`, that report nothing, with one turn committed
        before each. While blocks are reported, `extend_run` may end with a turn that reports, but not go past one."""
        raise NotImplementedError

    def turn_committed(self, committed: int) -> None:
        """Report what the last of `committed` turns published as it ended. Called only while blocks are reported."""
        raise NotImplementedError

    def rounds_that_fit(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, limit: int
    ) -> int:
        """Return the number of rounds, at most `limit`, for which memory suffices. A round adds several tokens. Each of
        `requests` needs memory for the token counts in its (rising) sequence in `tokens` plus `ahead`, but none beyond
        `max_model_len`. The default is 0."""
        return 0

    def grow_rounds(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, k: int
    ) -> list[tuple[int, int]]:
        """Allocate the memory described in `rounds_that_fit` to each request in order, one round at a time, for k
        rounds. The token counts in `tokens` are known when a round begins; the caller updates the requests' own
        counters. Return a list like that of `extend_run`. Requires that all k rounds fit."""
        raise NotImplementedError


def lockstep_memory(kv: KVAllocator) -> LockstepMemory | None:
    """Return an allocator's interface for requests in lockstep, or None if it is a plain allocator."""
    own: Any = kv
    turns: LockstepMemory | None = getattr(own, "turns", None)
    return turns


stand_ins: dict[type[KVAllocator], type[KVAllocator]] = {}
"""Fast-mode classes that replace allocator classes, by plain class."""


def stands_for(plain: type[KVAllocator], fast: type[KVAllocator]) -> None:
    """Register a class that replaces an allocator's class, but not its subclasses, in fast mode."""
    stand_ins[plain] = fast
