"""Prefixes have numbers without any meaning: no decision comes from them."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from servesim.contracts import schedulers
from servesim.engine.cluster import Cluster
from servesim.workload import content
from tests.property.test_fast_equals_reference import by_row
from tests.property.test_routers_fast import ROUTERS
from tests.support.examples import examples
from tests.support.strategies import GROUPED, SHARING, worlds
from tests.support.worlds import World


def numbered_otherwise(world: World, mode: str, base: int) -> Cluster:
    """The world after a run in which prefixes have other numbers."""
    with patch.object(content, "BASE", base):
        return world.run(mode)


@st.composite
def sharing_worlds(draw: st.DrawFn) -> World:
    kv = draw(st.sampled_from(["paged", *SHARING, *GROUPED]))
    world = draw(worlds(scheduler=draw(st.sampled_from(schedulers.names())), kv=kv, samples=True))
    if kv in GROUPED:  # these tell no router what they hold
        return world
    return replace(world, replicas=draw(st.integers(1, 3)), router=draw(st.sampled_from(ROUTERS)))


@examples(100)
@given(sharing_worlds(), st.sampled_from(["fast", "reference"]), st.integers(1 << 40, content.MODULUS - 1))
def test_the_numbers_of_prefixes_change_nothing_in_a_run(world: World, mode: str, base: int) -> None:
    plain = world.run(mode)
    event(f"content: {world.trace.content is not None}, router {world.router.partition(':')[0]}")
    assert by_row(numbered_otherwise(world, mode, base).recorder) == by_row(plain.recorder)


@examples(40)
@given(st.sampled_from(["paged", *SHARING, "contiguous:reservation=pow2"]), worlds(kv="paged"))
def test_the_home_of_a_prompt_depends_on_no_allocator_and_on_no_later_request(kv: str, world: World) -> None:
    world = replace(
        world, replicas=3, router="smg-prefix-hash:prefix_token_count=8,load_factor=1000000", num_blocks=400
    )
    homes = replicas(world)
    assert replicas(replace(world, kv=kv)) == homes
    half = np.arange((len(world.trace) + 1) // 2)
    assert replicas(replace(world, trace=world.trace.take(half))) == homes[: len(half)]


def replicas(world: World) -> list[int]:
    """The replica of each request."""
    return [row[1] for row in by_row(world.run().recorder)]
