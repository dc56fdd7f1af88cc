"""Every router with a life of its own sends the same requests to the same replicas in fast and in reference mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from servesim.policies.routing._behind import InFront
from tests.property.test_fast_equals_reference import compared
from tests.support.examples import examples
from tests.support.strategies import social_worlds, worlds
from tests.support.worlds import World

ROUTERS = (
    "circuit-breaker:router=smg-cache-aware",
    "concurrency-limit:max_concurrent_requests=3,router=(circuit-breaker:router=dynamo-kv:router_temperature=0.5)",
    "consistent-hash",
    "dynamo-kv",
    "dynamo-kv:router_track_output_blocks=true,router_temperature=0.5",
    "dynamo-kv-approximate",
    "dynamo-kv-approximate:active_prefill_tokens_threshold=60,active_decode_blocks_threshold=0.3",
    "dynamo-kv-approximate:router_queue_threshold=0.5,max_num_batched_tokens=64,router_queue_policy=wspt",
    "llm-d",
    "llm-d:running_weight=1,load_aware_weight=1,token_load_weight=1,active_request_weight=1,no_hit_lru_weight=1",
    "llm-d-flow-control:queue_depth=1,router=llm-d-precise:prefix_weight=3",
    "llm-d-precise",
    "llm-d-precise:min_max=true,speculative_ttl_s=0",
    "llm-d-text:hash_block_size=8,max_prefix_blocks_to_match=4,lru_capacity_per_server=9",
    "manual:assignment_mode=min_group,key=tenant",
    "power-of-two",
    "smg-prefix-hash:prefix_token_count=8",
    "predicted-latency:min_samples=2,retrain_s=0.00001",
    "predicted-latency:predictor=oracle,ttft_slo_ms=0.01,tpot_slo_ms=0.003,queue_weight=1",
    "production-stack-prefix-aware",
    "random",
    "sglang-cache-aware:balance_abs_threshold=1",
    "sglang-cache-aware:max_tree_size=400,eviction_interval_s=0.001",
    "smg-cache-aware:version=1.13.0,balance_abs_threshold=4",
    "smg-least-load",
    "sticky-least-loaded:counts_in_flight=true,key=tenant",
    "token-bucket:per_s=100,burst=2,router=power-of-two",
    "vllm-dp",
    "vllm-router-cache-aware:balance_abs_threshold=1",
    "weighted-least-requests:rule=envoy",
    "weighted-least-requests:prompt_len=40,output_len=9",
    "weighted-round-robin",
)


@st.composite
def routed(draw: st.DrawFn, source: st.SearchStrategy[World]) -> World:
    world = draw(source)
    return replace(world, replicas=draw(st.integers(2, 3)), router=draw(st.sampled_from(ROUTERS)))


@examples(30)
@given(routed(worlds(kv="prefix-hash", samples=True)))
def test_fast_mode_sends_every_request_where_reference_mode_does(world: World) -> None:
    assert_same(world)


@examples(20)
@given(routed(social_worlds(kv="prefix-hash", samples=True)))
def test_the_same_where_clients_wait_for_answers_and_give_up(world: World) -> None:
    assert_same(world)


def assert_same(world: World) -> None:
    fast, plain = compared(world)
    event(f"router {world.router.partition(':')[0]}")
    event(f"leapt: {len(fast.recorder.steps.array()) < len(plain.recorder.steps.array())}")
    routers: list[Any] = [fast.router, plain.router]
    for router in routers:
        routers += [router.inner] if isinstance(router, InFront) else []
        left = getattr(router, "load", [])
        assert not any(left), f"requests are still booked: {left}"
        assert not any(getattr(router, "prefill_tokens", []))
        assert not any(getattr(router, "output_blocks", []))
        assert not any(getattr(router, "backlog", []))
        assert not any(getattr(router, "num_prompts", []))
