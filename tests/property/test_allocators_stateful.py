"""Allocators under random use: blocks are neither lost nor wrongly shared, promises are kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from servesim.contracts import MISS, KVMemory, Request, State, build_params, kv_allocators
from servesim.engine.workload import Prefixes, RunContent

BLOCK, BLOCKS, MAX_LEN = 4, 17, 40
PICK = st.integers(0, 1023)


class Allocators(RuleBasedStateMachine):
    """Admits, grows and frees requests, beside a plain account of what each block must hold."""

    spec = "paged"

    def __init__(self) -> None:
        super().__init__()
        name, _, params = self.spec.partition(":")
        cls, values = kv_allocators.resolve(f"{name}:{params}")
        self.kv: Any = cls(build_params(name, cls.Params, dict(values)), KVMemory(BLOCKS, BLOCK, MAX_LEN))
        self.prefixes = Prefixes()
        self.rows = 0
        self.running: list[Request] = []
        self.filled: dict[int, object] = {}  # block -> key of the prefix whose last block it is

    def _note(self, request: Request) -> None:
        """The full blocks of a request now hold its tokens."""
        assert request.content is not None
        for i in range(request.num_computed_tokens // BLOCK):
            self.filled[self.kv.tables[request][i]] = request.content.prefix_key((i + 1) * BLOCK)

    @rule(
        family=st.integers(1, 2),
        head=st.integers(0, 12),
        tail=st.integers(1, 14),
        chunk=st.integers(1, 26),
        lookahead=st.sampled_from([0, 0, 3]),
        reserve=st.sampled_from([0, 0, 8]),
    )
    def admit(self, family: int, head: int, tail: int, chunk: int, lookahead: int, reserve: int) -> None:
        row = self.rows
        self.rows += 1
        runs = [r for r in ((family, head), (100 + row % 3, tail)) if r[1]]
        request = Request(row, str(row), head + tail, 10, row, content=RunContent(row, runs, self.prefixes))
        kv, before = self.kv, self.kv.free_order()
        hit = kv.lookup(request)
        assert kv.free_order() == before, "a question changed something"
        assert hit.num_tokens < request.prompt_len, "the last token is always computed"
        for i, block in enumerate(hit.blocks):
            assert request.content is not None
            assert self.filled[block] == request.content.prefix_key((i + 1) * BLOCK), "a hit on other content"
        new = min(chunk, request.prompt_len - hit.num_tokens)
        if not kv.can_admit(request, hit, new + lookahead, request.prompt_len, reserve):
            assert kv.free_order() == before
            return
        kv.admit(request, hit, new, lookahead)
        assert len(kv.free_order()) * BLOCK >= reserve, "an admission took what was reserved"
        request.state = State.RUNNING
        request.num_computed_tokens = hit.num_tokens + new
        kv.held_tokens += request.num_computed_tokens
        self._note(request)
        self.running.append(request)

    @rule(pick=PICK, new=st.integers(1, 6), lookahead=st.sampled_from([0, 0, 3]))
    def grow(self, pick: int, new: int, lookahead: int) -> None:
        if not self.running:
            return
        request = self.running[pick % len(self.running)]
        if request.num_computed_tokens + new > MAX_LEN:
            return
        if request.num_computed_tokens + new > request.num_tokens:
            request.num_tokens = request.num_computed_tokens + new  # sampled meanwhile
        before = self.kv.free_order()
        held = list(self.kv.tables[request])
        if self.kv.grow(request, new, lookahead):
            assert self.kv.tables[request][: len(held)] == held, "tables are append-only"
            request.num_computed_tokens += new
            self.kv.held_tokens += new
            self._note(request)
        else:
            assert self.kv.free_order() == before, "a refused growth changed something"

    @rule(mask=PICK, k=st.integers(1, 9))
    def run(self, mask: int, k: int) -> None:
        """A promised run is what growing one by one gives."""
        batch = [r for i, r in enumerate(self.running) if mask >> i & 1 and r.num_computed_tokens + k <= MAX_LEN]
        k = self.kv.steps_until_short(batch, k) if batch else 0
        if not k:
            return
        before = self.kv.usage()
        start = {r: r.num_computed_tokens for r in batch}
        slots = {r: self.kv.slots(r) for r in batch}
        expected = []
        for step in range(1, k + 1):
            for request in batch:
                if start[request] + step > slots[request]:
                    slots[request] += BLOCK
                    expected.append((step, request))
        front = self.kv.free_order()[: len(expected)]
        grown = self.kv.grow_run(batch, k)
        assert [(s, n) for s, n in grown] == [
            (s, BLOCK * sum(x == s for x, _ in expected)) for s in sorted({x for x, _ in expected})
        ]
        for request in batch:
            mine = [b for b, (_, r) in zip(front, expected, strict=True) if r is request]
            assert not mine or self.kv.tables[request][-len(mine) :] == mine
            request.num_computed_tokens += k
            request.num_tokens = max(request.num_tokens, request.num_computed_tokens)
            self.kv.publish(request, request.num_computed_tokens)
        self.kv.held_tokens += k * len(batch)
        for request in batch:
            self._note(request)
        assert self.kv.usage().used == before.used + k * len(batch)

    @rule(pick=PICK)
    def free(self, pick: int) -> None:
        if self.running:
            request = self.running.pop(pick % len(self.running))
            self.kv.held_tokens -= request.num_computed_tokens
            self.kv.free(request)
            assert self.kv.slots(request) == 0

    @invariant()
    def nothing_is_lost(self) -> None:
        self.kv.check_integrity()

    def teardown(self) -> None:
        while self.running:
            self.free(0)
        assert self.kv.num_free_blocks() == BLOCKS - 1
        assert self.kv.lookup(Request(0, "x", 5, 1, 0)) == MISS


@pytest.mark.parametrize(
    "spec", ["paged", "prefix-hash", "prefix-hash:free_order=back", "prefix-hash:eagle_block_drop=1"]
)
def test_allocator_keeps_its_account(spec: str) -> None:
    machine = type("Machine", (Allocators,), {"spec": spec})
    case = machine.TestCase  # type: ignore[attr-defined]
    case.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
    case("runTest").runTest()
