"""The tool that runs random worlds by the thousand says what differs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import many_worlds
from tests.support.many_worlds import CLUSTERS, KINDS, batch


def test_a_batch_is_drawn_by_its_number() -> None:
    first, again, other = (batch(number, "worlds", 4) for number in (7, 7, 8))
    assert first == again
    assert (first[1], other[1]) == ("", "")
    assert len(first[0] | other[0]) > len(first[0])


@pytest.mark.parametrize("kind", ["worlds", "summaries", *CLUSTERS])
def test_a_difference_is_told_with_the_world_that_shows_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(world: Any) -> None:
        raise AssertionError("one row more")

    for name in ("compared", "assert_summaries_agree", "assert_hears_the_same", "assert_both_agree"):
        monkeypatch.setattr(many_worlds, name, lambda world, *how: differs(world))
    _, wrong = batch(0, kind, 3)
    assert wrong.startswith("AssertionError: one row more")
    assert "trace" in wrong


def test_every_kind_can_be_drawn() -> None:
    kinds = [kind for kind in (*KINDS, *CLUSTERS) if not kind.startswith("summaries")]
    assert {batch(number, kind, 1)[1] for number, kind in enumerate(kinds)} == {""}
