"""Rate limits by tenant, by hand."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts import Reject, Request, Router
from servesim.errors import UserError
from tests.support.routing import router_of, views_of

SECOND = 10**9


def asked(router: Router, at_ns: int, row: int, tenant: str = "") -> bool:
    """Whether a request of this tenant is let in at this time."""
    router.clock = lambda: at_ns
    request = Request(row, str(row), 8, 1, at_ns, tenant=tenant)
    decision = router.route(request, views_of(2))
    if decision == Reject(429):
        return False
    assert isinstance(decision, int)
    router.on_sent(request, decision)
    return True


def test_a_full_bucket_lets_a_burst_in_and_then_one_request_for_each_that_it_gains() -> None:
    """2 at once, then one each 0.25 s at 4 requests/s: at 0.2 s there are 0.8, at 0.3 s 1.2, of which 0.2 are left."""
    router = router_of("token-bucket", 2, per_s=4, burst=2)
    times = [0, 0, 0, SECOND // 5, 3 * SECOND // 10, SECOND // 2 - 1, SECOND // 2]
    found = [asked(router, ns, row) for row, ns in enumerate(times)]
    assert found == [True, True, False, False, True, False, True]


def test_an_idle_bucket_holds_no_more_than_a_burst() -> None:
    router = router_of("token-bucket", 2, per_s=4, burst=2)
    assert [asked(router, ns, row) for row, ns in enumerate([0, *[100 * SECOND] * 3])] == [True, True, True, False]


def test_each_tenant_has_a_bucket_of_its_own() -> None:
    router = router_of("token-bucket", 2, per_s=0, burst=1)
    tenants = ["a", "b", "a", "", "b", ""]
    assert [asked(router, 0, row, name) for row, name in enumerate(tenants)] == [True, True, False, True, False, False]


def test_a_request_that_is_asked_for_again_is_not_counted_twice() -> None:
    router = router_of("token-bucket", 2, per_s=0, burst=1)
    request = Request(7, "7", 8, 1, 0)
    assert [router.route(request, views_of(2)) for _ in range(3)] == [0, 0, 0]
    router.on_sent(request, 0)
    router.on_finish(request, 0, "failed")
    assert router.route(request, views_of(2)) == 0
    router.on_sent(request, 0)
    router.on_finish(request, 0, "finished")
    assert router.route(request, views_of(2)) == Reject(429)


def test_the_router_behind_it_chooses_and_hears_of_what_is_let_in() -> None:
    router = router_of("token-bucket", 2, per_s=1, burst=3, router="least-requests")
    for row in range(4):
        asked(router, 0, row)
    assert router.inner.load == [2, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("params", [{"per_s": -1}, {"per_s": float("inf")}, {"burst": 0}])
def test_limits_that_are_none_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(UserError, match="must be"):
        router_of("token-bucket", 2, **params)


@given(st.lists(st.integers(0, 5 * SECOND), min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 7))
def test_no_stretch_of_time_has_more_than_a_burst_and_the_rate(times: list[int], burst: int, per_s: int) -> None:
    router = router_of("token-bucket", 2, per_s=per_s, burst=burst)
    times.sort()
    let_in = [ns for row, ns in enumerate(times) if asked(router, ns, row)]
    for i, since in enumerate(let_in):
        for until in let_in[i:]:
            inside = bisect_right(let_in, until) - i
            assert inside <= burst + Fraction((until - since) * per_s, SECOND)
    assert len(let_in) >= min(burst, len(times))
