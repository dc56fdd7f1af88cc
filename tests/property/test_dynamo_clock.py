"""Fast mode equals plain stepping in replays as Dynamo's simulator makes them."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.engine.core import EngineCore
from servesim_lab.dynamo.cost import Fixed, MockerCost, Polynomial
from servesim_lab.dynamo.replay import MockEngine, replay
from tests.property.test_fast_equals_reference import assert_fast_equals_plain
from tests.support.examples import examples
from tests.support.strategies import worlds
from tests.support.worlds import World

plain_core = MockEngine.core
TIMINGS = st.just(Polynomial()) | st.builds(Fixed, st.floats(0, 20), st.floats(0, 5))


def checked_core(engine: MockEngine, mode: str) -> EngineCore:
    return plain_core(engine, mode, check=True)


@examples(25)
@given(worlds("vllm", kv="prefix-hash"), TIMINGS)
def test_fast_mode_equals_plain_stepping(world: World, timing: Polynomial | Fixed) -> None:
    cost = MockerCost(timing, world.num_blocks * world.block_size)
    assert_fast_equals_plain(replace(world, cost=cost, depth=1, asynchronous=False, speculation=""))


@examples(25)
@given(worlds("sglang", kv="prefix-radix"), TIMINGS, st.sampled_from([1, 4, 16]), st.sampled_from([0, 3, 400]))
def test_replays_agree_in_both_modes(world: World, timing: Polynomial | Fixed, page: int, spare: int) -> None:
    """With memory for the longest request and a little more, invariants checked in every step."""
    longest = -(-max(world.trace.prompt_len + world.trace.max_tokens) // page)
    engine = MockEngine(int(longest) + 1 + spare, page, backend="sglang", timing_model=timing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MockEngine, "core", checked_core)
        plain, fast = (replay(world.trace, engine, 2, mode=mode) for mode in ("reference", "fast"))
    for a, b in zip(astuple(plain)[:-1], astuple(fast)[:-1], strict=True):
        assert a.tolist() == b.tolist()
