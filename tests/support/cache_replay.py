"""A prefix cache by itself: the prompts of a trace one after the other, no engine, nothing held while it runs.

What a cache of so many blocks can find in a trace; published figures of that kind (Mooncake, FAST'25) leave the engine
out, too. An engine finds less: it hashes full blocks only, computes the last token again, and running requests hold
blocks and fill others with what they generate.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from servesim.errors import UserError
from servesim.metrics.requests import per
from servesim.workload.content import RunContent
from servesim.workload.trace import Trace

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class CacheHits:
    """What came of a replay."""

    queried_tokens: int
    hit_tokens: int

    @property
    def token_hit_rate(self) -> float:
        """Share of prompt tokens found."""
        return per(self.hit_tokens, self.queried_tokens) or 0.0


def replay_cache(
    trace: Trace,
    num_blocks: int | None,
    block_size: int = 512,
    rule: Literal["ceil", "full"] = "ceil",
    eviction: Literal["lru", "belady"] = "lru",
) -> CacheHits:
    """Replay the prompts of a trace through a cache of `num_blocks` blocks (None: unbounded).

    A prompt finds the longest run of its blocks from the start that is there; then all its blocks are used in order,
    entering where they are missing. `rule`: "ceil" counts a partial last block as one, and a whole prompt may be
    found (Mooncake's trace); "full" is an engine's: full blocks short of the last token. `eviction`: the least
    recently used block, or the one used again last ("belady": of equals the one deepest in its prompt).
    """
    prompts = _blocks(trace, block_size, rule)
    cache: _Lru | _Belady = _Lru(num_blocks) if eviction == "lru" else _Belady(num_blocks, prompts)
    hit_tokens = 0
    for row, (keys, length) in enumerate(zip(prompts, trace.prompt_len.tolist(), strict=True)):
        found = next((i for i, key in enumerate(keys) if key not in cache), len(keys))
        hit_tokens += min(found * block_size, length)
        for depth, key in enumerate(keys):
            cache.use(key, row, depth)
    return CacheHits(int(trace.prompt_len.sum()), hit_tokens)


def _blocks(trace: Trace, block_size: int, rule: str) -> list[list[Hashable]]:
    """The blocks of each prompt, known by what they and all before them contain."""
    if trace.content is None:
        raise UserError(f"trace {trace.name} does not say what its prompts contain: there is nothing to share")
    prompts = []
    for row, length in enumerate(trace.prompt_len.tolist()):
        content = RunContent(row, trace.content.runs(row))
        count = -(-length // block_size) if rule == "ceil" else (length - 1) // block_size
        prompts.append([content.prefix_key(min((i + 1) * block_size, length)) for i in range(count)])
    return prompts


class _Lru:
    def __init__(self, num_blocks: int | None) -> None:
        self._most = num_blocks
        self._blocks: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._blocks

    def use(self, key: Hashable, row: int, depth: int) -> None:
        blocks = self._blocks
        if key in blocks:
            blocks.move_to_end(key)
            return
        if self._most is not None and len(blocks) >= self._most:
            blocks.popitem(last=False)
        blocks[key] = None


class _Belady:
    def __init__(self, num_blocks: int | None, prompts: list[list[Hashable]]) -> None:
        self._most = num_blocks
        self._next: dict[Hashable, int] = {}  # of the blocks that are there: the row that uses them next
        self._heap: list[tuple[int, int, int, Hashable]] = []  # with entries of before their last use
        self._uses: dict[Hashable, list[int]] = {}  # rows to come, the next one last
        for row in reversed(range(len(prompts))):
            for key in prompts[row]:
                self._uses.setdefault(key, []).append(row)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._next

    def use(self, key: Hashable, row: int, depth: int) -> None:
        uses = self._uses[key]
        uses.pop()
        if self._most is not None and key not in self._next and len(self._next) >= self._most:
            self._evict()
        self._next[key] = uses[-1] if uses else NEVER
        heapq.heappush(self._heap, (-self._next[key], -depth, -row, key))

    def _evict(self) -> None:
        while True:
            due, _, _, key = heapq.heappop(self._heap)
            if self._next.get(key) == -due:
                del self._next[key]
                return
