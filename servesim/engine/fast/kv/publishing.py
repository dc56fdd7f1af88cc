"""Block tables of requests in lockstep in a prefix cache, whose full blocks become findable by their content.

Blocks may be published late, when somebody looks, unless there is a listener to the cache. A listener hears of each
block when reference mode would publish or evict it: turns that do so are extended at their own time, and within one,
requests take and publish their blocks one after the other, in batch order.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from mypy_extensions import mypyc_attr

from servesim.contracts.request import Request
from servesim.engine.fast.kv.lockstep_tables import TableTurns
from servesim.policies.kv._prefix_caching import PrefixCaching

_ORDER = attrgetter("_order")


@mypyc_attr(allow_interpreted_subclasses=True)
class PublishingTurns(TableTurns):
    """Tables whose full blocks are published as the tokens in them become known."""

    def __init__(self, kv: PrefixCaching) -> None:
        super().__init__(kv)
        self._cache = kv
        # Members whose content others may look up, and their offsets, keyed by the number of committed turns (modulo
        # the block size) at which all tokens of a block are known.
        self._filling: dict[int, dict[Request, int]] = {}
        self._committed = 0  # turns committed when the last turn was planned
        self._ahead: bool = kv.params.hash_lookahead_tokens > 0  # a block's hash covers tokens beyond it
        self._tells = False

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        if self._ahead or not super().join(request, offset, num_tokens):
            return False
        if request.content is not None:
            phase = (-offset - 1) % self._size
            if phase not in self._filling:
                self._filling[phase] = {}
            self._filling[phase][request] = offset
        return True

    def leave(self, request: Request, offset: int) -> None:
        super().leave(request, offset)
        if request.content is not None:
            phase = (-offset - 1) % self._size
            del self._filling[phase][request]
            if not self._filling[phase]:
                del self._filling[phase]
        self._offer_known(request, offset)
        # Turns may have ended since the last turn for which memory was extended. If the member joined after that one,
        # all of its turns have ended.
        done = request._num_computed_tokens - request._num_output_placeholders
        self._cache._offer(request, done, done)

    def extend(self, turn: int, committed: int) -> bool:
        if self._tells:
            return self._extend_telling(turn, committed)
        if not super().extend(turn, committed):
            return False
        self._offer_filled(committed)
        return True

    def extend_run(self, turn: int, committed: int, k: int) -> list[tuple[int, int]]:
        if not self._tells:
            grown = super().extend_run(turn, committed, k)
            self._offer_filled(committed + k - 1)
            return grown
        grown = super().extend_run(turn, committed, k - 1)
        last = turn + k - 1
        if (rank := self._due(last)) is not None:
            grown.append((k, rank.size * self._size))
        kept = self._extend_telling(last, committed + k - 1)
        assert kept
        return grown

    def _offer_filled(self, committed: int) -> None:
        """Publish the blocks filled since the last planned turn."""
        for request, offset in self._filled(committed):
            self._offer_known(request, offset)

    def _filled(self, committed: int) -> list[tuple[Request, int]]:
        """Return the members that have filled blocks since the last planned turn, and their offsets. Several turns may
        have ended, for example if prompts were planned in between."""
        ended = committed - self._committed
        self._committed = committed
        if ended == 1:
            full = self._filling.get(committed % self._size)
            return [] if full is None else list(full.items())
        found: list[tuple[Request, int]] = []
        for phase, full in self._filling.items():
            if (committed - phase) % self._size < ended:
                found.extend(full.items())
        return found

    def _offer_known(self, request: Request, offset: int) -> None:
        """Publish the tokens that a member knew when the last turn was planned, since they are now final."""
        self.complete(request)
        known = self._committed + offset + 1
        self._cache._offer(request, known, known)

    def _delivered(self, requests: Sequence[Request], known: list[int]) -> None:
        for request, tokens in zip(requests, known, strict=True):
            self._cache._offer(request, tokens, tokens)

    # With a listener.

    def tell(self) -> bool:
        self._tells = True
        return True

    def silent_turns(self, turn: int, committed: int, limit: int) -> int:
        for phase in self._filling:
            limit = min(limit, (phase - committed) % self._size)
        return self._turns_within(self._cache._fresh.num_blocks, turn, limit)

    def turn_committed(self, committed: int) -> None:
        if committed - 1 > self._committed:  # no turn was planned after the one before
            for request, offset in sorted(self._filled(committed - 1), key=_of_request):
                self._offer_known(request, offset)

    def _extend_telling(self, turn: int, committed: int) -> bool:
        """Extend as `extend` does, request by request."""
        rank = self._due(turn)
        if rank is not None and rank.size > self._kv.num_free_blocks():
            return False
        full = dict(self._filled(committed))
        takes = dict.fromkeys(rank.requests() if rank is not None else ())
        dealt: list[bytes] = []
        for request in sorted({**takes, **full}, key=_ORDER):
            if request in takes:
                dealt.append(self._kv._take(1).tobytes())
            if request in full:
                self._offer_known(request, full[request])
        if rank is not None:
            rank.rounds.append(b"".join(dealt))
        return True


def _of_request(member: tuple[Request, int]) -> int:
    return member[0]._order
