"""KV beyond the GPU by SGLang's HiCache (0.5: srt/mem_cache/hiradix_cache.py, srt/managers/cache_controller.py), with
one host memory per replica.

1. Blocks are copied to host memory in parallel with the steps, when the prompt or, later, the answer that they belong
   to is computed: every block (write_through), or those computed or found for the second time
   (write_through_selective).
2. A request that is admitted also loads the continuation of its hit from host memory if this is at least `LEAST_TOKENS`
   long.
3. Loading overlaps with the step layer by layer: a layer begins when its KV is there.

SGLang drops from host memory the nodes of its tree that are no longer in any GPU memory. Here the least recently
requested blocks are dropped, the end of a prompt before its start, whether they are on the GPU or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from servesim.contracts.connector import Together
from servesim.contracts.request import Request
from servesim.features.offload.connector import Offload

LEAST_TOKENS = 10
"""Minimum number of tokens to load; fewer are recomputed (load_back_threshold)."""

NOT_BEHIND_DECODE = (
    "offload: HiCache is off in pools of the role decode, because SGLang's decode servers have no radix cache by "
    "default (--disaggregation-decode-enable-radix-cache and its HiCache, both experimental, are not modeled)"
)


class HiCache(Offload):
    """HiCache's rules, as described above. `layers`: layers of the model. `hits`: number of times a block must be
    computed or found before it is stored."""

    tier = ""
    in_step = True
    needs = frozenset({"external"})
    of_engine = "sglang"
    staged = False
    not_behind: ClassVar[Mapping[str, str]] = {"decode": NOT_BEHIND_DECODE}

    def __init__(self, *args: Any, layers: int, hits: int = 1, **more: Any) -> None:
        super().__init__(*args, **more)
        self._layers, self._hits = layers, hits
        self._seen: Counter[Hashable] = Counter()
        self._counted: dict[Request, int] = {}  # its blocks counted so far
        self._due: list[tuple[int, Sequence[Hashable]]] = []  # bytes and blocks that the planned step loads

    def available(self, request: Request, num_tokens: int) -> int:
        size, now = self.block_tokens, self._now()
        known = (request.num_tokens - 1) // size
        keys = self._blocks_of(request, known)
        first = num_tokens // size
        found = self.memory.find(keys[first:known], now)
        tokens = (first + found) * size - num_tokens
        if not found or tokens < LEAST_TOKENS:
            return 0
        self.memory.touch(keys, now, first + found)
        return tokens

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        size = self.block_tokens
        last = -(-stop // size)
        num_bytes = -(-(stop - start) * self._gpu_bytes // self._gpu_tokens)
        self._due.append((num_bytes, self._blocks_of(request, last)[start // size : last]))
        self._next[request] = last
        self.counts.loaded(request, stop - start, self._tier.name)
        return now

    def ran(self, requests: Iterable[Request], begin_ns: int, end_ns: int) -> int:
        if self._due:
            end_ns = self._overlapped(begin_ns, end_ns)
        now = self._now()
        self._ran_together(now, end_ns)
        for request in requests:
            if request.num_computed_tokens < request.prompt_len:
                continue  # a prompt enters the tree whole
            known = min(request.num_computed_tokens, request.num_tokens) // self.block_tokens
            if known > self._next.get(request, 0):
                known = self._worth_storing(request, known)
            if known > self._next.get(request, 0):
                self._store(request, known, now, end_ns)
        return end_ns

    def follow(self, together: Together | None) -> bool:
        return type(self).ran is HiCache.ran and self._hits == 1 and self._follows(together)

    def _overlapped(self, begin_ns: int, end_ns: int) -> int:
        """Load the due blocks, starting at the beginning of a step; return the end of the step."""
        done = self.loading.copy(sum(num_bytes for num_bytes, _ in self._due), begin_ns)
        for _, keys in self._due:
            self.memory.read(keys, done)
        self._due.clear()
        loading, computing = done - begin_ns, end_ns - begin_ns
        self.counts.load_ns.append(loading)
        return begin_ns + max(computing + loading // self._layers, loading + computing // self._layers)

    def forget(self, request: Request) -> None:
        super().forget(request)
        self._counted.pop(request, None)

    def _worth_storing(self, request: Request, known: int) -> int:
        """Record that a request has computed or found its first `known` blocks; return how many of them, from the
        first, are to be stored."""
        if self._hits == 1:
            return known
        keys = self._blocks_of(request, known)
        self._seen.update(keys[self._counted.get(request, 0) : known])
        self._counted[request] = known
        return next((i for i, key in enumerate(keys[:known]) if self._seen[key] < self._hits), known)
