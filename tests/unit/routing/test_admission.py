"""Queues in front of routers: limits, times, bands and turns, by hand and in runs of both modes."""

from __future__ import annotations

from typing import Any

import pytest

import servesim
from servesim.checking.world import toy_trace
from servesim.contracts import Reject, Request, Router, Wait
from servesim.cost.host import HostTerms
from servesim.errors import UserError
from tests.support.routing import View, router_of, views_of

MS = 10**6
SECOND = 10**9


def request(row: int, tenant: str = "", priority: int = 0) -> Request:
    return Request(row, str(row), 8, 1, 0, tenant=tenant, priority=priority)


def ask(router: Router, asked: Request, views: Any = 1) -> Any:
    """Do with a request what the engine does with it when it arrives."""
    decision = router.route(asked, views_of(views))
    if isinstance(decision, int):
        router.on_sent(asked, decision)
    return decision


def test_what_exceeds_the_limit_waits_and_what_exceeds_the_queue_is_refused_with_429() -> None:
    router = router_of("concurrency-limit", 1, max_concurrent_requests=1, queue_size=1, queue_timeout_s=2)
    first, second, third = map(request, range(3))
    assert ask(router, first) == 0
    assert ask(router, second) == Wait(2 * SECOND, 408)
    router.queue_key(second)
    assert ask(router, third) == Reject(429)
    router.on_finish(first, 0, "finished")
    assert ask(router, third) == Reject(429), "the second was there first"
    assert ask(router, second) == 0


def test_a_request_that_gave_up_leaves_its_place_in_the_queue() -> None:
    router = router_of("concurrency-limit", 1, max_concurrent_requests=1, queue_size=1)
    ask(router, request(0))
    router.queue_key(request(1))
    assert ask(router, request(2)) == Reject(429)
    router.on_dropped(request(1))
    assert isinstance(ask(router, request(2)), Wait)


def test_saturation_is_the_mean_of_the_fuller_of_queue_and_memory() -> None:
    """max(2 / 5, .6 / .8) = .75 and max(10 / 5, .1 / .8) = 2: 1.375 in the mean."""
    router: Any = router_of("llm-d-flow-control", 2, router="round-robin")
    views = views_of([View(0, num_waiting=2, kv_usage=0.6), View(1, num_waiting=10, kv_usage=0.1)])
    assert router.saturation(views) == pytest.approx(1.375)


def test_one_a_millisecond_leaves_once_replicas_are_not_saturated() -> None:
    router = router_of("llm-d-flow-control", 1, router="round-robin")
    now = 0
    router.clock = lambda: now
    full = [View(0, num_waiting=5)]
    for row in range(2):
        assert ask(router, request(row), full) == Wait(60 * SECOND, 429, MS)
        router.queue_key(request(row))
    assert isinstance(ask(router, request(2)), Wait), "others wait"
    assert ask(router, request(0)) == 0
    assert ask(router, request(1)) == Wait(60 * SECOND, 429, MS)
    now = MS // 4
    assert ask(router, request(1)) == Wait(60 * SECOND, 429, 3 * MS // 4)
    now = MS
    assert ask(router, request(1)) == 0


def test_a_full_band_refuses_and_another_has_room() -> None:
    router = router_of("llm-d-flow-control", 1, router="round-robin", max_requests=1)
    full = [View(0, num_waiting=5)]
    router.queue_key(request(0))
    assert ask(router, request(1), full) == Reject(429)
    assert isinstance(ask(router, request(2, priority=1), full), Wait)


def test_bands_go_by_priority_and_tenants_by_turns() -> None:
    """Tenant a sent three, then b two: a b a b a in turns, a a a b b in order of arrival; the urgent one is first."""
    asked = [request(row, tenant) for row, tenant in enumerate("aaabb")] + [request(5, "c", priority=-1)]
    for fairness, order in (("round-robin", [5, 0, 3, 1, 4, 2]), ("global-strict", [5, 0, 1, 2, 3, 4])):
        router = router_of("llm-d-flow-control", 1, router="round-robin", fairness=fairness)
        keys = [router.queue_key(each) for each in asked]
        assert sorted(range(6), key=lambda row: (keys[row], row)) == order


def test_a_tenant_that_comes_late_is_served_after_the_turn_that_is_on() -> None:
    router = router_of("llm-d-flow-control", 1, router="round-robin", fairness="round-robin")
    turns = [router.queue_key(request(row, "a"))[1] for row in range(3)]
    for row in range(2):
        router.on_sent(request(row, "a"), 0)
    assert turns == [0, 1, 2]
    assert router.queue_key(request(3, "b"))[:2] == (0, 1)


def test_what_would_wait_too_long_by_the_speed_seen_so_far_is_refused_at_once() -> None:
    """Two prompts of 100 tokens took 1 s each: 100 tokens/s. With 100 tokens ahead one of 150 would take 2.5 s."""
    router: Any = router_of("early-rejection", 1, ttft_s=2)
    now = 0
    router.clock = lambda: now
    for row in range(2):
        assert ask(router, Request(row, str(row), 100, 1, 0)) == 0, "nothing is known yet, or nothing waits"
        now += SECOND
        router.on_prefill_done(Request(row, str(row), 100, 1, 0), 0)
        now += SECOND  # idle: does not count
    ahead = Request(2, "2", 100, 1, 0)
    assert ask(router, ahead) == 0
    assert router.predicted_ns(Request(3, "3", 150, 1, 0), 0) == 2.5 * SECOND
    assert ask(router, Request(3, "3", 150, 1, 0)) == Reject(429)
    assert ask(router, Request(4, "4", 100, 1, 0)) == 0
    assert router.backlog == [200]
    router.on_finish(ahead, 0, "failed")
    assert router.backlog == [100], "what is lost does not wait"


def test_early_rejection_keeps_the_first_tokens_of_those_served_in_time_under_overload() -> None:
    load: dict[str, Any] = {"trace": "synth:rate=60,prompt=2000,output=20", "requests": 300, "slo": {"ttft": 2000}}
    machine = {"model": "llama-3.1-8b", "gpu": "h100", "conclude": False}
    plain = servesim.simulate(**load, **machine, router="least-requests")
    early = servesim.simulate(**load, **machine, router="early-rejection:ttft_s=2")
    assert plain.summary["latency_ms"]["ttft"]["p99"] > 4000
    assert early.summary["latency_ms"]["ttft"]["p99"] < 3000
    assert early.summary["goodput"]["good_requests"] > 1.5 * plain.summary["goodput"]["good_requests"]


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("concurrency-limit", {"max_concurrent_requests": 0}),
        ("concurrency-limit", {"queue_timeout_s": -1}),
        ("early-rejection", {"ttft_s": -1}),
        ("llm-d-flow-control", {"queue_depth": 0}),
        ("llm-d-flow-control", {"fairness": "vtc"}),
    ],
)
def test_limits_that_are_none_are_refused(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        router_of(name, 2, **params)


def run(router: str, mode: str = "fast", **settings: Any) -> servesim.Result:
    """Serve five requests that come at once."""
    trace = toy_trace([0] * 5, [2000] * 5, [100] * 5)
    return servesim.simulate(trace=trace, model="llama-3.1-8b", gpu="h100", router=router, mode=mode, **settings)


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_a_request_that_waits_too_long_is_refused_at_that_instant_and_misses_its_goal(mode: str) -> None:
    """One at a time takes about .7 s: the second has its turn before its second is over, the others are refused then.
    Prompts reach the router one by one: once the loop of the API process has handled all five, they are tokenized in
    order."""
    limit = "concurrency-limit:max_concurrent_requests=1,queue_size=3,queue_timeout_s=1"
    found = run(limit, mode, slo={"ttft": 5000})
    requests = found.requests.sort_values("row")
    assert requests.state.tolist() == [4, 4, 5, 5, 5]
    handled = 5 * int(HostTerms.load("vllm-0.23-h100").front_per_request)
    each = (requests.finished_ns.tolist()[4] - handled) // 5
    assert [ns - handled for ns in requests.finished_ns.tolist()[2:]] == [
        SECOND + 3 * each,
        SECOND + 4 * each,
        5 * each,
    ]
    assert found.summary["goodput"]["slo_attainment"] == 0.4
    assert found.summary["requests"]["rejection_reasons"] == {
        "refused by the router (408)": 2,
        "refused by the router (429)": 1,
    }


def test_flow_control_holds_requests_back_from_one_slow_replica() -> None:
    plain = run("round-robin", scheduler="vllm:max_num_seqs=1")
    held = run("llm-d-flow-control:router=round-robin,queue_depth=1", scheduler="vllm:max_num_seqs=1")
    assert held.requests.state.tolist() == [4] * 5
    waits = (held.requests.scheduled_ns - plain.requests.scheduled_ns).abs() / MS
    assert waits.max() < 5 * 2, "what waits before the replica instead of in it is there by a tick or two later"
