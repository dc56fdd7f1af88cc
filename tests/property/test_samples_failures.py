"""Requests with several samples whose replicas crash, drain and are replaced: none is lost or served twice, in whatever
form an engine serves them, and both modes agree."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, given

from servesim.contracts import State
from servesim.engine.telling import LOST
from servesim.features.failures.happenings import Failures
from servesim.features.failures.part import Failing
from servesim.records.columns import REQUEST_COLUMNS
from tests.property.test_router_life import AGES, assert_hears_the_same, breakages
from tests.support.examples import examples
from tests.support.scaled import ScaledWorld, scaled_worlds
from tests.support.strategies import groups_of_samples, social_worlds, worlds
from tests.support.worlds import World

FORMS = ("vllm", "sglang", "continuous")


def assert_whole(world: World) -> None:
    """Each sample has one record, those with tokens are of one replica, and nothing is left of them."""
    cluster = world.run("fast", check=True)
    rows = cluster.recorder.requests.array()
    row, sample, request, replica, output = (
        rows[:, REQUEST_COLUMNS.index(name)] for name in ("row", "sample", "request", "replica", "output_len")
    )
    assert len(np.unique(row)) == len(row)
    for number in np.unique(request[sample > 0]).tolist():
        mine = (request == number) & (sample > 0)
        assert sorted(sample[mine].tolist()) == list(range(1, int(mine.sum()) + 1))
        assert len({*replica[mine & (output > 0)].tolist()}) <= 1
    failing = cluster.part(Failing)
    assert failing is not None
    assert not failing._samples._groups
    for each in cluster.replicas:
        assert each.core.kv.usage().used == 0
    states = Counter(rows[sample > 0, REQUEST_COLUMNS.index("state")].tolist())
    event(f"samples finished: {states[State.FINISHED] > 0}, failed: {states[State.ABORTED] > 0}")
    event(f"lost: {LOST in cluster.recorder.reasons.values()}")
    event(f"prompts computed again: {len(row[sample < 0]) > len({*request[sample < 0].tolist()})}")


@pytest.mark.parametrize("scheduler", FORMS)
def test_samples_are_neither_lost_nor_doubled_where_replicas_fail(scheduler: str) -> None:
    drawn = worlds(scheduler, samples=True) | social_worlds(scheduler, samples=True)
    if scheduler == "continuous":
        drawn = drawn | groups_of_samples()

    @examples(30)
    @given(drawn, AGES, breakages())
    def holds(world: World, ages: tuple[int, int], failures: Failures) -> None:
        assume(world.trace.samples is not None)
        world.failures = failures
        assert_hears_the_same(world, "Lively", ages)
        world.router = "round-robin"
        assert_whole(world)

    holds()


@examples(12)
@given(scaled_worlds(samples=True), AGES, breakages())
def test_nor_where_autoscalers_bring_and_drain_replicas(world: ScaledWorld, ages: Any, failures: Failures) -> None:
    assume(world.trace.samples is not None)
    world.failures = failures
    assert_hears_the_same(world, "Lively", ages)
