"""Blocks dealt to requests in lockstep all at once, and entered into their tables later, are those each would have got
in turn."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts import MISS, KVMemory, NoParams, Request, build_params, kv_allocators
from servesim.contracts.request import CounterKeeper
from servesim.engine.fast.kv import FastPaged, lockstep_tables
from tests.support.examples import examples

SIZE = 4
ACTIONS = st.one_of(
    st.tuples(st.just("join"), st.integers(1, 3 * SIZE)),  # of so many tokens
    st.tuples(st.just("leave"), st.integers(0, 99)),
    st.tuples(st.just("run"), st.integers(1, 5 * SIZE)),
    st.tuples(st.just("step"), st.just(1)),
    st.tuples(st.just("ask"), st.integers(0, 99)),
)


class InTurn:
    """What is to be: a free list, and tables that grow one block at a time."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks - 1, 0, -1))
        self.computed: dict[Request, int] = {}  # in the order in which they joined
        self.tables: dict[Request, list[int]] = {}

    def fill(self, request: Request) -> bool:
        """A block, if the next token needs one."""
        if self.computed[request] == len(self.tables[request]) * SIZE:
            self.tables[request].append(self.free.pop())
            return True
        return False

    def step(self) -> int:
        """One token more each; blocks taken."""
        taken = sum([self.fill(request) for request in self.computed])
        for request in self.computed:
            self.computed[request] += 1
        return taken

    def short(self, steps: int) -> bool:
        """Whether there are too few for so many steps."""
        ends = [self.computed[request] + steps for request in self.computed]
        needed = sum(-(-end // SIZE) - len(table) for end, table in zip(ends, self.tables.values(), strict=True))
        return needed > len(self.free)

    def join(self, request: Request, tokens: int) -> None:
        self.computed[request], self.tables[request] = tokens, []
        for _ in range(-(-tokens // SIZE)):
            self.tables[request].append(self.free.pop())

    def leave(self, request: Request) -> None:
        del self.computed[request]
        self.free += self.tables.pop(request)


class Keeper(CounterKeeper):
    """Keeper of members whose counters nobody reads."""

    def settle(self, request: Request) -> None:
        """Do nothing."""


KEEPER = Keeper()


class Both:
    """An allocator, and what it is compared with."""

    def __init__(self, num_blocks: int) -> None:
        self.kv = FastPaged(NoParams(), KVMemory(num_blocks, SIZE, 10_000))
        self.model = InTurn(num_blocks)
        self.step_id = 0
        self.offsets: dict[Request, int] = {}

    def join(self, tokens: int) -> None:
        if -(-tokens // SIZE) > len(self.model.free):
            return
        request = Request(len(self.offsets), "r", tokens, 1_000, 0)
        self.kv.admit(request, MISS, tokens, 0)
        self.model.join(request, tokens)
        self.offsets[request] = tokens - self.step_id
        assert self.kv.turns.join(request, self.offsets[request], tokens)
        request._keeper = KEEPER  # as members have

    def leave(self, which: int) -> None:
        if self.model.computed:
            request = list(self.model.computed)[which % len(self.model.computed)]
            request._keeper = None
            self.kv.turns.leave(request, self.offsets[request])
            self.kv.free(request)
            self.model.leave(request)

    def run(self, steps: int) -> None:
        if not self.model.computed:
            return
        fit = next((k for k in range(steps) if self.model.short(k + 1)), steps)
        assert self.kv.turns.steps_until_full(self.step_id, steps, 0) == fit
        if fit:
            grown = [(k + 1, blocks * SIZE) for k in range(fit) if (blocks := self.model.step())]
            assert self.kv.turns.extend_run(self.step_id, self.step_id, fit) == grown
            self.step_id += fit

    def step(self, _: int) -> None:
        short = self.model.short(1)
        assert self.kv.turns.extend(self.step_id, self.step_id) is not short
        if not short:
            self.model.step()
            self.step_id += 1

    def ask(self, which: int) -> None:
        """How much one has room for: for that its table is needed."""
        if self.model.computed:
            request = list(self.model.computed)[which % len(self.model.computed)]
            assert self.kv.slots(request) == len(self.model.tables[request]) * SIZE

    def agree(self) -> None:
        assert self.kv.tables == self.model.tables
        assert self.kv.free_order() == self.model.free[::-1]
        self.kv.held_tokens = sum(self.model.computed.values())
        self.kv.check_integrity()


@pytest.mark.parametrize("many", [1, 8, 512])
@given(actions=st.lists(ACTIONS, max_size=40), num_blocks=st.integers(2, 80), look=st.booleans())
@examples(150)
def test_blocks_dealt_together_are_those_dealt_in_turn(
    many: int, actions: list[tuple[str, int]], num_blocks: int, look: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockstep_tables, "MANY", many)  # numpy from so many blocks on
        both: Any = Both(num_blocks)
        for name, argument in actions:
            getattr(both, name)(argument)
            if look:  # else only at the end, so that much is entered at once
                both.agree()
        both.agree()


def test_a_thousand_requests_in_lockstep_get_the_blocks_they_would_get_in_turn() -> None:
    both = Both(50_000)
    for tokens in range(1, 1_001):
        both.join(1 + tokens % (2 * SIZE))
    for round_ in range(6):
        both.run(5 * SIZE + 3)
        both.leave(17 * round_)
        both.join(9)
    both.agree()


@pytest.mark.parametrize("name", ["paged", "prefix-hash", "hybrid"])
def test_memory_that_is_never_used_costs_nothing(name: str) -> None:
    cls, _ = kv_allocators.resolve(name)
    params = build_params(name, cls.Params, {})
    tracemalloc.start()
    try:
        kv: Any = cls(params, KVMemory(10**7, SIZE, 10_000))
        request = Request(0, "r", 9, 1_000, 0)
        kv.admit(request, MISS, 9, 0)
        kv.free(request)
        assert kv.num_free_blocks() == 10**7 - 1
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
