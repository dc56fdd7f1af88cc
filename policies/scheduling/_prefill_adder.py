"""Budget of one SGLang prefill batch (0.5.23: srt/managers/schedule_policy.py, PrefillAdder;
srt/mem_cache/prefill_budget.py).

New requests are charged for all the tokens they may still generate; running ones, for a share of theirs,
`new_token_ratio`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from servesim.contracts import Hit, KVAllocator, Request

CLIP_MAX_NEW_TOKENS = 4096
"""Cap on the number of tokens that any request is expected to generate."""
IGNORE_EOS_RESERVE_TOKENS = 1


class Added(Enum):
    """Result of adding a request, and whether another may follow."""

    CONTINUE = "continue"
    NO_TOKEN = "no token"
    """All memory is committed: the batch counts as full until a request leaves."""
    OTHER = "other"


class Grant(NamedTuple):
    """Number of tokens of a request that this batch computes, and whether any are left over."""

    tokens: int
    chunked: bool
    """Whether the prompt continues in a later batch."""


def max_new(request: Request, clip: int = CLIP_MAX_NEW_TOKENS) -> int:
    """Return the number of tokens that a request may still generate, capped for planning."""
    return min(max(request.max_tokens - request.num_output_tokens, 0), clip)


class PrefillAdder:
    """Budgets of one batch: tokens of memory, of input, and of one chunk. `left` is the number of tokens that the
    `running` requests may still generate, each request capped at CLIP_MAX_NEW_TOKENS. `decodes` is the number of decode
    requests mixed into the batch."""

    def __init__(
        self,
        kv: KVAllocator,
        running: Sequence[Request],
        left: int,
        new_token_ratio: float,
        max_prefill_tokens: int,
        chunked_prefill_size: int | None,
        decodes: int = 0,
        ignore_eos: bool = False,
    ) -> None:
        self.page = kv.block_size
        self.available = kv.usage().free
        self.running = list(running)
        self.ratio = new_token_ratio
        self.ignore_eos = ignore_eos
        self.total_offset = decodes + left * new_token_ratio
        self.current_offset = decodes
        self.input_left = max_prefill_tokens - decodes
        self.chunk_left = None if chunked_prefill_size is None else chunked_prefill_size - decodes
        self.added: list[Request] = []

    @property
    def remaining(self) -> float:
        """Tokens of memory that are free and that no request is expected to need."""
        return self.available - self.total_offset

    @property
    def remaining_now(self) -> int:
        """Tokens of memory that this batch has not taken yet."""
        return self.available - self.current_offset

    def state(self) -> Added:
        """Return whether another request may be added."""
        if self.remaining <= 0 or self.remaining_now <= 0:
            return Added.NO_TOKEN
        if self.input_left <= 0 or (self.chunk_left is not None and self.chunk_left <= 0):
            return Added.OTHER
        return Added.CONTINUE

    def continue_chunk(self, request: Request, left: int, limit: int | None = None) -> Grant:
        """Continue the partially computed prompt, which goes first. It must make progress regardless of the memory
        left."""
        assert self.chunk_left is not None
        most = min(self.chunk_left, int(self.remaining))
        if most <= 0:
            most = self.chunk_left
        if limit is not None:
            most = min(most, limit)
        tokens = min(left, most)
        self._charge(request, tokens, 0 if left > most else min(request.max_tokens, CLIP_MAX_NEW_TOKENS))
        return Grant(tokens, left > most)

    def add(
        self, request: Request, hit: Hit, idle_tokens: int, *, whole: bool = False, external: int = 0
    ) -> Grant | Added:
        """Grant a waiting request tokens to compute, after its hit and the `external` tokens that follow the hit and
        are loaded instead. If the request is added, `idle_tokens` of the hit's tokens can no longer be evicted. `whole`
        forbids a second chunked prompt alongside one in progress."""
        extend = request.num_tokens - hit.num_tokens
        if self.ignore_eos:
            if not self._completions_fit(request, extend):
                return Added.NO_TOKEN
        elif extend + max_new(request) + self.page >= self.remaining - idle_tokens:
            return Added.NO_TOKEN
        extend -= external
        paged = self._paged(extend)
        if self.chunk_left is None and self.added and paged >= self.input_left:
            return Added.OTHER
        tokens = extend
        if self.chunk_left is not None and paged > self.chunk_left:
            if whole:
                return Added.OTHER
            here = hit.num_tokens + external
            tokens = (here + self.chunk_left // self.page * self.page) // self.page * self.page - here
            if tokens <= 0:
                return Added.OTHER
        self.available -= idle_tokens + self._paged(external)
        self._charge(request, tokens, 0 if tokens < extend else min(request.max_tokens, CLIP_MAX_NEW_TOKENS))
        return Grant(tokens, tokens < extend)

    def _charge(self, request: Request, tokens: int, new_tokens: int) -> None:
        paged = self._paged(tokens)
        self.total_offset += paged + self.page + new_tokens
        self.current_offset += paged + self.page
        self.input_left -= paged
        if self.chunk_left is not None:
            self.chunk_left -= paged
        self.added.append(request)

    def _completions_fit(self, request: Request, extend: int) -> bool:
        """Return whether memory suffices if every request runs to its cap. The order of completions is then known, and
        the memory free at each completion must cover the remaining requests."""
        paged = self._paged(extend) + self.page
        if paged > min(self.remaining_now, self.remaining):
            return False
        ends = [(r.max_tokens - r.num_output_tokens, r.num_tokens) for r in [request, *self.running, *self.added]]
        free = self.remaining_now - paged
        ends = sorted((end for end in ends if end[0] > 0), key=lambda end: end[0])
        for i, (left, occupied) in enumerate(ends):
            going = len(ends) - i
            if free - left * going <= IGNORE_EOS_RESERVE_TOKENS * going:
                return False
            free += occupied
        return True

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page
