"""Circuit breakers and retries, by hand (cluster recordings cover the closed path: tests/conformance)."""

from __future__ import annotations

from typing import Any

import pytest

import servesim
from servesim.contracts import Reject, Router
from servesim.policies.routing._breakers import Breaker, Breakers, Limits
from servesim.policies.routing._retries import RetryParams
from servesim.policies.routing.circuit_breaker import CircuitBreaker
from tests.support.routing import Prompts, router_of, views_of

S = 10**9
LIMITS = Limits(failures=2, successes=2, timeout_ns=10 * S)
PROMPTS = Prompts()


def opened() -> Breaker:
    breaker = Breaker(LIMITS)
    breaker.failed(0)
    assert breaker.allows(0)
    breaker.failed(S)
    return breaker


def test_a_breaker_opens_after_failures_in_a_row_and_is_half_open_after_the_timeout() -> None:
    breaker = opened()
    assert [breaker.allows(ns) for ns in (S, 11 * S - 1, 11 * S)] == [False, False, True]


def test_a_success_between_failures_starts_the_count_again() -> None:
    breaker = Breaker(LIMITS)
    breaker.failed(0)
    breaker.succeeded(0)
    breaker.failed(0)
    assert breaker.allows(0)


def test_half_open_it_closes_after_two_successes() -> None:
    breaker = opened()
    breaker.succeeded(11 * S)
    assert not breaker.clean()
    breaker.succeeded(11 * S)
    assert breaker.clean()


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


def test_what_fails_now_and_then_leaves_no_breaker_behind() -> None:
    breakers = Breakers(LIMITS)
    for status in ("failed", "cancelled", "finished"):
        breakers.heard(1, status, 0)
    assert not breakers


GATEWAYS = [
    "sglang-cache-aware", "smg-cache-aware", "smg-cache-aware:version=1.13.0", "smg-least-load", "smg-prefix-hash",
    "vllm-router-cache-aware", "manual", "sticky-least-loaded",
]  # fmt: skip


def failing(spec: str, **params: Any) -> Router:
    """Return a router of two replicas that has heard of ten failures of replica 0."""
    name, _, version = spec.partition(":version=")
    router = router_of(name, 2, **({"version": version} if version else {}), **params)
    for _ in range(10):
        request = PROMPTS((1, 5), session="a")
        router.on_sent(request, 0)
        router.on_finish(request, 0, "failed")
    return router


@pytest.mark.parametrize("spec", GATEWAYS)
def test_a_gateway_skips_a_replica_after_ten_failures_until_60_s_have_passed(spec: str) -> None:
    router = failing(spec)
    assert {router.route(PROMPTS((1, 5), session=str(i)), views_of(2)) for i in range(16)} == {1}
    router.clock = lambda: 60 * S
    assert 0 in {router.route(PROMPTS((i, 5), session=f"s{i}"), views_of(2)) for i in range(16)}


@pytest.mark.parametrize("spec", GATEWAYS)
def test_without_its_breaker_it_goes_on(spec: str) -> None:
    router = failing(spec, disable_circuit_breaker=True)
    assert 0 in {router.route(PROMPTS((i, 5), session=f"s{i}"), views_of(2)) for i in range(16)}


def test_a_gateway_refuses_where_every_breaker_is_open() -> None:
    router = failing("sglang-cache-aware", cb_failure_threshold=1)
    router.on_sent(PROMPTS((1, 5)), 1)
    router.on_finish(PROMPTS((1, 5)), 1, "failed")
    assert router.route(PROMPTS((1, 5)), views_of(2)) == Reject(503)


@pytest.mark.feature("failures")
def test_a_breaker_spares_requests_what_a_late_detection_costs() -> None:
    """Of four replicas one is gone after 10 s; a router without breakers goes on sending there for 2 s."""
    lost = {}
    for router in ("sglang-cache-aware", "sglang-cache-aware:disable_circuit_breaker=true"):
        found = servesim.simulate(
            trace="synth:rate=60,prompt=1000,output=200", requests=1200, model="llama-3.1-8b", gpu="h200", replicas=4,
            router=router, cluster={"failures": ["crash:replica=0,at=10"], "detection_s": 2}, conclude=False,
        )  # fmt: skip
        lost[router] = found.summary["requests"]["aborted"]
    assert list(lost.values()) == [31, 102]
