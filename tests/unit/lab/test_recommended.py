"""Check of `servesim recommend`: deployments drawn at random from the whole space."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts.searched import Span
from servesim.experiments.recommend.space import grid
from servesim_lab.recommended import drawn_value

SPANS = st.builds(lambda low, times: Span(low, low * 2**times), st.integers(1, 64), st.integers(0, 8))


@given(SPANS, st.integers())
def test_a_drawn_number_lies_in_its_span(span: Span, seed: int) -> None:
    assert span.low <= drawn_value(span, random.Random(seed)) <= span.high


def test_draws_are_not_only_from_the_grid() -> None:
    span, draw = Span(16, 1024), random.Random(0)
    assert any(drawn_value(span, draw) not in grid(span) for _ in range(20))
