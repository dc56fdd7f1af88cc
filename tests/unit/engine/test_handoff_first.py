"""Protocols whose first token comes with the KV, by hand: every step takes 1,000 ns, a token of KV a byte and a ns."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts import State
from servesim.features.handoff.first import NO_HANDSHAKE, SglangParams, TrtllmParams
from servesim.workload.workload import Clients
from tests.support.apart import Apart, handoff_of
from tests.unit.engine.test_handoff import apart, passages, toy_trace

SGLANG, TRTLLM = SglangParams(handshake_ms=0.004), TrtllmParams(http_ms=0.004)
TWO = toy_trace([0, 0], [32, 32], [3, 3])


def empty(world: Apart) -> bool:
    """Whether no replica keeps memory at the end."""
    cluster = world.run("fast", check=True)
    return all(r.core.kv.usage().used == r.core.kv.usage().internal == 0 for r in cluster.replicas)


def test_trtllms_first_token_goes_out_when_the_kv_has_come_and_the_next_is_of_a_step() -> None:
    (p,) = passages(apart(protocol=TRTLLM))
    assert (p.leg.finished_ns, p.sent_ns, p.reserved_ns) == (1000, 5000, 5000)
    assert (p.received_ns, p.released_ns, p.request.first_token_ns) == (5732, 5732, 5732)
    assert p.request.last_token_ns == 7732, "two more tokens"


def test_sglangs_decode_side_takes_memory_first_and_the_prompt_waits_for_the_handshake() -> None:
    (p,) = passages(apart(protocol=SGLANG))
    assert (p.sent_ns, p.reserved_ns) == (0, 0)
    assert (p.leg.scheduled_ns, p.leg.finished_ns) == (4000, 5000)
    assert (p.received_ns, p.request.first_token_ns, p.request.last_token_ns) == (5732, 5732, 7732)


def test_what_comes_while_a_step_runs_is_seen_at_its_end() -> None:
    first, second = passages(apart(trace=toy_trace([0, 500], [32, 32], [10, 3]), protocol=TRTLLM))
    assert first.request.first_token_ns == 5732
    assert (second.sent_ns, second.reserved_ns, second.received_ns) == (6000, 6732, 7464)
    assert (second.request.first_token_ns, second.request.last_token_ns) == (7732, 9732)


@pytest.mark.parametrize("protocol", [SGLANG, TRTLLM])
def test_an_answer_of_one_token_takes_no_step_of_the_decode_side(protocol: Any) -> None:
    world = apart(trace=toy_trace([0], [32], [1]), protocol=protocol)
    (p,) = passages(world)
    assert p.request.state is State.FINISHED
    assert p.request.first_token_ns == p.request.last_token_ns == p.request.finished_ns == 5732
    assert empty(world)


def test_sglangs_prompts_are_not_computed_while_the_decode_side_has_no_memory_for_them() -> None:
    # 3 usable blocks of 16, 2 for each prompt: the second has memory when the first has ended, at 7,732
    first, second = passages(apart(trace=TWO, decode_blocks=4, protocol=SGLANG))
    assert first.request.last_token_ns == 7732
    assert (second.reserved_ns, second.leg.scheduled_ns) == (7732, 11_732)


def test_a_prompt_without_a_handshake_in_time_fails_and_leaves_nothing_behind() -> None:
    world = apart(trace=TWO, decode_blocks=4, protocol=SglangParams(handshake_ms=0.004, bootstrap_timeout_s=6e-6))
    first, second = passages(world)
    assert first.request.state is State.FINISHED
    assert (second.request.state, second.request.reason) == (State.ABORTED, NO_HANDSHAKE)
    assert second.request.finished_ns == 6000
    assert empty(world)


@pytest.mark.parametrize("protocol", [SGLANG, TRTLLM])
@pytest.mark.parametrize("patience", [500, 3_000, 4_500, 5_300, 5_900, 7_000])
def test_a_request_given_up_at_any_stage_leaves_no_memory_behind(protocol: Any, patience: int) -> None:
    world = apart(protocol=protocol, clients=Clients(timeout_ns=patience))
    cluster = world.run("fast", check=True)
    (p,) = handoff_of(cluster).done
    assert (p.request.state, p.request.finished_ns) == (State.ABORTED, patience)
    assert empty(world)
