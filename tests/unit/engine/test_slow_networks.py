"""Networks that are slow for a time, by hand: a step takes 1,000 ns, a token of KV is a byte and takes a ns between
prefill and decode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import servesim
from servesim.errors import UserError
from servesim.features.failures.happenings import Add, Drain, Failures
from servesim.features.failures.networks import SlowNet
from servesim.features.failures.part import Failing
from servesim.features.handoff.vllm import VllmNixlParams
from servesim.features.offload.params import LMCacheParams
from servesim.features.offload.part import Offloading
from tests.support.apart import Apart, handoff_of
from tests.support.offloaded import setup_of
from tests.support.worlds import ToyCost, World, toy_trace

pytestmark = pytest.mark.feature("failures")
MODES = pytest.mark.parametrize("mode", ["fast", "reference"])
STEPS = ToyCost(fixed=1000, token=0, context=0)
EVER = 10**9


def received(mode: str, *slow: SlowNet, arrival: int = 0, sizes: tuple[int, int] = (1, 1), **more: Any) -> int:
    """When the KV of a prompt of 400 tokens has been received; it is computed 1,000 ns after the arrival, and its
    transfer begins 700 ns later."""
    world = Apart(
        toy_trace([arrival], [400], [2]),
        cost=STEPS,
        num_blocks=100,
        decode_blocks=100,
        start_ns=700,
        replicas=sum(sizes),
        sizes=sizes,
        protocol=VllmNixlParams(http_ms=0.0),
        node_size=1,
        failures=Failures(networks=slow, **more),
    )
    (passage,) = handoff_of(world.run(mode, check=True)).done
    return passage.received_ns


@MODES
def test_a_slow_network_doubles_the_time_on_the_wire_and_the_rest_of_that_for_kv_in_flight(mode: str) -> None:
    assert received(mode) == 1_700 + 400
    assert received(mode, SlowNet(0, EVER, 2.0)) == 1_700 + 800
    assert received(mode, SlowNet(1_900, EVER, 2.0)) == 1_700 + 200 + 400
    assert received(mode, SlowNet(1_800, 2_000, 2.0)) == 1_700 + 100 + 200 + 200
    assert received(mode, SlowNet(0, 1_700, 2.0)) == received(mode, SlowNet(2_100, EVER, 2.0)) == 2_100


@MODES
def test_the_network_of_a_replica_a_node_or_a_pool_is_slow_alone(mode: str) -> None:
    for one in (SlowNet(0, EVER, 2.0, replica=1), SlowNet(0, EVER, 2.0, node=1), SlowNet(0, EVER, 2.0, pool=1)):
        assert received(mode, one) == 2_500
        assert received(mode, one._replace(until_ns=1_900)) == 1_700 + 200 + 300
    assert received(mode, SlowNet(0, EVER, 2.0, replica=2), sizes=(1, 2)) == 2_100


@MODES
def test_of_several_at_once_the_slowest_counts(mode: str) -> None:
    both = SlowNet(0, 1_900, 4.0, replica=0), SlowNet(0, EVER, 2.0)
    assert received(mode, *both) == received(mode, *reversed(both)) == 1_900 + 350 * 2


@MODES
def test_a_replica_that_starts_in_a_slow_pool_or_on_a_slow_node_is_slow(mode: str) -> None:
    # decode replica 1 drains, and replica 2 takes its place
    after: dict[str, Any] = {"drains": (Drain(1, 5_000),), "adds": (Add(6_000, 1_000, 1),)}
    for slow in (SlowNet(0, EVER, 2.0), SlowNet(0, EVER, 2.0, pool=1), SlowNet(0, EVER, 2.0, node=1)):
        assert received(mode, slow, arrival=10_000, **after) == 12_500
    assert received(mode, SlowNet(0, EVER, 2.0, replica=1), arrival=10_000, **after) == 12_100


def stored(mode: str, params: Any, *slow: SlowNet) -> int:
    """The time of the first token of a request whose 64 tokens are in a remote store; a chunk of 16 takes 1,000 ns."""
    trace = toy_trace(
        [0, 20_000, 60_000], [72, 75, 72], [1, 1, 1], runs=[[(1, 64), (10, 8)], [(2, 75)], [(1, 64), (11, 8)]]
    )
    memory = setup_of(params, 16, 1, 6)
    world = replace(
        World(trace, cost=STEPS, kv="prefix-hash", num_blocks=6),
        features=(
            lambda world, pools: Failing(Failures(networks=slow)),
            lambda world, pools: Offloading([(pool, memory) for pool in pools]),
        ),
    )
    table = world.run(mode, check=True).recorder.requests
    return int(table.column("first_token_ns")[table.column("row") == 2].item())


REMOTE = LMCacheParams(cpu="4", remote="400", remote_gb_s=0.001, remote_start_us=0, chunk_size=16)


@MODES
def test_a_remote_store_is_slow_from_the_next_copy_on(mode: str) -> None:
    # one block of a byte from the store takes 1,000 ns; the step begins at 60,000, and four chunks come to the GPU in 4
    usual = stored(mode, REMOTE)
    assert usual == 60_000 + 4_000 + 4 + 1_000
    assert stored(mode, REMOTE, SlowNet(50_000, EVER, 4.0)) == usual + 3 * 4_000
    assert stored(mode, REMOTE, SlowNet(50_000, EVER, 4.0, replica=0)) == usual + 3 * 4_000
    assert stored(mode, REMOTE, SlowNet(60_001, EVER, 4.0)) == usual, "its end is known when it begins"
    assert stored(mode, REMOTE, SlowNet(50_000, 59_000, 4.0)) == usual


PLAIN: dict[str, Any] = {"trace": "synth:rate=20,prompt=900,output=20", "requests": 30, "model": "llama-3.2-1b"}
APART = {**PLAIN, "gpu": "h100", "pd": "1x1:1x1"}


@pytest.mark.parametrize("more", [{}, {"offload": "lmcache:cpu=1GiB"}], ids=["alone", "host memory"])
def test_where_nothing_goes_over_a_network_it_is_not_slow(more: dict[str, Any]) -> None:
    slow = {"cluster": {"failures": ["slow_net:factor=4,at=0,until=9"]}}
    with pytest.raises(UserError, match="slow_net has no effect: only KV between prefill and decode replicas"):
        servesim.simulate({**PLAIN, "gpu": "h100", **more, **slow})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slow_net:factor=0.5,at=0,until=9", "slow_net: factor is 0.5 but must be at least 1"),
        ("slow_net:factor=2,at=9,until=9", "'until' must be later than 'at'"),
        ("slow_net:factor=2,at=0", "until is missing"),
        ("slow_net:factor=2,at=0,until=1,pool=b", "slow_net: unknown pool 'b'"),
        ("slow_net:factor=2,at=0,until=1,pool=decode,node=0", "node and pool are both specified"),
        ("slow_net:factor=2,at=0,until=1,replica=2", "the replica must be from 0 to 1"),
    ],
)
def test_a_network_that_cannot_be_slow_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        servesim.simulate({**APART, "cluster": {"failures": [text]}})


def test_a_scenario_has_more_time_on_the_wire_while_its_network_is_slow() -> None:
    def wire_ms(*failures: str) -> float:
        apart = {**APART, "trace": "synth:arrivals=constant,rate=5,prompt=900,output=20"}
        run = servesim.simulate({**apart, "cluster": {"failures": [*failures]}}, intervals=False)
        return float(run.summary["disaggregation"]["stages_ms"]["wire"]["mean"])

    usual, slow = wire_ms(), wire_ms("slow_net:factor=100,at=0,until=99,pool=decode")
    start_ms = 0.415
    assert slow - start_ms == pytest.approx(100 * (usual - start_ms), rel=0.15)
