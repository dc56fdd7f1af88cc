"""Prefix caching for models with sliding windows or states in some layers: a block table per group of layers.

All groups draw on one pool of blocks of equal size in bytes (vLLM 0.33: vllm/v1/core/kv_cache_coordinator.py,
single_type_kv_cache_manager.py). A state is a window of `STATE_WINDOW` tokens, held by the block that contains the last
computed token. Of the blocks that a step passes, only the last two are taken; a prefix is found at the end of the first
of these (mamba_cache_mode align; vLLM ends a step there, which is not modeled). With prefix caching off, only the last
block is taken.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from servesim.contracts.kv import MISS, Hit, KVMemory, Usage, kv_allocators
from servesim.contracts.params import check_least
from servesim.contracts.request import Request, State
from servesim.hardware.layers import STATE_WINDOW

from ._block_tables import WIDTH, ids
from ._blockwise import BlockwisePrefix
from ._prefix_hash_params import PrefixHashParams

NULL = 0
"""Null block, a table placeholder for blocks that have slid out of the window."""


@dataclass(frozen=True)
class HybridParams(PrefixHashParams):
    """Variants of vLLM's prefix cache for groups of layers."""

    prefix_cache_retention_interval: int | Literal["dense"] = 0
    """Sliding-window blocks that stay findable. 0: those needed by a hit at the end of the prompt (and at the end of a
    prefix seen to be shared); N tokens: also those needed at every multiple of N; dense: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix_cache_retention_interval != "dense":
            check_least(self, 0, "prefix_cache_retention_interval")


@kv_allocators.register("hybrid")
class Hybrid(BlockwisePrefix):
    """Hybrid KV cache. A group with a window gives back blocks that have slid out of it, and shares a prefix if the
    prefix's last window is cached. A prefix is found as far as every group has it. Capacity and usage count a token
    once per group; for a state, which has no tokens, they count blocks."""

    Params = HybridParams
    params: HybridParams
    grouped = True
    supports = frozenset({"remote_kv"})
    state_blocks = 2
    """Maximum number of blocks that a step takes for a state."""

    def __init__(self, params: HybridParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.windows = memory.windows
        self._tables: dict[Request, list[array[int]]] = {}  # type: ignore[assignment]
        kinds: dict[int | None, list[int]] = {}
        for group, window in enumerate(memory.windows):
            kinds.setdefault(window, []).append(group)
        self._counting = sum(window != STATE_WINDOW for window in memory.windows)  # groups that hold tokens
        self._kinds = sorted(kinds.items(), key=lambda kind: kind[0] is not None)  # full attention first
        self._in_flight = memory.in_flight_tokens or self.max_model_len
        self._slid: dict[Request, int] = {}  # tokens processed when the request's windows last moved
        self._coming: dict[Request, int] = {}  # slots before the windows, beyond the hit, for remote KV
        self._boundary: dict[Request, int] = {}  # end of the longest prefix that any group had

    def fits(self, request: Request) -> bool:
        """Return whether a request fits into empty memory, even while states, its own or found in the cache, are held
        along with the blocks that they move on to."""
        tokens = request.prompt_len + request.max_tokens
        moves = self._blocks(min(tokens, self.max_model_len)) > self.state_blocks
        held = self.windows.count(STATE_WINDOW) if moves else 0
        return self._needed(tokens, MISS, capped=True) + held < self.num_blocks

    def lookup(self, request: Request) -> Hit:
        """Return the longest prefix that all groups have, excluding the last token. Each kind of group in turn may
        shorten it, until none does."""
        most = self._findable(request)
        keys = self._keys(request, 0, most)
        lengths: dict[int | None, int] = {}
        dropped: set[int | None] = set()  # kinds that dropped a block for EAGLE at this length
        length, longest = most, 0
        while True:
            current = length
            for window, groups in self._kinds:
                if window is None and None in lengths:
                    current = min(current, lengths[None])
                    continue
                drop = self.params.eagle_block_drop and window not in dropped
                found = self._find(keys, groups, window, min(current + drop, most), drop)
                if drop:
                    dropped.add(window)
                elif found < current:
                    dropped.clear()
                current = lengths[window] = found
                longest = max(longest, current)
            if current >= length or len(self._kinds) == 1:
                break
            length = current
            if len(self._kinds) == 2 and self._kinds[0][0] is None:
                break
        hit = min(length, current)
        if not hit:
            return MISS if not longest else Hit(0, ((), longest * self.block_size))
        tables = tuple(self._hit_table(keys[:hit], group) for group in range(len(self.windows)))
        return Hit(hit * self.block_size, (tables, longest * self.block_size if longest > hit else 0))

    @property
    def tables(self) -> dict[Request, list[list[int]]]:  # type: ignore[override]
        """Copy of the block tables, one per group of layers, of each request that holds memory."""
        return {request: [table.tolist() for table in tables] for request, tables in self._tables.items()}

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        return self._fits(hit, hit.num_tokens, now_tokens, full_tokens, reserve)

    def can_load(self, request: Request, hit: Hit, num_tokens: int, full_tokens: int, reserve: int) -> bool:
        """Return whether the request fits. Within a window, only KV that later tokens attend to is loaded (vLLM:
        kv_cache_coordinator.py, allocate_new_computed_blocks with external tokens)."""
        return self._fits(hit, hit.num_tokens + num_tokens, num_tokens, full_tokens, reserve)

    def _fits(self, hit: Hit, processed: int, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        """Return whether a request fits, as `can_admit` does, with `processed` tokens that need no step."""
        free = self.num_free_blocks() - self._blocks(reserve)
        return (
            self._needed(full_tokens, hit, capped=True) <= free
            and self._needed(hit.num_tokens + now_tokens, hit, capped=False, processed=processed) <= free
        )

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        found, boundary = hit.blocks or ((), 0)
        loads = request.state is State.LOADING
        processed = hit.num_tokens + num_tokens if loads else hit.num_tokens
        tables = self._tables[request] = [ids() for _ in self.windows]
        for table, blocks, window in zip(tables, found or ((),) * len(tables), self.windows, strict=True):
            skipped = self._skipped(processed, window)
            table += nulls(skipped) + self._hold(blocks[skipped:])
            self._table_blocks += len(table)
        end = min(hit.num_tokens + num_tokens + lookahead, self.max_model_len)
        for table, window in zip(tables, self.windows, strict=True):
            self._extend(table, window, self._blocks(end) - len(table))
        self._published[request] = hit.num_tokens // self.block_size
        self._slid[request] = processed
        self._boundary[request] = boundary
        if loads:
            fronts = (
                table.count(NULL) * self.block_size
                for table, window in zip(tables, self.windows, strict=True)
                if window != STATE_WINDOW
            )
            self._coming[request] = sum(max(front - hit.num_tokens, 0) for front in fronts)
        else:
            self.publish(request, min(hit.num_tokens + num_tokens, request.num_tokens))

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        """Give back the blocks that have slid out of a window, even if growing then fails. Tokens of steps in flight do
        not count as processed (their prompt chunks are not known here)."""
        self._slide(request, request._num_computed_tokens - request._num_output_placeholders)
        tables = self._tables[request]
        end = min(request._num_computed_tokens + num_tokens + lookahead, self.max_model_len)
        short = self._blocks(end) - len(tables[0])
        if sum([self._taken(short, window) for window in self.windows]) > self.num_free_blocks():
            return False
        if short > 0:
            for table, window in zip(tables, self.windows, strict=True):
                self._extend(table, window, short)
        self.publish(request, min(request._num_computed_tokens + num_tokens, request._num_tokens))
        return True

    def _taken(self, blocks: int, window: int | None) -> int:
        """Return how many blocks are taken for a table that grows by `blocks`."""
        return min(blocks, self.state_blocks) if window == STATE_WINDOW else blocks

    def _extend(self, table: array[int], window: int | None, blocks: int) -> None:
        """Grow a table by `blocks` (none if negative). A state that advances by more blocks than are taken releases its
        old ones, one step earlier than in vLLM."""
        taken = self._taken(blocks, window)
        if taken < blocks:
            held = table[table.count(NULL) :]
            table[len(table) - len(held) :] = nulls(len(held))
            self._release(held)
            table += nulls(blocks - taken)
            self._table_blocks += blocks - taken
        table += self._take(taken)

    def free(self, request: Request) -> None:
        """Free blocks group by group, the last one first."""
        published = self._published.pop(request)
        if request.content is None and request.state is State.PREEMPTED:
            self._index(request, 0, published)
        tables = self._tables.pop(request)
        for table, window in zip(tables, self.windows, strict=True):
            self._table_blocks -= len(table)
            self._release(table if window is None else table[table.count(NULL) :])
        self._coming.pop(request, None)
        del self._slid[request], self._boundary[request]

    def can_swap_in(self, request: Request, num_tokens: int, reserve: int, samples: Sequence[Request] = ()) -> bool:
        """Return whether the blocks still within the request's windows fit, plus memory for `num_tokens` more."""
        free = self.num_free_blocks() - self._blocks(reserve)
        computed = request.num_computed_tokens
        return self._needed(computed + num_tokens, Hit(computed), capped=False) <= free

    def swap_in(self, request: Request, num_tokens: int, lookahead: int, samples: Sequence[Request] = ()) -> int:
        self.admit(request, Hit(request.num_computed_tokens), num_tokens, lookahead)
        self._published[request] = 0  # others may find restored blocks again
        self.publish(request, request.num_computed_tokens)
        return self.drop_swapped(request) * self.block_size

    def slots(self, request: Request) -> int:
        tables = self._tables.get(request)
        return len(tables[0]) * self.block_size if tables is not None else 0

    def usage(self) -> Usage:
        free = self.num_free_blocks() * self.block_size
        slots = self._table_blocks // len(self.windows) * self.block_size  # in each group
        internal = (slots - self.held_tokens) * self._counting
        if self._coming:
            internal -= sum(n for request, n in self._coming.items() if request.state in _NOT_THERE)
        return Usage(self.capacity_tokens - free - internal, internal, 0, free)

    def idle_tokens(self, hit: Hit) -> int:
        found = hit.blocks[0] if hit.blocks else ()
        return self.block_size * sum(1 for table in found for block in table if block in self._idle)

    def check_integrity(self) -> None:
        flat = {request: [b for table in tables for b in table] for request, tables in self._tables.items()}
        held = [b for blocks in flat.values() for b in blocks if b != NULL]
        usage = self.usage()
        assert min(usage) >= 0, f"negative memory: {usage}"
        assert sum(usage) == self.capacity_tokens, f"{usage} do not add up to {self.capacity_tokens}"
        assert self._table_blocks == sum(map(len, flat.values())), "table blocks miscounted"
        self.check_free(held)
        for tables in self._tables.values():
            assert len({len(table) for table in tables}) == 1, "the tables of a request differ in length"
            for table, window in zip(tables, self.windows, strict=True):
                assert window or NULL not in table, "full attention has lost a block"
                assert NULL not in table[table.count(NULL) :], "a block inside the window is missing"
        self._check_sharing(held)

    def _host_blocks(self, request: Request, samples: Sequence[Request] = ()) -> int:
        return sum(len(table) - table.count(NULL) for table in self._tables[request])

    def _find(self, keys: Sequence[Hashable], groups: list[int], window: int | None, most: int, drop: bool) -> int:
        """Return the number of blocks of the longest prefix, at most `most`, that all groups of a kind have."""
        cached = self._cached

        def there(i: int) -> bool:
            return all((group, keys[i]) in cached for group in groups)

        if window is not None:
            found = window_hit(there, most, self._window_blocks(window) + drop)
        else:
            found = next((i for i in range(most) if not there(i)), most)
        return max(found - drop, 0)

    def _hit_table(self, keys: Sequence[Hashable], group: int) -> list[int]:
        """Return the blocks of a group that hold a prefix, or for a window, only those that a hit needs."""
        window = self.windows[group]
        first = 0 if window is None else max(len(keys) - self._window_blocks(window), 0)
        table = [NULL] * first
        for key in keys[first:]:
            block = self._cached[group, key]
            table.append(block if isinstance(block, int) else next(iter(block)))
        return table

    def _window_blocks(self, window: int) -> int:
        """Return how many blocks before a token its window may reach into: the blocks that a hit needs."""
        return self._blocks(window - 1)

    def _skipped(self, processed: int, window: int | None) -> int:
        """Return how many leading blocks are not attended to by any token after the first `processed` ones."""
        return max(processed - window + 1, 0) // self.block_size if window is not None else 0

    def _needed(self, tokens: int, hit: Hit, capped: bool, processed: int | None = None) -> int:
        """Return how many free blocks are needed, in addition to a hit, to hold `tokens` tokens, of which `processed`
        need no step (None: only the hit's tokens). If `capped`, a window's need is limited, since the window slides on
        before more tokens are computed than may be in flight."""
        needed = 0
        found = (hit.blocks[0] if hit.blocks else ()) or ((),) * len(self.windows)
        tokens = min(tokens, self.max_model_len)
        for table, window in zip(found, self.windows, strict=True):
            blocks = self._blocks(tokens)
            if capped and window is not None:
                blocks = min(blocks, self._blocks(min(window - 1 + self._in_flight, self.max_model_len)) + 1)
            skipped = self._skipped(hit.num_tokens if processed is None else processed, window)
            needed += self._taken(max(blocks - max(skipped, len(table)), 0), window)
            if table:
                needed += sum(1 for block in table[skipped:] if block in self._idle)
        return needed

    def _slide(self, request: Request, processed: int) -> None:
        """Give back blocks that no later token attends to, the last one first."""
        before = self._slid[request]
        if processed <= before:
            return
        self._slid[request] = processed
        for table, window in zip(self._tables[request], self.windows, strict=True):
            first, last = self._skipped(before, window), min(self._skipped(processed, window), len(table))
            if first < last:
                slid = table[first:last]
                self._release(slid[slid.count(NULL) :])  # a state occupied only some of them
                table[first:last] = nulls(last - first)

    def _release(self, blocks: array[int]) -> None:
        """Release blocks of a request. Those that no other request holds go to the back of the free queue, last block
        first, if they can be found by content, and to its front if not."""
        key_of = self._key_of
        if self._extra:
            blocks = ids([block for block in blocks if not self._still_held(block)])
        if self.params.free_order == "front":
            if not key_of or key_of.keys().isdisjoint(blocks):
                self._fresh.give(blocks)
                return
            self._fresh.give(ids([block for block in blocks if block not in key_of]))
            blocks = ids([block for block in blocks if block in key_of])
        self._idle.update(dict.fromkeys(blocks[::-1]))

    def _index(self, request: Request, start: int, stop: int) -> None:
        keys = list(self._keys(request, start, stop))
        for group, (table, window) in enumerate(zip(self._tables[request], self.windows, strict=True)):
            self._register(
                (table[i], (group, key))
                for i, key in enumerate(keys, start)
                if table[i] != NULL and self._retained(request, i, window)
            )

    def _retained(self, request: Request, block: int, window: int | None) -> bool:
        """Return whether a block of a prompt stays findable."""
        interval = self.params.prefix_cache_retention_interval
        if interval == "dense" or window is None:
            return True
        need, shift = self._window_blocks(window) + self.params.eagle_block_drop, int(self.params.eagle_block_drop)
        if interval:
            segment = interval // self.block_size
            if need >= segment or (block >= shift and (block - shift) % segment >= segment - need):
                return True
        ends = (boundary // self.block_size + shift for boundary in (request.prompt_len - 1, self._boundary[request]))
        return any(end - need <= block < end for end in ends)


@kv_allocators.register("hybrid-paged")
class HybridPaged(Hybrid):
    """`hybrid` with prefix caching off: nothing is shared, and blocks that slide out of a window are reused
    immediately."""

    shares = False
    state_blocks = 1

    def lookup(self, request: Request) -> Hit:
        return MISS

    def _enter(self, request: Request, start: int, stop: int) -> None:
        """Do nothing: no block can be found."""

    def _index(self, request: Request, start: int, stop: int) -> None:
        """Do nothing: no block can be found, not even by the request itself."""


_NOT_THERE = (State.LOADING, State.ABORTED)
"""States in which none of a request's remote KV counts as held."""


def nulls(n: int) -> array[int]:
    """Return n null blocks."""
    return array("i", bytes(n * WIDTH))


def window_hit(cached: Callable[[int], bool], num_blocks: int, contiguous: int) -> int:
    """Return the number of blocks of the longest prefix, at most `num_blocks`, from which a sliding window can
    continue: one whose last `contiguous` blocks are cached, or all blocks if it has fewer."""
    run = 0
    for i in reversed(range(num_blocks)):
        run = run + 1 if cached(i) else 0
        if run and run >= contiguous:
            return i + run
    return run
