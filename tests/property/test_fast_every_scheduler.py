"""Fast-forwarding changes nothing under any scheduler, over random worlds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts import schedulers
from tests.property.test_fast_equals_reference import compared
from tests.support.examples import examples
from tests.support.strategies import social_worlds, worlds


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", [name for name in schedulers.names() if name != "vllm"])
@examples(40)
@given(data=st.data())
def test_fast_mode_equals_plain_stepping_under_every_scheduler(scheduler: str, data: st.DataObject) -> None:
    compared(data.draw(worlds(scheduler, samples=True) | social_worlds(scheduler, samples=True)))
