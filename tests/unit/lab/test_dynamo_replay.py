"""Replays as Dynamo's simulator makes them: small ones by hand; recorded ones are in tests/conformance."""

from __future__ import annotations

import numpy as np
import pytest

from servesim.checking.world import toy_trace
from servesim.errors import UserError
from servesim_lab.dynamo.replay import MockEngine, replay
from servesim_lab.dynamo.scaling import Change, ScaledRoundRobin, Workers, most_workers

MS = 1_000_000
TIMES = {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 2.0}


def ms(ns: np.ndarray) -> list[float]:
    return (ns / MS).tolist()


@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_two_requests_by_hand(mode: str) -> None:
    """The second arrives during the first's prompt, joins the next step, and shares 16 tokens."""
    trace = toy_trace([5 * MS, 8 * MS], [40, 40], [3, 2], runs=[[(1, 40)], [(1, 16), (2, 24)]])
    engine = MockEngine.of({"block_size": 16, "num_gpu_blocks": 100, "timing_model": TIMES})
    done = replay(trace, engine, mode=mode)
    assert ms(done.first_admit_ns) == [0, 10]
    assert ms(done.first_token_ns) == [10, 22]
    assert ms(done.last_token_ns) == [24, 24]
    assert done.first_reused_tokens.tolist() == [0, 16]


def test_under_sglang_a_step_is_a_prefill_or_a_decode() -> None:
    trace = toy_trace([0, 3 * MS], [40, 40], [3, 2])
    engine = MockEngine.of({"block_size": 16, "num_gpu_blocks": 100, "timing_model": TIMES, "backend": "sglang"})
    done = replay(trace, engine)
    assert ms(done.first_token_ns) == [10, 20]
    assert ms(done.last_token_ns) == [24, 22]


def test_workers_take_turns() -> None:
    trace = toy_trace([0, 0, 0, 0, 0], [8] * 5, [1] * 5)
    assert replay(trace, MockEngine(), 3).worker.tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"num_gpu_block": 3}, "num_gpu_block is not modeled.*num_gpu_blocks"),
        ({"native_host_offload": {}}, "native_host_offload: num_host_blocks is missing"),
        ({"block_size": 0}, "block_size is 0"),
        ({"max_num_seqs": None}, "max_num_seqs is None"),
        ({"backend": "trtllm"}, "backend is 'trtllm'"),
        ({"worker_type": "encode"}, "worker_type is 'encode'"),
        ({"timing_model": {"type": "external"}}, "timing_model"),
    ],
)
def test_what_is_not_modeled_is_refused(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        MockEngine.of(arguments)


def test_starting_workers_are_given_up_before_active_ones_are_drained() -> None:
    workers = Workers(2, startup_ns=10)
    workers.scale(100, 4)
    workers.scale(105, 1)
    assert workers.active == [0]
    workers.scale(106, 2)
    workers.advance(115)
    assert workers.active == [0]
    workers.advance(116)
    assert workers.active == [0, 4]
    assert workers.changes == [
        Change(100, 2, "starting"),
        Change(100, 3, "starting"),
        Change(105, 3, "removed"),
        Change(105, 2, "removed"),
        Change(105, 1, "draining"),
        Change(106, 4, "starting"),
        Change(116, 4, "active"),
    ]


def test_a_turn_is_a_position_and_outlives_the_workers_there_were() -> None:
    """Requests at 10, 20, ...; 3 workers from 30 on, 2 behind 50: the turn after positions 1, 2, 0 is position 1."""
    targets = [(0, 3), (50, 2)]
    router = ScaledRoundRobin(targets, num_workers=1, startup_ns=30)
    assert router.num_replicas == most_workers(targets, 1, 30) == 3
    trace = toy_trace([10 * (i + 1) for i in range(8)], [8] * 8, [1] * 8)
    chosen = []
    for row in range(8):
        router.clock = lambda now=int(trace.arrival_ns[row]): now
        chosen.append(router.route(None, []))
    assert chosen == [0, 0, 1, 2, 0, 1, 0, 1]
