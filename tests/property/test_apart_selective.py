"""Prompts that decode replicas compute themselves: both modes agree, also with crashes, autoscalers and memory beyond
the GPU, no request is lost or served twice, and routers count what is there."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from servesim.contracts import State
from servesim.engine.cluster import Cluster
from servesim.features.handoff.first import SglangParams, TrtllmParams
from servesim.features.handoff.vllm import VllmNixlParams
from tests.property.test_apart import assert_both_agree
from tests.property.test_apart_failures import assert_conserved, failing_worlds
from tests.property.test_apart_together import together_worlds
from tests.support.apart import Apart, apart_worlds, handoff_of
from tests.support.examples import examples

DECIDERS = (
    "always",
    "llm-d:non_cached_tokens=1",
    "llm-d:non_cached_tokens=40",
    "dynamo:eff_isl_threshold=60,eff_isl_ratio_threshold=1",
    "dynamo-0:max_local_prefill_length=30,max_prefill_queue_size=1",
    "trtllm:max_local_prefill_length=40",
)
ROUTERS = ("round-robin", "least-requests", "least-outstanding", "dynamo-kv", "llm-d-precise", "llm-d")


@st.composite
def selective(draw: st.DrawFn, worlds: st.SearchStrategy[Apart]) -> Apart:
    """A world with a decider, behind each kind of router."""
    world = draw(worlds)
    protocol = world.protocol
    if isinstance(protocol, SglangParams):
        protocol = draw(st.sampled_from([VllmNixlParams(http_ms=0.004), TrtllmParams(http_ms=0.004)]))
    router = draw(st.sampled_from(ROUTERS))
    return replace(world, protocol=protocol, router=router, decider=draw(st.sampled_from(DECIDERS)))


def told(cluster: Cluster) -> None:
    handoff = handoff_of(cluster)
    assert handoff.straight is not None
    event(f"straight: {bool(handoff.straight.rows)}, apart: {bool(handoff.done)}")
    assert not {p.request.row for p in handoff.done} & {*handoff.straight.rows}, "each request goes one way"


def assert_routers_count_nothing(cluster: Cluster) -> None:
    """Assert that both routers know in the end that no request is in flight."""
    handoff = handoff_of(cluster)
    assert handoff.straight is not None
    assert not handoff.straight._there
    assert not handoff.straight._promised
    for router in (cluster.router, handoff.decode_router):
        assert not any(getattr(router, "load", ())), router


@examples(30)
@given(selective(apart_worlds()))
def test_both_modes_agree(world: Apart) -> None:
    assert_both_agree(world)


@examples(30)
@given(selective(failing_worlds()))
def test_both_modes_agree_where_replicas_fail(world: Apart) -> None:
    assert_both_agree(world)


@examples(30)
@given(selective(together_worlds()))
def test_both_modes_agree_with_autoscalers_failures_and_memory_beyond_the_gpu(world: Apart) -> None:
    assert_both_agree(world)


@examples(30)
@given(selective(failing_worlds()))
def test_no_request_is_lost_and_routers_count_what_is_there(world: Apart) -> None:
    cluster = world.cluster("reference", check=True)
    assert_conserved(cluster)
    assert_routers_count_nothing(cluster)
    told(cluster)


@examples(30)
@given(selective(together_worlds()))
def test_no_request_is_lost_with_autoscalers_failures_and_memory_beyond_the_gpu(world: Apart) -> None:
    cluster = world.cluster("reference", check=True)
    assert_conserved(cluster)
    assert_routers_count_nothing(cluster)
    told(cluster)


@examples(20)
@given(selective(apart_worlds()))
def test_a_request_that_goes_straight_sends_no_kv_and_has_all_of_its_prompt_computed_at_its_replica(
    world: Apart,
) -> None:
    cluster = replace(world, decider="llm-d:non_cached_tokens=0", num_blocks=4_000, decode_blocks=4_000).cluster()
    cluster.run()
    handoff = handoff_of(cluster)
    assert handoff.straight is not None
    assert not handoff.done
    table = cluster.recorder.requests
    states, replicas = table.column("state"), table.column("replica")
    assert {cluster.replicas[index].role for index in replicas.tolist() if index >= 0} <= {"decode"}
    assert all(cluster.replicas[i].core.num_unfinished == 0 for i in range(world.replicas))
    event(f"finished: {bool((states == State.FINISHED).any())}")
