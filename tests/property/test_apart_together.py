"""Prompts and answers apart, with autoscalers, crashes and memory beyond the GPU at once: both modes agree, no request
is lost or served twice, and no block is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from servesim.engine.cluster import Cluster
from servesim.features.failures.part import Crash, Drain, Failures
from servesim.features.handoff.vllm import VllmNixlParams
from servesim.features.offload.params import HiCacheParams, LMCacheParams, StoreParams, VllmOffloadParams
from servesim.features.offload.part import Offloading
from tests.property.test_apart import assert_both_agree
from tests.property.test_apart_failures import TIMES, assert_conserved
from tests.support.apart import apart_worlds, handoff_of
from tests.support.examples import examples
from tests.support.offloaded import memories, setup_of
from tests.support.scaled import ScaledApart


@dataclass
class Together(ScaledApart):
    """Prompts and answers on replicas that come, go, crash, and have memory beyond the GPU where `hosts` says so."""

    hosts: dict[str, Any] | None = None
    ns_per_block: int = 1

    def cluster(self, mode: str = "fast", check: bool = False) -> Cluster:
        cluster, size = super().cluster(mode, check), self.block_size
        own = [(pool, params) for pool in cluster.fleet.pools if (params := (self.hosts or {}).get(pool.role))]
        memory = [(pool, setup_of(params, size, self.ns_per_block, self.num_blocks)) for pool, params in own]
        cluster.add(Offloading(memory))
        return cluster


@st.composite
def together_worlds(draw: st.DrawFn) -> Together:
    """Worlds with room for all requests, of which any replica may fail; each comes back."""
    world = draw(apart_worlds(("vllm", "vllm", "sglang"), alike=True))
    replicas, downs = st.integers(0, world.replicas - 1), st.sampled_from([0, 5_000, 90_000])
    answers = [[*draw(st.lists(st.integers(0, 3), max_size=12)), 1] for _ in range(2)]  # in the end one can start
    failures = Failures(
        tuple(draw(st.lists(st.builds(Crash, replicas, TIMES, downs), max_size=4))),
        drains=tuple(draw(st.lists(st.builds(Drain, replicas, TIMES), max_size=1))),
        detect_ns=draw(st.sampled_from([0, 3_000])),
        reroutes=draw(st.sampled_from([0, 1, 5])),
        migrations=draw(st.sampled_from([0, 1, 3])),
        backoff_ns=draw(st.sampled_from([0, 2_000])),
    )
    return Together(
        **{name: getattr(world, name) for name in world.__dict__}
        | {"num_blocks": 4_000, "decode_blocks": 4_000, "max_num_seqs": 64, "failures": failures},
        answers=(answers[0], answers[1]),
        ready_ns=draw(st.sampled_from([0, 900, 30_000])),
        hosts=draw(hosts(world)),
        ns_per_block=draw(st.sampled_from([1, 300, 5_000])),
    )


@st.composite
def hosts(draw: st.DrawFn, world: Any) -> dict[str, Any]:
    """vLLM's connectors on either side, SGLang's on the prefill side."""
    size = str(draw(st.sampled_from([3, 8, 40, 400])))  # a block takes a byte
    if world.scheduler.startswith("sglang"):
        return {"prefill": HiCacheParams(cpu=str(64 * int(size)))}
    shared = draw(st.sampled_from([{}, {"remote": "400", "remote_gb_s": 0.001, "remote_start_us": 0}]))
    kinds: list[Any] = [
        VllmOffloadParams(cpu=size, eviction_policy=draw(st.sampled_from(["lru", "arc"]))),
        LMCacheParams(cpu=size, chunk_size=world.block_size, **shared),
        StoreParams(size, 0.01, server_gb_s=draw(st.sampled_from([None, 0.001]))),
    ]
    params = draw(st.sampled_from(kinds))
    roles = draw(st.sampled_from([("prefill",), ("decode",), ("prefill", "decode")]))
    first = isinstance(world.protocol, VllmNixlParams) and draw(st.booleans())
    return {role: replace(params, first=first) for role in roles}


@examples(40)
@given(together_worlds())
def test_both_modes_agree(world: Together) -> None:
    assert_both_agree(world)


@examples(40)
@given(together_worlds())
def test_at_each_instant_arrived_is_left_and_in_flight_and_no_block_is_kept_in_the_end(world: Together) -> None:
    cluster = world.cluster("reference", check=True)
    assert_conserved(cluster)
    for memory in memories(cluster):
        memory.check_integrity()
    told(cluster)


def told(cluster: Cluster) -> None:
    done = [passage.request for passage in handoff_of(cluster).done]
    event(f"migrated: {any(request.num_migrations for request in done)}")
    event(f"loaded: {any(memory.counts.load_ns for memory in memories(cluster))}")
    event(f"came: {any(state == 'starting' for _, _, state in cluster.fleet.history)}")
    event(f"crashed: {any(state == 'crashed' for _, _, state in cluster.fleet.history)}")
