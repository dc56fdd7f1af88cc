"""What prefix caching adds to paged memory, however the cache is kept: which blocks are final, and when others may
find them (vLLM 0.33: vllm/v1/core/kv_cache_manager.py)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import Hit, KVMemory
from servesim.contracts.request import Request

from ._prefix_hash_params import PrefixHashParams
from .paged import Paged


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixCaching(Paged):
    """Full blocks are published when memory for their last token is allocated, in the order of the table. Content
    that the trace does not tell is shared with nobody, and entered only when its request may come back."""

    Params = PrefixHashParams
    shares = True

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self._published: dict[Request, int] = {}  # blocks of its table offered for sharing so far
        # Requests in lockstep whose content others may ask for, and their offsets, by the number of steps committed
        # (modulo the block size) when all tokens of a block are known.
        self._filling: dict[int, dict[Request, int]] = {}
        self._committed = 0  # when the last step was planned

    def can_fork(self) -> bool:
        """Not where what a block is known by would depend on the sample that goes on from it."""
        return super().can_fork() and not self.params.hash_lookahead_tokens

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        super().admit(request, hit, num_tokens, lookahead)
        self._published[request] = hit.num_tokens // self.block_size
        self.publish(request, min(hit.num_tokens + num_tokens, request.num_tokens))

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        if not super().grow(request, num_tokens, lookahead):
            return False
        self.publish(request, min(request.num_computed_tokens + num_tokens, request.num_tokens))
        return True

    def grow_run(self, requests: Sequence[Request], k: int) -> list[tuple[int, int]]:
        grown = super().grow_run(requests, k)
        for request in requests:
            known = request.num_tokens + k
            self._offer(request, min(request.num_computed_tokens + k, known), known)
        return grown

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        if not super().join(request, offset, num_tokens):
            return False
        if request.content is not None:
            phase = (-offset - 1) % self.block_size
            if phase not in self._filling:
                self._filling[phase] = {}
            self._filling[phase][request] = offset
        return True

    def leave(self, request: Request, offset: int) -> None:
        super().leave(request, offset)
        if request.content is not None:
            phase = (-offset - 1) % self.block_size
            del self._filling[phase][request]
            if not self._filling[phase]:
                del self._filling[phase]
        self._offer_known(request, offset)

    def extend(self, step: int, committed: int) -> bool:
        if not super().extend(step, committed):
            return False
        self._committed = committed
        if (full := self._filling.get(committed % self.block_size)) is not None:
            for request, offset in full.items():
                self._offer_known(request, offset)
        return True

    def extend_run(self, step: int, committed: int, k: int) -> list[tuple[int, int]]:
        grown = super().extend_run(step, committed, k)
        self._committed = last = committed + k - 1
        for phase, full in self._filling.items():
            if (last - phase) % self.block_size < k:
                for request, offset in full.items():
                    self._offer_known(request, offset)
        return grown

    def _offer_known(self, request: Request, offset: int) -> None:
        """What a request in lockstep knew when the last step was planned is final."""
        self._complete(request)
        known = self._committed + offset + 1
        self._offer(request, known, known)

    def grow_rounds(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, k: int
    ) -> list[tuple[int, int]]:
        grown = super().grow_rounds(requests, tokens, ahead, k)
        for request, known in zip(requests, tokens, strict=True):
            self._offer(request, known[k - 1], known[k - 1])
        return grown

    def publish(self, request: Request, upto: int) -> None:
        """Enter the full blocks before `upto` into the cache."""
        self._offer(request, upto, request.num_tokens)

    def _offer(self, request: Request, upto: int, known: int) -> None:
        done = self._published[request]
        if upto < (done + 1) * self.block_size:
            return
        full = min(upto, known - self.params.hash_lookahead_tokens) // self.block_size
        if full <= done:
            return
        self._enter(request, done, full)
        self._published[request] = full

    def _share(self, request: Request, sample: Request) -> int:
        self._published[sample] = self._published[request]
        return 0

    def _restored(self, together: Sequence[Request]) -> None:
        super()._restored(together)
        for request in together:
            self._published[request] = 0

    def _findable(self, request: Request) -> int:
        """Blocks from the start of a waiting request that a lookup may find: its last token is always recomputed."""
        known = request.num_tokens
        lookahead: int = self.params.hash_lookahead_tokens
        return (known - max(lookahead, 1)) // self.block_size

    def _ends(self, start: int, stop: int) -> range:
        """For blocks start to stop, how many tokens from the start of a prompt decide what each holds."""
        size, lookahead = self.block_size, self.params.hash_lookahead_tokens
        return range((start + 1) * size + lookahead, stop * size + lookahead + 1, size)

    @abstractmethod
    def _enter(self, request: Request, start: int, stop: int) -> None:
        """Blocks start to stop of a request's table are final: make them findable by their content, if that is told."""
