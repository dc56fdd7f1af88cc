"""Prefix caching on top of paged memory, independent of the cache structure: which blocks are final, and when other
requests may find them (vLLM 0.33: vllm/v1/core/kv_cache_manager.py)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import Hit, KVMemory
from servesim.contracts.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, key_of
from servesim.contracts.request import Request, State

from ._prefix_hash_params import PrefixHashParams
from .paged import Paged


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixCaching(Paged):
    """Prefix cache that publishes full blocks, in table order, when memory for their last token is allocated. Content
    missing from the trace is never shared, and is entered only if its request may come back."""

    Params = PrefixHashParams
    shares = True
    supports = frozenset({"fork", "events", "remote_kv"})

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self._published: dict[Request, int] = {}  # published blocks of the request's table
        self._told: dict[int, Hashable] = {}  # findable blocks and their keys, kept if there is a listener

    def can_fork(self) -> bool:
        """Return whether samples can share memory. They cannot if a block's identity depends on how a sample
        continues."""
        return super().can_fork() and not self.params.hash_lookahead_tokens

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        super().admit(request, hit, num_tokens, lookahead)
        self._published[request] = hit.num_tokens // self.block_size
        if request.state is not State.LOADING:
            self.publish(request, min(hit.num_tokens + num_tokens, request.num_tokens))

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        if not super().grow(request, num_tokens, lookahead):
            return False
        self.publish(request, min(request._num_computed_tokens + num_tokens, request._num_tokens))
        return True

    def publish(self, request: Request, upto: int) -> None:
        """Enter the full blocks before token `upto` into the cache."""
        if upto >= (self._published[request] + 1) * self.block_size:
            self._offer(request, upto, request._num_tokens)

    def _offer(self, request: Request, upto: int, known: int) -> None:
        done = self._published[request]
        if upto < (done + 1) * self.block_size:
            return
        full = min(upto, known - self.params.hash_lookahead_tokens) // self.block_size
        if full <= done:
            return
        self._enter(request, done, full)
        self._published[request] = full
        if self.on_event is not None:
            self._tell_stored(request, done, full)

    def _tell_stored(self, request: Request, start: int, stop: int) -> None:
        """Report that blocks [start, stop) of a request's table can be found, except leading ones already reported for
        samples that share them."""
        tell, content, told, table = self.on_event, request.content, self._told, self._tables[request]
        while start < stop and table[start] in told:
            start += 1
        if tell is None or content is None or start == stop:
            return
        before = 1 if start else 0
        keys = [key_of(content.prefix_key(end), request.salt) for end in self._ends(start - before, stop)]
        parent = keys.pop(0) if before else None
        told.update(zip(table[start:stop], keys, strict=True))
        tell(BlockStored(tuple(keys), parent, self.block_size, content, start * self.block_size))

    def _tell_removed(self, blocks: Iterable[int]) -> None:
        """Report that blocks are evicted, if they could be found."""
        keys = [self._told.pop(block) for block in blocks if block in self._told]
        if keys and self.on_event is not None:
            self.on_event(BlockRemoved(tuple(keys)))

    def _tell_cleared(self) -> None:
        """Report that no block can be found anymore."""
        self._told.clear()
        if self.on_event is not None:
            self.on_event(AllBlocksCleared())

    def _share(self, request: Request, sample: Request) -> int:
        self._published[sample] = self._published[request]
        return 0

    def _restored(self, together: Sequence[Request]) -> None:
        super()._restored(together)
        for request in together:
            self._published[request] = 0

    def _findable(self, request: Request) -> int:
        """Return how many leading blocks of a waiting request a lookup may find at most, given that its last token is
        always recomputed."""
        known = request.num_tokens
        lookahead: int = self.params.hash_lookahead_tokens
        return (known - max(lookahead, 1)) // self.block_size

    def _ends(self, start: int, stop: int) -> range:
        """Return, for each block in [start, stop), how many tokens from the start of the prompt determine its
        content."""
        size, lookahead = self.block_size, self.params.hash_lookahead_tokens
        return range((start + 1) * size + lookahead, stop * size + lookahead + 1, size)

    @abstractmethod
    def _enter(self, request: Request, start: int, stop: int) -> None:
        """Make final blocks [start, stop) of a request's table findable by their content, if it is known."""
