"""Data-parallel ranks in random worlds: one rank is the plain engine, fast mode equals reference mode, and ranks step
together whatever else there is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from servesim.checking.draw import Draws, plain_world, with_features
from servesim.checking.subject import Subject
from servesim.contracts.cost import Batch, Price
from servesim.contracts.feature import installed
from servesim.engine.cluster import Cluster
from servesim.features.data_parallel.fast import FastGroup
from servesim.features.data_parallel.group import DataParallel
from servesim.features.data_parallel.part import Ranks
from tests.property.test_fast_equals_reference import assert_fast_equals_plain, by_row
from tests.property.test_feature_pairs import ROOMS, assert_all_have_left
from tests.support.examples import examples
from tests.support.strategies import lockstep_worlds, social_worlds, worlds
from tests.support.worlds import ToyCost, World


@dataclass
class SharedCost(ToyCost):
    """Ranks whose experts compute the tokens of all: each pays for those of the others, too."""

    def prices(self, batches: list[Batch | None]) -> list[Price]:  # type: ignore[override]
        tokens = sum(batch.linear_tokens if batch is not None else 1 for batch in batches)
        own = [batch if batch is not None else Batch(1) for batch in batches]
        alone = [self.price(batch) for batch in own]
        return [p._replace(ns=p.ns + self.token * tokens, gpu_ns=p.gpu_ns + self.token * tokens) for p in alone]


@st.composite
def ranks(draw: st.DrawFn) -> World:
    """A world of data-parallel ranks, planned ahead by one step at most."""
    world = draw(st.one_of(worlds(samples=True), social_worlds(samples=True), lockstep_worlds()))
    asynchronous = world.asynchronous and world.depth == 2
    size = draw(st.sampled_from([1, 2, 3]))
    toy = world.cost
    assert isinstance(toy, ToyCost)
    return replace(
        world,
        depth=2 if asynchronous else 1,
        asynchronous=asynchronous,
        replicas=size * draw(st.sampled_from([1, 1, 2])),
        data_parallel=DataParallel(size, draw(st.sampled_from([1, 3, 32]))),
        cost=SharedCost(toy.fixed, toy.token, toy.context, toy.overlapped, toy.exposed, toy.asynchronous),
    )


@examples(30)
@given(ranks())
def test_fast_mode_equals_reference_mode_with_data_parallel_ranks(world: World) -> None:
    assert_fast_equals_plain(world)


@examples(30)
@given(ranks())
def test_runs_of_rounds_leave_the_records_of_single_rounds_in_their_order(world: World) -> None:
    world = replace(world, replicas=world.data_parallel.ranks)  # rows of two groups come in the order of their runs
    runs = world.run("fast")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FastGroup, "_prepare", lambda group, past: False)
        singly = world.run("fast")
    assert runs.recorder.steps.array().tolist() == singly.recorder.steps.array().tolist()
    assert runs.recorder.requests.array().tolist() == singly.recorder.requests.array().tolist()
    assert counts(runs) == counts(singly)


@examples(20)
@given(st.one_of(worlds(), social_worlds(), lockstep_worlds()))
def test_data_parallel_of_one_rank_is_the_plain_engine_to_the_nanosecond(world: World) -> None:
    world = replace(world, depth=2 if world.asynchronous else 1, asynchronous=world.asynchronous and world.depth == 2)
    plain, alone = world.run("reference"), replace(world, data_parallel=DataParallel(1)).run("reference")
    assert by_row(alone.recorder) == by_row(plain.recorder)
    assert alone.recorder.steps.array().tolist() == plain.recorder.steps.array().tolist()
    assert alone.recorder.deliveries.array().tolist() == plain.recorder.deliveries.array().tolist()
    assert alone.recorder.reasons == plain.recorder.reasons


@pytest.mark.feature(*ROOMS)
@examples(20)
@given(st.integers(0, 100_000), st.sets(st.sampled_from(ROOMS)))
def test_ranks_step_together_and_no_request_is_lost_whatever_else_there_is(number: int, others: set[str]) -> None:
    """Drafts, prompts and answers apart, crashes, autoscalers, memory beyond the GPU."""
    features = [f for f in installed() if f.name in {*others, "data_parallel"}]
    world = with_features(plain_world(number, Subject.of("vllm")), features, Draws(number))
    event(f"with {', '.join(world.featured)}, drafts: {bool(world.speculation)}")
    if "data_parallel" not in world.featured:
        return
    fast, plain = world.run("fast"), world.run("reference", check=True)
    assert by_row(fast.recorder) == by_row(plain.recorder)
    assert fast.recorder.reasons == plain.recorder.reasons
    assert counts(fast) == counts(plain)
    assert_all_have_left(world, fast)
    assert_in_step(plain)  # whose steps are recorded one by one


def counts(cluster: Cluster) -> list[tuple[int, int]]:
    """Steps and dummy steps of each group."""
    ranks = cluster.part(Ranks)
    assert ranks is not None
    return [(group.steps, group.dummies) for group in ranks.groups]


def assert_in_step(cluster: Cluster) -> None:
    """Two steps of a group are at the same time, or one begins when the other has ended."""
    ranks = cluster.part(Ranks)
    assert ranks is not None
    steps = cluster.recorder.steps
    for group in ranks.groups:
        own = {rank.index for rank in group.ranks}
        rows = zip(*(steps.column(name).tolist() for name in ("replica", "start_ns", "end_ns")), strict=True)
        times = sorted({(start, end) for replica, start, end in rows if replica in own})
        assert all(end <= start for (_, end), (start, _) in pairwise(times))
