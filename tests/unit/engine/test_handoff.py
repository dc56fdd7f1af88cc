"""Prompts and answers apart, by hand: every step takes 1,000 ns, a token of KV is a byte, and takes a ns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from servesim.contracts import State
from servesim.contracts.router import Pair, Router
from servesim.engine import compiled
from servesim.engine.fast.lockstep_leap import LockstepLeap
from servesim.errors import PolicyError
from servesim.features.handoff.losses import GONE
from servesim.features.handoff.passage import Passage
from servesim.features.handoff.vllm import VllmNixlParams
from servesim.workload.workload import Clients
from tests.support.apart import Apart, handoff_of
from tests.support.worlds import ToyCost, toy_trace

STEPS = ToyCost(fixed=1000, token=0, context=0)


def apart(**fields: Any) -> Apart:
    """One request of 32 tokens and 3 of answer, 4,000 ns of proxy, 700 ns of start-up."""
    world = Apart(
        toy_trace([0], [32], [3]),
        cost=STEPS,
        num_blocks=100,
        decode_blocks=100,
        start_ns=700,
        replicas=2,
        protocol=VllmNixlParams(http_ms=0.004),
    )
    return replace(world, **fields)


def passages(world: Apart, mode: str = "fast") -> list[Passage]:
    cluster = world.run(mode, check=True)
    return sorted(handoff_of(cluster).done, key=lambda p: p.request.row)


def test_a_request_goes_through_prefill_proxy_wire_and_the_step_that_computes_its_last_token_again() -> None:
    (p,) = passages(apart())
    assert (p.leg.scheduled_ns, p.leg.finished_ns) == (0, 1000)
    assert (p.sent_ns, p.reserved_ns) == (5000, 5000)
    assert (p.num_bytes, p.received_ns, p.released_ns) == (32, 5732, 5732)
    assert (p.request.first_token_ns, p.request.last_token_ns) == (6732, 8732), "the prefill side's token is not seen"
    assert (p.prefill, p.decode, p.request.replica) == (0, 1, 1)


def test_the_record_of_a_request_has_its_queue_at_the_prefill_side_and_its_answer_at_the_decode_side() -> None:
    table = apart().run("fast").recorder.requests
    found = {name: table.column(name).tolist() for name in ("replica", "scheduled_ns", "first_token_ns", "output_len")}
    assert found == {"replica": [1], "scheduled_ns": [0], "first_token_ns": [6732], "output_len": [3]}


def test_what_the_decode_side_has_in_its_prefix_cache_is_not_sent() -> None:
    trace = toy_trace([0, 20_000], [48, 40], [1, 1], runs=[[(1, 48)], [(1, 32), (2, 8)]])
    _, second = passages(apart(trace=trace, kv="prefix-hash"))
    assert second.num_bytes == 8
    assert second.received_ns - second.reserved_ns == 708


def test_the_decode_side_takes_memory_before_the_transfer_and_the_next_one_waits_for_it() -> None:
    # 3 usable blocks of 16: the second prompt of 32 waits until the first has ended, at 5,732 + 3,000
    trace = toy_trace([0, 0], [32, 32], [3, 3])
    first, second = passages(apart(trace=trace, decode_blocks=4))
    assert first.request.last_token_ns == 8732
    assert (second.sent_ns, second.reserved_ns) == (5000, 8732)
    assert second.released_ns == 8732 + 732, "kept at the source all the while"


@pytest.mark.parametrize(("renewed", "policy"), [(False, "fail"), (False, "recompute"), (True, "fail")])
def test_memory_is_kept_until_the_lease_ends_unless_the_decode_side_renews_it(renewed: bool, policy: Any) -> None:
    # the request reaches the decode side at 5,000 and has memory there at 8,732; the lease ends at 1,000 + 6,000
    trace = toy_trace([0, 0], [32, 32], [3, 3])
    protocol = VllmNixlParams(0.004, lease_s=6e-6, lease_renewed=renewed, kv_load_failure_policy=policy)
    world = apart(trace=trace, decode_blocks=4, protocol=protocol)
    _, second = passages(world)
    if renewed:
        assert (second.released_ns, second.received_ns) == (9464, 9464)
        return
    assert (second.released_ns, second.received_ns) == (7000, -1)
    if policy == "fail":
        assert (second.request.state, second.request.reason) == (State.ABORTED, GONE)
    else:
        assert second.request.first_token_ns == 9732, "computed at the decode side, in one step from 8,732 on"


def test_each_lease_ends_at_its_own_time_and_a_run_goes_on_until_the_last_one() -> None:
    # prompts end at 1,000 and 2,000, leases of 6,000; only the first prompt has memory on the decode side by then
    trace = toy_trace([0, 0, 1_000, 20_000], [32, 32, 32, 32], [3, 3, 3, 3])
    protocol = VllmNixlParams(0.004, lease_s=6e-6, lease_renewed=False)
    cluster = apart(trace=trace, decode_blocks=4, protocol=protocol).run("fast", check=True)
    found = sorted(handoff_of(cluster).done, key=lambda p: p.request.row)
    assert [p.leg.finished_ns for p in found] == [1_000, 1_000, 2_000, 21_000]
    assert [p.released_ns for p in found] == [5_732, 7_000, 8_000, 25_732]
    assert cluster.now_ns == 28_732, "the last request ends after the last lease, at 27,000"
    assert apart(protocol=VllmNixlParams(0.004, lease_s=1e-3)).run("fast").now_ns == 1_001_000


@pytest.mark.skipif(compiled(), reason="methods of what is compiled cannot be replaced")
def test_a_run_of_steps_after_a_load_has_begun_is_worked_out_unless_the_load_ends_before_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the first request decodes when the second one comes, at 13,000; its KV takes 132 ns, or 3,232
    begun: list[int] = []
    original = LockstepLeap.prepare.__func__  # type: ignore[attr-defined]

    def prepare(cls: Any, core: Any, runs: Any, now: int, horizon_ns: Any, past: int) -> Any:
        if core.last_plan.loading and not past:
            begun.append(now)
        return original(cls, core, runs, now, horizon_ns, past)

    monkeypatch.setattr(LockstepLeap, "prepare", classmethod(prepare))
    for start_ns, worked_out in ((100, []), (3_200, [13_232])):
        begun.clear()
        world = apart(trace=toy_trace([0, 8_000], [32, 32], [20, 3]), start_ns=start_ns)
        found = [(p.received_ns, p.request.first_token_ns, p.request.last_token_ns) for p in passages(world)]
        assert begun == worked_out, "as if at the plan that began the load"
        assert found == [
            (p.received_ns, p.request.first_token_ns, p.request.last_token_ns) for p in passages(world, "reference")
        ]


@pytest.mark.parametrize("patience", [500, 3_000, 5_300, 7_000])
def test_a_request_given_up_at_any_stage_leaves_no_memory_behind(patience: int) -> None:
    world = apart(clients=Clients(timeout_ns=patience))
    cluster = world.run("fast", check=True)
    (p,) = handoff_of(cluster).done
    assert p.request.state is State.ABORTED
    assert p.request.finished_ns == patience
    assert all(r.core.kv.usage().used == r.core.kv.usage().internal == 0 for r in cluster.replicas)
    if patience == 5_300:
        assert p.released_ns == 5732, "it was being read"


class Pairs(Router):
    """Always the same pair."""

    pair = Pair(0, 1)

    def route(self, request: Any, views: Any) -> Pair:
        return self.pair


def test_a_router_may_choose_both_replicas_at_once() -> None:
    cluster = apart(sizes=(1, 2), replicas=3).cluster("fast", check=True)
    router = Pairs(None, 3)
    router.pair = Pair(0, 2)
    cluster.router = router
    cluster.run()
    (p,) = handoff_of(cluster).done
    assert (p.prefill, p.decode) == (0, 2)


def test_a_pair_whose_replicas_have_other_roles_is_the_routers_fault() -> None:
    cluster = apart().cluster("fast")
    router = Pairs(None, 2)
    router.pair = Pair(1, 0)
    cluster.router = router
    with pytest.raises(PolicyError, match="replica 1, whose role is decode"):
        cluster.run()
