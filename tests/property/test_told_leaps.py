"""A router that listens to prefix caches hears the same in fast mode, although runs of steps are still one event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from servesim.contracts.kv_events import BlockRemoved, BlockStored, KVEvent
from servesim.contracts.router import WAIT, Decision, ReplicaView, Router, routers
from servesim.engine.cluster import Cluster
from tests.property.test_fast_equals_reference import assert_steps_agree, by_row
from tests.support.examples import examples
from tests.support.strategies import lockstep_worlds, social_worlds, worlds
from tests.support.worlds import World

CACHES = ("prefix-hash", "prefix-hash", "prefix-hash:free_order=back", "prefix-radix")
ROUTERS = (
    "attentive", "attentive", "hesitant", "llm-d-precise", "dynamo-kv", "dynamo-kv:router_queue_threshold=0.01",
    "dynamo-kv:router_queue_threshold=0.01,active_decode_blocks_threshold=0.7",
    "dynamo-kv:router_track_output_blocks=1",
)  # fmt: skip


class Attentive(Router):
    """Chooses by all that it has been told so far, and keeps it with the time."""

    name = "attentive"

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.told: list[tuple[int, int, KVEvent]] = []

    def route(self, request: Any, views: Sequence[ReplicaView]) -> Decision:
        ready = [view.index for view in views if view.state == "ready"]
        return ready[len(self.told) % len(ready)]

    def on_kv_events(self, replica: int, events: Sequence[KVEvent]) -> None:
        for each in events:
            plain = each._replace(content=None) if isinstance(each, BlockStored) else each
            self.told.append((self.clock(), replica, plain))


class Hesitant(Attentive):
    """Lets a request wait until two more events have come, if anything is running."""

    name = "hesitant"

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._first: dict[Any, int] = {}

    def route(self, request: Any, views: Sequence[ReplicaView]) -> Decision:
        first = self._first.setdefault(request, len(self.told))
        if len(self.told) < first + 2 and any(view.num_running or view.num_waiting for view in views):
            return WAIT
        return super().route(request, views)

    def on_finish(self, request: Any, replica: int, status: Any) -> None:
        """Nothing: the end of a request makes the router reconsider those that wait."""


@pytest.fixture(autouse=True, scope="module")
def known() -> Iterator[None]:
    """Let routers know these, for the tests here alone."""
    routers._classes.update({"attentive": Attentive, "hesitant": Hesitant})
    yield
    for name in ("attentive", "hesitant"):
        del routers._classes[name]


@st.composite
def heard_worlds(draw: st.DrawFn) -> World:
    """Worlds with a prefix cache and a router that listens to it, at once or with late reports beside."""
    scheduler = draw(st.sampled_from(["vllm", "vllm", "sglang", "sarathi", "continuous"]))
    kv = draw(st.sampled_from(CACHES))
    alike = worlds(scheduler, kv, samples=True, alike=True)
    world = draw(st.one_of(alike, alike, social_worlds(scheduler, kv, samples=True)))
    late = draw(st.sampled_from([0, 0, 700, 5_000]))
    return replace(
        world,
        replicas=draw(st.sampled_from([1, 2, 3])),
        router=draw(st.sampled_from(ROUTERS)),
        speculation=draw(st.sampled_from(["", "", "", world.speculation])),
        report_every=late,
        report_lag=draw(st.sampled_from([0, 300])) if late else 0,
    )


def compared(world: World) -> Cluster:
    """A world run in both modes, in which everything recorded and told is the same."""
    fast, plain = world.run("fast"), world.run("reference")
    if isinstance(fast.router, Attentive):
        assert isinstance(plain.router, Attentive)
        assert fast.router.told == plain.router.told
        event(f"removed: {any(isinstance(each, BlockRemoved) for _, _, each in fast.router.told)}")
    assert by_row(fast.recorder) == by_row(plain.recorder)
    assert_steps_agree(fast.recorder, plain.recorder)
    event(f"leapt: {len(fast.recorder.steps.array()) < len(plain.recorder.steps.array())}")
    return fast


@examples(400)
@given(heard_worlds())
def test_routers_that_hear_of_blocks_decide_the_same_in_both_modes(world: World) -> None:
    compared(world)


@examples(300)
@given(lockstep_worlds(), st.sampled_from(ROUTERS), st.sampled_from([1, 2, 3]), st.sampled_from([9, 14, 20, 400]))
def test_the_same_where_most_decode_together(world: World, router: str, replicas: int, blocks: int) -> None:
    compared(replace(world, router=router, replicas=replicas, kv="prefix-hash", num_blocks=blocks))
