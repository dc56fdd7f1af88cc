"""Virtual token counter, by hand and by the paper's bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servesim.errors import UserError
from tests.support.worlds import ToyCost, World, toy_trace


def world(
    arrivals: list[int], prompts: list[int], outputs: list[int], tenants: str, slots: int, **params: Any
) -> World:
    trace = toy_trace(arrivals, prompts, outputs)
    trace = replace(trace, labels={"tenant": tuple(tenants)})
    return World(
        trace, "paged", 400, scheduler="vtc", scheduler_params=params, max_num_seqs=slots, max_model_len=400,
        max_num_batched_tokens=64, cost=ToyCost(fixed=1000, token=10, context=0),
    )  # fmt: skip


def served(w: World, mode: str = "fast") -> list[int]:
    """Rows in the order in which they were first scheduled."""
    rows = w.run(mode, check=True).recorder.requests
    begun = list(zip(rows.column("scheduled_ns").tolist(), rows.column("row").tolist(), strict=True))
    return [row for _, row in sorted(begun)]


def test_a_tenant_that_floods_the_queue_waits_for_one_that_asks_seldom() -> None:
    """One at a time: a's four and b's two, all there at once. a is charged 10 + 2 x 5 = 20 for its first; b goes next,
    and so on in turn."""
    assert served(world([0] * 6, [10] * 6, [5] * 6, "aaaabb", 1)) == [0, 4, 1, 5, 2, 3]


def test_what_counts_is_tokens_and_not_requests() -> None:
    """a's first is charged 10 + 2 x 40 = 90: four of b's, 20 each, come before its second."""
    assert served(world([0] * 7, [10] * 7, [40, 5, 5, 5, 5, 5, 5], "aabbbbb", 1)) == [0, 2, 3, 4, 5, 6, 1]


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    """b comes when a has been served six and has four more waiting: then it is their turn by turn, not b's alone."""
    arrivals = [0] * 10 + [40_000] * 3
    order = served(world(arrivals, [10] * 13, [5] * 13, "a" * 10 + "b" * 3, 1))
    first = order.index(10)
    assert 0 < first < 9
    assert order[first : first + 4] == [10, order[first + 1], 11, order[first + 3]]
    assert order[first + 1] < 10
    assert order[first + 3] < 10


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_tenants_that_always_have_requests_waiting_are_served_alike_up_to_the_paper_s_bound(
    data: st.DataObject,
) -> None:
    """Theorem 4.4: while both are backlogged, what they were served differs by at most 2 max(w_in L_in, w_out M): the
    longest prompt, and the tokens that may be held at once. Both modes agree."""
    n = data.draw(st.integers(6, 20))
    prompts = data.draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    outputs = data.draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))
    tenants = "".join(data.draw(st.lists(st.sampled_from("ab"), min_size=n, max_size=n)))
    slots = data.draw(st.integers(1, 4))
    w = world([0] * n, prompts, outputs, tenants, slots)
    fast, plain = (w.run(mode, check=True).recorder.requests for mode in ("fast", "reference"))
    order = np.argsort(fast.column("row"))
    for name in ("scheduled_ns", "first_token_ns", "last_token_ns"):
        assert (fast.column(name)[order] == plain.column(name)[np.argsort(plain.column("row"))]).all()
    begun, ended = (fast.column(name)[order] for name in ("scheduled_ns", "last_token_ns"))
    bound = 2 * max(max(prompts), 2 * slots * (max(prompts) + max(outputs)))
    mine = {tenant: np.array([t == tenant for t in tenants]) for tenant in "ab"}
    if not all(m.any() for m in mine.values()):
        return
    both_wait_until = min(int(begun[m].max()) for m in mine.values())
    got = {}
    for tenant, m in mine.items():
        done = m & (ended < both_wait_until)
        got[tenant] = (np.array(prompts)[done] + 2 * np.array(outputs)[done]).sum()
    assert abs(got["a"] - got["b"]) <= bound


@pytest.mark.parametrize("params", [{"input_weight": -1}, {"output_weight": float("nan")}])
def test_weights_that_are_none_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(UserError):
        world([0], [1], [1], "a", 1, **params).run()
