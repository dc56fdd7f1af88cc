"""Fast mode equals reference mode on worlds of the second generator, too (many more: tests.support.other_worlds)."""

from __future__ import annotations

import pytest

from tests.support.other_worlds import draw, outcome


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_worlds_of_shared_content_and_ties_are_the_same_in_both_modes(first: int) -> None:
    found = [outcome(number) for number in range(first, first + 20)]
    assert [what for what in found if what.startswith(("DIFFERS", "stopped"))] == []
    assert found.count("same") >= 15


def test_the_second_generator_draws_what_the_first_seldom_does() -> None:
    worlds = [draw(number) for number in range(200)]
    assert sum(world.block_size == 1 for world in worlds) > 40
    assert sum(len({*world.trace.arrival_ns.tolist()}) < len(world.trace) for world in worlds) > 100
    assert len({world.router for world in worlds}) > 25
    assert sum(":Mine" in world.scheduler for world in worlds) > 25


@pytest.mark.parametrize("number", [112604, 119221])
def test_the_last_block_of_an_answer_that_ends_in_lockstep_is_cached_before_it_is_freed(number: int) -> None:
    assert outcome(number) == "same"
