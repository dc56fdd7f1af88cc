"""Allocators under random use: memory is neither lost nor wrongly shared, questions change nothing, promises are
kept, and a run promised ahead is what growing one by one gives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from servesim.contracts import MISS, Hit, KVMemory, Request, State, build_params, kv_allocators
from servesim.contracts.request import LAST
from servesim.engine import compiled
from servesim.engine.fast.kv import fast_memory
from servesim.engine.fast.memory import lockstep_memory
from servesim.workload.content import RunContent
from tests.support.examples import examples
from tests.support.worlds import memory_state

BLOCK, BLOCKS, MAX_LEN = 4, 17, 40
PICK = st.integers(0, 1023)
LOOKAHEAD = st.sampled_from([0, 0, 3])


def output_len(request: Request) -> int:
    return request._end_tokens - request.prompt_len


class Allocators(RuleBasedStateMachine):
    """Admits, grows, preempts, swaps and frees requests, beside an account of which prefixes were ever computed and,
    where there are block tables, of what each block must hold."""

    spec = "paged"
    blocks = BLOCKS
    windows: tuple[int | None, ...] = (None,)

    def __init__(self) -> None:
        super().__init__()
        cls, values = kv_allocators.resolve(self.spec)
        memory = KVMemory(self.blocks, BLOCK, MAX_LEN, host_blocks=8, windows=self.windows, in_flight_tokens=6)
        self.kv: Any = fast_memory(cls)(build_params(self.spec, cls.Params, dict(values)), memory)
        self.kv.output_len = output_len
        self.rows = 0
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.computed: set[object] = set()
        self.filled: dict[int, object] = {}  # block -> its group, and key of the prefix whose last block it is

    def _tables(self, request: Request) -> list[list[int]]:
        """Its block table in each group; none where there are no blocks."""
        table: Any = getattr(self.kv, "tables", {}).get(request, [])
        return table if self.kv.grouped else [table]

    def _fill(self, request: Request, kv: Any) -> None:
        """Note what the blocks of a request hold; none where there are no blocks."""
        table: Any = getattr(kv, "tables", {}).get(request, [])
        for group, blocks in enumerate(table if kv.grouped else [table]):
            for i, block in enumerate(blocks[: request.num_computed_tokens // BLOCK]):
                self.filled[block] = group, request.content.prefix_key((i + 1) * BLOCK)  # type: ignore[union-attr]

    def _advance(self, request: Request, tokens: int) -> None:
        """Tokens of a request have been computed."""
        request.num_computed_tokens += tokens
        request.num_tokens = max(request.num_tokens, request.num_computed_tokens)  # sampled meanwhile
        self.kv.held_tokens += tokens
        assert request.content is not None
        for stop in range(1, request.num_computed_tokens + 1):
            self.computed.add(request.content.prefix_key(stop))
        self._fill(request, self.kv)

    def _check_hit(self, request: Request, hit: Hit) -> None:
        assert hit.num_tokens < request.num_tokens, "the last token is always computed"
        assert request.content is not None
        if hit.num_tokens:
            assert request.content.prefix_key(hit.num_tokens) in self.computed, "a hit on what nobody computed"
        if self.kv.grouped and not self.kv.params.eagle_block_drop:
            assert hit.num_tokens == self._longest(request) * BLOCK
        if not hasattr(self.kv, "free_order") or not hit.num_tokens:
            return
        for group, table in enumerate(hit.blocks[0] if self.kv.grouped else [self.kv.hit_blocks(hit)]):
            assert len(table) * BLOCK == hit.num_tokens
            for i, block in enumerate(table):
                key = group, request.content.prefix_key((i + 1) * BLOCK)
                assert block == 0 or self.filled[block] == key, "a hit on other content"

    def _longest(self, request: Request) -> int:
        """Blocks of the longest prefix every group of layers can go on from, by trying them all."""
        keys = list(self.kv._keys(request, 0, (request.num_tokens - 1) // BLOCK))

        def goes_on(length: int) -> bool:
            return all(
                (group, keys[i]) in self.kv._cached
                for group, window in enumerate(self.windows)
                for i in range(max(length - -(-(window - 1) // BLOCK), 0) if window else 0, length)
            )

        return max(length for length in range(len(keys) + 1) if goes_on(length))

    def _try(self, request: Request, chunk: int, lookahead: int, reserve: int) -> bool:
        """Admit a waiting request as far as it can be."""
        kv, before = self.kv, memory_state(self.kv)
        hit = kv.lookup(request)
        self._check_hit(request, hit)
        new = min(chunk, request.num_tokens - hit.num_tokens)
        can = kv.can_admit(request, hit, new + lookahead, request.num_tokens, reserve)
        idle = kv.idle_tokens(hit)
        assert memory_state(kv) == before, "a question changed something"
        if not can:
            return False
        before_free, before_external = kv.usage().free, kv.usage().external
        kv.admit(request, hit, new, lookahead)
        left = kv.usage().free + kv.usage().external
        assert left >= reserve, "an admission took what was reserved"
        assert left <= before_free + before_external - idle, "an idle prefix was adopted and still counts as free"
        request.state = State.RUNNING
        request.num_computed_tokens = hit.num_tokens
        kv.held_tokens += hit.num_tokens
        self._advance(request, new)
        self.running.append(request)
        return True

    @rule(
        family=st.integers(1, 2),
        head=st.integers(0, 12),
        tail=st.integers(1, 14),
        output=st.integers(1, 14),
        chunk=st.integers(1, 26),
        lookahead=LOOKAHEAD,
        reserve=st.sampled_from([0, 0, 8]),
        salt=st.sampled_from(["", "", "x"]),
    )
    def arrive(
        self, family: int, head: int, tail: int, output: int, chunk: int, lookahead: int, reserve: int, salt: str
    ) -> None:
        row = self.rows
        self.rows += 1
        runs = [r for r in ((family if not salt else 9, head), (100 + row % 3, tail)) if r[1]]
        content = RunContent(row, runs)
        request = Request(row, str(row), head + tail, output, row, salt=salt, content=content)
        request._end_tokens = head + tail + output
        if self.kv.fits(request):
            self._try(request, chunk, lookahead, reserve)

    @rule(pick=PICK)
    def resume(self, pick: int) -> None:
        if self.waiting:
            request = self.waiting[pick % len(self.waiting)]
            if request.state is State.PREEMPTED and self._try(request, MAX_LEN, 0, 0):
                self.waiting.remove(request)

    @rule(pick=PICK, new=st.integers(1, 6), lookahead=LOOKAHEAD)
    def grow(self, pick: int, new: int, lookahead: int) -> None:
        if not self.running:
            return
        request = self.running[pick % len(self.running)]
        new = min(new, request._end_tokens - request.num_computed_tokens)
        if new < 1:
            return
        before, held = memory_state(self.kv), copy.deepcopy(self._tables(request))
        copied = self.kv.copied_tokens
        if self.kv.grow(request, new, lookahead):
            for now, then in zip(self._tables(request), held, strict=True):
                slid, kept = now.count(0), len(then) - (self.kv.copied_tokens > copied)
                assert now[slid:kept] == then[slid:kept], "tables are append-only, but for a block that is copied"
            self._advance(request, new)
            assert self.kv.slots(request) >= request.num_computed_tokens
        else:
            assert self.kv.name != "contiguous", "a reservation was not kept"
            if self.kv.name not in ("prefix-radix", "hybrid"):  # which enter what is done, and let go what is past
                assert memory_state(self.kv) == before, "a refused growth changed something"

    @rule(pick=PICK, samples=st.integers(1, 3))
    def fork(self, pick: int, samples: int) -> None:
        prompts = [r for r in self.running if r.num_computed_tokens <= r.prompt_len]
        if not prompts or not self.kv.can_fork():
            return
        request = prompts[pick % len(prompts)]
        for _ in range(samples):
            row, content = self.rows, request.content
            self.rows += 1
            again = RunContent(row, content._runs)  # type: ignore[union-attr]
            sample = Request(row, str(row), request.prompt_len, request.max_tokens, row, content=again)
            sample.salt, sample._end_tokens, sample.state = request.salt, request._end_tokens, State.RUNNING
            sample.num_tokens, sample.num_computed_tokens = request.num_tokens, request.num_computed_tokens
            before = self.kv.usage()
            self.kv.fork(request, sample)
            self.kv.held_tokens += sample.num_computed_tokens
            assert (self.kv.usage().free, self.kv.usage().used) == (before.free, before.used), "a fork takes nothing"
            assert self._tables(sample)[0][: len(self._tables(request)[0])] == self._tables(sample)[0]
            self.running.append(sample)

    @rule(mask=PICK, k=st.integers(1, 9))
    def run(self, mask: int, k: int) -> None:
        """Requests that decode grow k times at once as one by one."""
        if compiled() or (turns := lockstep_memory(self.kv)) is None:  # what is compiled cannot be copied
            return
        batch = [r for i, r in enumerate(self.running) if mask >> i & 1 and r.num_computed_tokens == r.num_tokens - 1]
        batch = [r for r in batch if r.num_computed_tokens + k <= r._end_tokens]
        single, requests = copy.deepcopy((self.kv, batch))
        members = [r for r in batch if turns.join(r, r.num_computed_tokens, r.num_computed_tokens)]
        for order, request in enumerate(members):
            request._order = order
        k = turns.steps_until_full(0, k, 0) if members else 0
        grown = turns.extend_run(0, 0, k) if k else []
        for request in members:
            offset = request.num_computed_tokens
            request.num_tokens += k
            self._advance(request, k)
            turns.leave(request, offset)
            request._order = LAST
        taken = []
        alike = [requests[batch.index(request)] for request in members]
        for step in range(1, k + 1):
            free = single.usage().free
            for request in alike:
                assert single.grow(request, 1), "less than was promised"
                request.num_computed_tokens += 1
                request.num_tokens += 1
                single.held_tokens += 1
                self._fill(request, single)  # a window may let a block go before the run ends
            if single.usage().free != free:
                taken.append((step, free - single.usage().free))
        assert grown == taken
        assert memory_state(self.kv) == memory_state(single)

    @rule(pick=PICK)
    def publish(self, pick: int) -> None:
        if self.running:
            request = self.running[pick % len(self.running)]
            used = self.kv.usage().used
            self.kv.publish(request, request.num_computed_tokens)
            assert self.kv.usage().used <= used, "what is shared is not more than what was held"

    @rule(pick=PICK)
    def finish(self, pick: int) -> None:
        if self.running:
            self._stop(self.running.pop(pick % len(self.running)), State.RUNNING)

    @rule(pick=PICK)
    def preempt(self, pick: int) -> None:
        if self.running:
            request = self.running.pop(pick % len(self.running))
            self._stop(request, State.PREEMPTED)
            request.num_computed_tokens = 0
            self.waiting.append(request)

    def _stop(self, request: Request, state: State) -> None:
        self.kv.held_tokens -= request.num_computed_tokens
        request.state = state
        self.kv.free(request)
        assert self.kv.slots(request) == 0

    @rule(pick=PICK)
    def swap_out(self, pick: int) -> None:
        if self.running:
            request = self.running[pick % len(self.running)]
            if self.kv.can_swap_out(request):
                self.running.remove(request)
                self.kv.held_tokens -= request.num_computed_tokens
                request.state = State.SWAPPED
                moved = self.kv.swap_out(request)
                assert moved >= request.num_computed_tokens or self.kv.grouped, "a window moves no more than it holds"
                self.waiting.append(request)

    @rule(pick=PICK)
    def swap_in(self, pick: int) -> None:
        swapped = [r for r in self.waiting if r.state is State.SWAPPED and r.num_computed_tokens < r._end_tokens]
        if swapped:
            request = swapped[pick % len(swapped)]
            if self.kv.can_swap_in(request, 1, 0):
                self.kv.swap_in(request, 1, 0)
                self.waiting.remove(request)
                request.state = State.RUNNING
                self.kv.held_tokens += request.num_computed_tokens
                self._advance(request, 1)
                self.running.append(request)

    @rule(tokens=st.integers(1, 20))
    def evict(self, tokens: int) -> None:
        free = self.kv.usage().free
        self.kv.evict(tokens)
        assert self.kv.usage().free == free, "cached prefixes are free before and after"

    @invariant()
    def nothing_is_lost(self) -> None:
        self.kv.check_integrity()

    def teardown(self) -> None:
        while self.running:
            self.finish(0)
        usage = self.kv.usage()
        assert usage.free + usage.external == self.kv.capacity_tokens
        assert self.kv.lookup(Request(10_000, "x", 5, 1, 0)) == MISS


def check(**settings_of_machine: Any) -> None:
    case = type("Machine", (Allocators,), settings_of_machine).TestCase  # type: ignore[attr-defined]
    case.settings = examples(40, stateful_step_count=40)
    case("runTest").runTest()


@pytest.mark.parametrize(
    "spec",
    [
        "paged",
        "prefix-hash",
        "prefix-hash:free_order=back",
        "prefix-hash:eagle_block_drop=1",
        "prefix-oracle",
        "prefix-radix",
        "prefix-radix:page_size=4",
        "prefix-radix:eviction_policy=lfu",
        "prefix-radix:eviction_policy=slru",
        "prefix-radix:eviction_policy=priority,page_size=2",
        "prefix-radix:eviction_policy=tlru,tlru_threshold=9,tlru_next_prompt_estimate=4",
        "contiguous",
        "contiguous:fit=first",
        "contiguous:reservation=pow2",
        "contiguous:reservation=pow2,compaction=1",
        "contiguous:reservation=oracle",
        "contiguous:reservation=oracle,fit=first,compaction=1",
        "contiguous:reservation=oracle,fit=best",
    ],
)
def test_allocator_keeps_its_account(spec: str) -> None:
    check(spec=spec)


@pytest.mark.parametrize("windows", [(None, 9), (None, 6, 6), (5,), (None, 4, 13), (None, None), (None, 2, 2)])
@pytest.mark.parametrize("variant", ["interval=0", "interval=dense", "interval=8,eagle_block_drop=1"])
def test_groups_of_layers_keep_their_account(windows: tuple[int | None, ...], variant: str) -> None:
    check(spec=f"hybrid:prefix_cache_retention_{variant}", windows=windows, blocks=12 * len(windows) + 1)
