"""Runs of decoding turns that fast mode takes together, beside host memory."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.engine.fast.core import FastCore
from servesim.features.offload.connector import Offload
from tests.support.offloaded import Host, memories, offloaded
from tests.support.worlds import World, toy_trace


def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The times at which a scheduler is asked for a plan from now on."""
    times: list[int] = []
    plan = FastCore.plan

    def noted(core: FastCore, now: int) -> Any:
        times.append(now)
        return plan(core, now)

    monkeypatch.setattr(FastCore, "plan", noted)
    return times


WORLD = World(toy_trace([0, 0, 0], [40, 50, 60], [500, 500, 500]), kv="prefix-hash", num_blocks=400)


@pytest.mark.parametrize("blocks", [400, 1])
def test_the_scheduler_is_not_asked_for_turns_in_which_blocks_are_stored_or_refused(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = planned(monkeypatch)
    fast = offloaded(WORLD, "fast", Host(blocks))
    fast.run()
    assert len(times) < 30
    plain = offloaded(WORLD, "reference", Host(blocks))
    plain.run()
    (found,), (expected,) = memories(fast), memories(plain)
    assert found.counts == expected.counts
    assert (found.counts.refused > 1_000) == (blocks == 1)


def test_a_connector_with_its_own_ran_is_told_of_every_step() -> None:
    told: list[int] = []

    class Own(Offload):
        def ran(self, requests: Any, begin_ns: int, end_ns: int) -> int:
            told.append(len(list(requests)))
            return end_ns

    cluster = WORLD.cluster("fast")
    made = Host(400).make(16)
    made.__class__ = Own
    cluster.replicas[0].connect(made)
    cluster.run()
    assert len(told) >= 500
    assert min(told[2:-2]) > 0
