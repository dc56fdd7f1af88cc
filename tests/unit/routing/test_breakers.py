"""Circuit breakers and retries, by hand (cluster recordings cover the closed path: tests/conformance)."""

from __future__ import annotations

import pytest

from servesim.contracts import Reject
from servesim.errors import UserError
from servesim.policies.routing._retries import Breaker, RetryParams
from servesim.policies.routing.circuit_breaker import CircuitBreaker
from tests.support.routing import Prompts, router_of, views_of

S = 10**9
PARAMS = RetryParams(failure_threshold=2, success_threshold=2, timeout_s=10)


def opened() -> Breaker:
    breaker = Breaker(PARAMS)
    breaker.failed(0)
    assert breaker.allows(0)
    breaker.failed(S)
    return breaker


def test_a_breaker_opens_after_failures_in_a_row_and_is_half_open_after_the_timeout() -> None:
    breaker = opened()
    assert [breaker.allows(ns) for ns in (S, 11 * S - 1, 11 * S)] == [False, False, True]


def test_a_success_between_failures_starts_the_count_again() -> None:
    breaker = Breaker(PARAMS)
    breaker.failed(0)
    breaker.succeeded(0)
    breaker.failed(0)
    assert breaker.allows(0)


def test_half_open_it_closes_after_two_successes() -> None:
    breaker = opened()
    breaker.succeeded(11 * S)
    assert not breaker.closed()
    breaker.succeeded(11 * S)
    assert breaker.closed()


def test_half_open_one_failure_opens_it_again() -> None:
    breaker = opened()
    breaker.succeeded(11 * S)
    breaker.failed(12 * S)
    assert [breaker.allows(ns) for ns in (12 * S, 22 * S)] == [False, True]


def test_waits_grow_up_to_the_longest_and_the_last_attempt_has_none() -> None:
    params = RetryParams(max_retries=4, initial_backoff_ms=50, backoff_multiplier=2, max_backoff_ms=150)
    assert [params.wait_ns(k, 0.5) for k in range(4)] == [50_000_000, 100_000_000, 150_000_000, None]
    assert params.wait_ns(0, 1.0) == 60_000_000  # jitter 0.2


def test_a_request_is_refused_where_every_breaker_is_open() -> None:
    router = router_of("circuit-breaker", 2, failure_threshold=1)
    request = Prompts()((1, 5))
    for replica in (0, 1):
        router.on_sent(request, replica)
        router.on_finish(request, replica, "failed")
    assert router.route(request, views_of(2)) == Reject(503)


def test_the_router_behind_the_breakers_keeps_its_own_counts() -> None:
    router = router_of("circuit-breaker", 2, router="power-of-two")
    assert isinstance(router, CircuitBreaker)
    router.on_sent(Prompts()((1, 5)), 1)
    assert router.inner.load == [0, 1]  # type: ignore[attr-defined]


def test_a_router_that_must_hear_of_caches_is_refused_behind_breakers() -> None:
    with pytest.raises(UserError, match="dynamo-kv needs cache events, which circuit-breaker does not forward"):
        router_of("circuit-breaker", 2, router="dynamo-kv")
