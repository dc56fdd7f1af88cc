"""Host memory of an engine in Dynamo's simulator (ai-dynamo-runtime 1.6.1, whose crate aisimulate-core 0.13.0 has it in
src/engine/host_offload).

It follows vLLM's offloading connector, with these differences: only the blocks of prompts are kept, and a block becomes
the most recently used when its copy from or to the GPU ends; until then no lookup changes its place. Blocks that were
copied together are ordered by their identities, which stand for the order of a set.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence

import numpy as np

from servesim.contracts.request import Request
from servesim.features.offload.connector import Offload
from servesim.features.offload.memory import Block, HostMemory
from servesim.workload.trace import Trace
from servesim_lab.dynamo.sequence_hash import sequence_hash


class MockerMemory(HostMemory):
    """Blocks in host memory; the least recently used of those that are not being copied is dropped first."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.identity: dict[Hashable, int] = {}
        """Identities of blocks by key; 0 for a key that is missing."""
        self._blocks: dict[Hashable, Block] = {}
        self._order: OrderedDict[Hashable, None] = OrderedDict()  # blocks that may be dropped
        self._copied: dict[Hashable, Block] = {}  # blocks being copied, in order of the beginnings

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, key: Hashable) -> Block | None:
        return self._blocks.get(key)

    def touch(self, keys: Sequence[Hashable], now: int, count: int | None = None) -> None:
        self._settle(now)
        for key in reversed(keys[:count]):
            if key in self._order:
                self._order.move_to_end(key)

    def insert(self, key: Hashable, block: Block) -> None:
        self._blocks[key] = self._copied[key] = block

    def remove(self, key: Hashable) -> None:
        del self._blocks[key], self._copied[key]

    def evict(self, count: int, keep: Collection[Hashable], now: int) -> list[Hashable] | None:
        self._settle(now)
        going = [key for key, _ in zip((key for key in self._order if key not in keep), range(count), strict=False)]
        if len(going) < count:
            return None
        for key in going:
            del self._blocks[key], self._order[key]
        return going

    def read(self, keys: Sequence[Hashable], until: int) -> None:
        super().read(keys, until)
        for key in keys:
            self._order.pop(key, None)
            self._copied.pop(key, None)
            self._copied[key] = self._blocks[key]

    def _settle(self, now: int) -> None:
        """Make the blocks whose copies have ended the most recently used ones, in order of the ends."""
        ends = {key: max(block.ready_ns, block.read_until) for key, block in self._copied.items() if block.idle(now)}
        for key in sorted(ends, key=lambda key: (ends[key], self.identity.get(key, 0))):
            del self._copied[key]
            self._order[key] = None


class MockerOffload(Offload):
    """Connector to such memory. `tokens`: tokens of every request's prompt, by row, as that simulator makes them."""

    memory: MockerMemory
    tokens: Sequence[np.ndarray] = ()

    def _store(self, request: Request, known: int, now: int, end_ns: int) -> None:
        known = min(known, request.prompt_len // self.block_tokens)
        if request.row < len(self.tokens):
            self._identify(self._blocks_of(request, known)[:known], self.tokens[request.row])
        super()._store(request, known, now, end_ns)

    def _identify(self, keys: Sequence[Hashable], tokens: np.ndarray) -> None:
        known, size, parent = self.memory.identity, self.block_tokens, None
        for i, key in enumerate(keys):
            if key not in known:
                known[key] = sequence_hash(parent, tokens[i * size : (i + 1) * size].tolist())
            parent = known[key]


def tokens_of(trace: Trace) -> list[np.ndarray]:
    """Return the tokens that the simulator makes of each prompt: every token of a run is the number of contents that
    came up before its own, in the order of the trace. Return nothing for a trace without contents."""
    if trace.content is None:
        return []
    ids, first = np.unique(trace.content.ids, return_index=True)
    numbers = np.empty(len(ids), dtype=np.int64)
    numbers[np.argsort(first)] = np.arange(len(ids))
    tokens = np.repeat(numbers[np.searchsorted(ids, trace.content.ids)], trace.content.lengths)
    return np.split(tokens, np.cumsum(trace.prompt_len)[:-1])
