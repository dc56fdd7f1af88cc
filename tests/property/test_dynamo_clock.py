"""Fast mode equals plain stepping by the step clock of Dynamo's simulator."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from servesim.cost.mocker import Fixed, MockerCost, Polynomial
from tests.property.test_fast_equals_reference import assert_fast_equals_plain
from tests.support.examples import examples
from tests.support.strategies import worlds
from tests.support.worlds import World


def under_its_clock(world: World, timing: Polynomial | Fixed) -> World:
    kv_tokens = world.num_blocks * world.block_size
    cost = MockerCost(timing, kv_tokens, separate=world.scheduler == "sglang")
    return replace(world, cost=cost, depth=1, asynchronous=False, speculation="")


@examples(30)
@given(
    worlds("vllm", kv="prefix-hash") | worlds("sglang", kv="prefix-radix"),
    st.just(Polynomial()) | st.builds(Fixed, st.floats(0, 20), st.floats(0, 5)),
)
def test_fast_mode_equals_plain_stepping(world: World, timing: Polynomial | Fixed) -> None:
    assert_fast_equals_plain(under_its_clock(world, timing))
