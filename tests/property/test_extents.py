"""Blocks handled in runs are what blocks handled one by one are: the same ids, hits, evictions and free order, whatever
is asked of the allocator in whatever order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import rule

from servesim.contracts import Hit, KVMemory, Request, State, build_params
from servesim.policies.kv.prefix_hash import PrefixHash
from servesim.workload.content import RunContent
from tests.property.test_allocators_stateful import BLOCK, BLOCKS, LOOKAHEAD, MAX_LEN, PICK, Allocators
from tests.support import by_block
from tests.support.by_block import ByBlock
from tests.support.examples import examples
from tests.support.strategies import groups_of_samples, lockstep_worlds, social_worlds, worlds
from tests.support.worlds import World, memory_state, watch

VERBS = {"admit", "grow", "grow_run", "free", "fork", "publish", "swap_out", "swap_in", "reset_prefix_cache"}
VARIANTS = ["", "free_order=back", "eagle_block_drop=1", "hash_lookahead_tokens=1"]


class Pair:
    """Two allocators that are asked the same and must answer the same."""

    def __init__(self, runs: PrefixHash, blocks: ByBlock) -> None:
        self.__dict__.update(runs=runs, blocks=blocks)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        mine, other = (getattr(each, name) for each in (self.__dict__["runs"], self.__dict__["blocks"]))
        if not callable(mine) or name == "cached":  # whose order means nothing
            return mine

        def both(*args: Any) -> Any:
            plain = [Hit(a.num_tokens, tuple(self.runs.hit_blocks(a))) if isinstance(a, Hit) else a for a in args]
            expected, got = other(*plain), mine(*args)
            told = Hit(got.num_tokens, tuple(self.runs.hit_blocks(got))) if isinstance(got, Hit) else got
            assert told == expected, name
            if name in VERBS:
                assert memory_state(self.runs) == memory_state(self.blocks), name
            return got

        return both

    def __setattr__(self, name: str, value: Any) -> None:
        for each in (self.runs, self.blocks):
            setattr(each, name, value)


class Pairs(Allocators):
    """The same uses, of both; and prompts of which nothing is told, or of several short runs."""

    variant = ""

    def __init__(self) -> None:
        super().__init__()
        values = dict([self.variant.split("=")]) if self.variant else {}
        params = build_params("kv", PrefixHash.Params, values)
        memory = KVMemory(self.blocks, BLOCK, MAX_LEN, host_blocks=8)
        self.kv = Pair(PrefixHash(params, memory), ByBlock(params, memory))

    def _advance(self, request: Request, tokens: int) -> None:
        request.num_computed_tokens += tokens
        request.num_tokens = max(request.num_tokens, request.num_computed_tokens)
        self.kv.held_tokens += tokens

    def _check_hit(self, request: Request, hit: Hit) -> None:
        assert hit.num_tokens < request.num_tokens

    @rule(
        ids=st.lists(st.integers(1, 2), max_size=3), length=st.sampled_from([1, 4, 5, 8]), told=st.booleans(),
        extra=st.integers(0, 9), chunk=st.integers(1, 26), lookahead=LOOKAHEAD,
    )  # fmt: skip
    def arrive_in_runs(self, ids: list[int], length: int, told: bool, extra: int, chunk: int, lookahead: int) -> None:
        row = self.rows
        self.rows += 1
        runs = [(content, length) for content in ids] + [(3, 1 + extra)]
        prompt = sum(tokens for _, tokens in runs)
        content = RunContent(row, runs) if told else None
        request = Request(row, str(row), prompt, 9, row, content=content)
        request._end_tokens = prompt + 9
        if self.kv.fits(request):
            self._try(request, chunk, lookahead, 0)

    @rule(pick=PICK)
    def adopt_later(self, pick: int) -> None:
        """What was found stays found while others come, go and hold parts of it, as long as nothing is given up."""
        waiting = [r for r in self.waiting if r.state is State.PREEMPTED]
        if not waiting:
            return
        request = waiting[pick % len(waiting)]
        hit = self.kv.lookup(request)
        if self.running:
            self.publish(pick)
            self.finish(pick)
        if self.kv.can_admit(request, hit, 1, 0, 0):
            self.kv.admit(request, hit, 1, 0)
            self.waiting.remove(request)
            request.state, request.num_computed_tokens = State.RUNNING, hit.num_tokens
            self.kv.held_tokens += hit.num_tokens
            self._advance(request, 1)
            self.running.append(request)

    @rule()
    def reset(self) -> None:
        self.kv.reset_prefix_cache()

    def fork(self, pick: int, samples: int) -> None:
        """Told of both (Allocators.fork compares tables)."""

    def teardown(self) -> None:
        while self.running:
            self.finish(0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("blocks", [BLOCKS, 40])
def test_runs_of_blocks_are_blocks(variant: str, blocks: int) -> None:
    case = type("Machine", (Pairs,), {"variant": variant, "blocks": blocks}).TestCase  # type: ignore[attr-defined]
    case.settings = examples(40, stateful_step_count=40)
    case("runTest").runTest()


def assert_same(world: World, variant: str) -> None:
    """Every table, free list and cached block after every plan."""
    seen = []
    for kv in ("prefix-hash", f"{Path(by_block.__file__)}:ByBlock"):
        world.kv = f"{kv}:{variant}" if variant else kv
        cluster = world.cluster("reference", check=True)
        states = watch(cluster)
        cluster.run()
        seen.append((states, cluster.recorder.steps.array().tolist(), cluster.recorder.requests.array().tolist()))
    assert seen[0] == seen[1]


@examples(150)
@given(
    st.one_of(worlds(kv="prefix-hash"), social_worlds(kv="prefix-hash"), lockstep_worlds(), groups_of_samples()),
    st.sampled_from(VARIANTS),
)
def test_whole_simulations_are_the_same(world: World, variant: str) -> None:
    if world.trace.samples is not None and variant.startswith("hash_lookahead"):
        variant = ""  # which forks none
    assert_same(world, variant)
