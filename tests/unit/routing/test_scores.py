"""Routers that no recording covers, by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from servesim.contracts import WAIT, Report, Router
from servesim.contracts.router import Reject
from servesim.policies.routing._dynamo import DynamoRouter
from servesim.policies.routing._llm_d import LlmDRouter
from tests.support.routing import Prompts, View, router_of, views_of

S = 10**9


def at(router: Router, ns: int) -> None:
    router.clock = lambda: ns


def test_vllm_dp_weighs_a_waiting_request_four_times_and_counts_what_it_chose_since_the_report() -> None:
    router, prompt = router_of("vllm-dp", 2), Prompts()
    views = views_of([View(0, num_waiting=1), View(1, num_running=5)])
    at(router, 50_000_000)
    picks = []
    for _ in range(3):
        request = prompt((1, 5))
        picks.append(router.route(request, views))
        router.on_sent(request, picks[-1])  # type: ignore[arg-type]
    assert picks == [0, 1, 0]  # 4 < 5; 8 > 5; 8 < 9
    later = views_of([View(0, num_waiting=1, at_ns=S), View(1, num_running=5, at_ns=S)])
    at(router, S + 1)
    assert router.route(prompt((1, 5)), later) == 0


def test_vllm_dp_takes_replicas_in_turn_and_of_each_its_least_loaded_rank() -> None:
    router, prompt = router_of("vllm-dp", 4, ranks=2), Prompts()
    views = views_of([View(0, num_running=9), View(1, num_running=5), View(2), View(3, num_running=2)])
    assert [router.route(prompt((1, 5)), views) for _ in range(3)] == [1, 2, 1]


def test_llm_d_adds_weighted_scores() -> None:
    router, prompt = router_of("llm-d", 3), Prompts()
    assert isinstance(router, LlmDRouter)
    router.on_sent(prompt((1, 128), (2, 64)), 2)  # three blocks of 64
    views = views_of([View(0, num_waiting=4), View(1, num_waiting=2, kv_usage=0.5), View(2, num_waiting=0)])
    request = prompt((1, 128), (3, 128))  # two of its four blocks are known
    scores = router.scores(request, views, router.prefix_shares(request))
    assert scores == {0: 0 + 2, 1: 2 * 0.5 + 2 * 0.5, 2: 3 * 0.5 + 2 + 2}
    assert router.route(request, views) == 2


def test_llm_d_remembers_a_number_of_blocks_by_replica() -> None:
    router, prompt = router_of("llm-d", 1, lru_blocks=2), Prompts()
    assert isinstance(router, LlmDRouter)
    first = prompt((1, 128))
    router.on_sent(first, 0)
    assert router.prefix_shares(first).tolist() == [1.0]
    router.on_sent(prompt((2, 64)), 0)  # the first block of the two gives way
    assert router.prefix_shares(prompt((1, 128))).tolist() == [0.0]


def test_llm_d_of_2025_compares_prompts_by_their_first_bytes_alone() -> None:
    """Four bytes a token: a block of 64 bytes is 16 tokens; with the model's name, two blocks are three hashes."""
    router, prompt = router_of("llm-d-text", 2, max_prefix_blocks_to_match=2), Prompts()
    assert isinstance(router, LlmDRouter)
    router.on_sent(prompt((1, 32), (2, 500)), 1)
    assert router.prefix_shares(prompt((1, 32), (3, 500))).tolist() == [0.0, 1.0]  # differs after the 128th byte
    assert router.prefix_shares(prompt((1, 31), (3, 500))).tolist() == [0.0, 2 / 3]
    assert router.prefix_shares(prompt((4, 500))).tolist() == [0.0, 1 / 3]  # the model's name
    assert router.prefix_shares(prompt((1, 15))).tolist() == [0.0, 0.0]  # shorter than a block


def test_llm_d_of_2025_ends_a_block_with_the_token_of_its_last_byte() -> None:
    """Six bytes a token: the first block of 64 bytes ends in the 11th token, the second in the 22nd."""
    router, prompt = router_of("llm-d-text", 1, bytes_per_token=6), Prompts()
    assert isinstance(router, LlmDRouter)
    router.on_sent(prompt((1, 22)), 0)  # 132 bytes: two blocks
    assert router.prefix_shares(prompt((1, 11), (2, 11))).tolist() == [2 / 3]
    assert router.prefix_shares(prompt((1, 10), (2, 12))).tolist() == [1 / 3]


def test_llm_d_of_2025_counts_blocks_behind_a_lost_one_that_another_replica_has() -> None:
    """Four blocks are remembered. Replica 0 loses the name and the first block of prompt 1 to prompt 2."""
    router, prompt = router_of("llm-d-text", 2, lru_capacity_per_server=4), Prompts()
    assert isinstance(router, LlmDRouter)
    first = prompt((1, 48))
    router.on_sent(first, 0)  # name, 1a, 1b, 1c
    router.on_sent(prompt((2, 16)), 0)  # name again, 2a instead of 1a
    assert router.prefix_shares(first).tolist() == [1 / 4, 0.0]  # 1a is nowhere, so 1b is not looked up
    router.on_sent(prompt((1, 16)), 1)  # name, 1a
    assert router.prefix_shares(first).tolist() == [3 / 4, 2 / 4]


def test_llm_d_of_2025_goes_by_one_part_each_of_prefix_queue_and_memory() -> None:
    router, prompt = router_of("llm-d-text", 2), Prompts()
    assert isinstance(router, LlmDRouter)
    request = prompt((1, 32))
    router.on_sent(request, 0)
    views = views_of([View(0, num_waiting=1, kv_usage=0.5), View(1, kv_usage=0.25)])
    scores = router.scores(request, views, router.prefix_shares(request))
    assert scores == {0: 1 + 0 + 0.5, 1: 0 + 1 + 0.75}  # one that waits is worth as much as the whole prefix


@pytest.mark.parametrize(
    ("sent", "shares"),
    [
        ((), [0.0, 0.0, 0.0]),
        (((0, 64),), [1.0, 0.0, 0.0]),
        (((0, 64), (1, 64)), [1.0, 1.0, 0.0]),
        (((0, 64), (1, 256)), [0.0, 1.0, 0.0]),
        (((0, 64), (1, 128), (2, 192)), [0.0, 0.5, 1.0]),
    ],
)
def test_llm_d_precise_of_2025_stretches_hits_between_the_fewest_and_the_most(
    sent: tuple[tuple[int, int], ...], shares: list[float]
) -> None:
    router, prompt = router_of("llm-d-precise", 3, min_max=True), Prompts()
    assert isinstance(router, LlmDRouter)
    for replica, tokens in sent:
        router.on_sent(prompt((1, tokens)), replica)
    assert router.prefix_shares(prompt((1, 256))).tolist() == shares


def test_llm_d_precise_takes_a_prompt_for_cached_for_two_seconds() -> None:
    router, prompt = router_of("llm-d-precise", 2), Prompts()
    assert isinstance(router, LlmDRouter)
    router.on_sent(prompt((1, 64)), 1)
    at(router, 2 * S - 1)
    assert router.prefix_shares(prompt((1, 64))).tolist() == [0.0, 1.0]
    at(router, 2 * S)
    assert router.prefix_shares(prompt((1, 64))).tolist() == [0.0, 0.0]


def test_prefix_hash_leaves_its_replica_only_for_one_that_is_not_full() -> None:
    router, prompt = router_of("smg-prefix-hash", 3), Prompts()
    home = router.route(prompt((1, 300)), views_of(3))
    assert isinstance(home, int)
    assert router.route(prompt((1, 256), (2, 44)), views_of(3)) == home  # 256 tokens count
    router.on_sent(prompt((1, 300)), home)
    router.on_sent(prompt((1, 300)), home)  # 2 > 1.25 x 3 / 3
    assert router.route(prompt((1, 300)), views_of(3)) == min({0, 1, 2} - {home})


def test_prefix_hash_sends_a_prompt_home_whoever_asked_before() -> None:
    homes = []
    for first in range(8):
        router, prompt = router_of("smg-prefix-hash", 8), Prompts()
        for family in range(100, 100 + first):
            router.route(prompt((family, 300)), views_of(8))
        homes.append([router.route(prompt((family, 300)), views_of(8)) for family in range(1, 9)])
    assert all(each == homes[0] for each in homes)
    assert len(set(homes[0])) > 2


def test_the_production_stack_chooses_among_those_sent_the_longest_prefix_whatever_their_load() -> None:
    router, prompt = router_of("production-stack-prefix-aware", 3), Prompts()
    for _ in range(5):
        router.on_sent(prompt((1, 64), (2, 64)), 1)
    router.on_sent(prompt((1, 64), (3, 20)), 2)
    choose = router.candidates  # type: ignore[attr-defined]
    assert choose(prompt((1, 64), (2, 64), (4, 9)), views_of(3)) == [1]
    assert choose(prompt((1, 64), (3, 20), (4, 9)), views_of(3)) == [1, 2]  # 84 tokens are two chunks of 32
    assert choose(prompt((9, 64)), views_of(3)) == [0, 1, 2]


def test_smg_least_load_goes_by_reports_and_what_it_sent_since() -> None:
    router, prompt = router_of("smg-least-load", 2), Prompts()
    router.on_report(0, Report(1, 3, 0.0, 0))  # 1,024 tokens / 2,000 a second
    router.on_report(1, Report(0, 3, 0.5, 0))  # 0.15 x 1
    assert router.route(prompt((1, 9)), views_of(2)) == 1
    router.on_sent(prompt((1, 1000)), 1)
    assert router.route(prompt((1, 9)), views_of(2)) == 0


def test_smg_counts_kv_use_as_imbalance_only_where_a_threshold_is_set() -> None:
    views, prompt = views_of([View(0, kv_usage=0.9), View(1)]), Prompts()
    for threshold, expected in ((1.0, 0), (0.5, 1)):
        router = router_of("smg-cache-aware", 2, overload_token_usage_threshold=threshold)
        router.on_sent(prompt((1, 50)), 0)
        assert router.route(prompt((1, 50)), views) == expected


@dataclass
class Memory:
    """Memory of a replica: 100 blocks of 16 tokens."""

    kv_tokens: int = 1600


def test_dynamo_passes_over_busy_replicas_and_refuses_while_all_are() -> None:
    prompt, idle = Prompts(), Memory()
    booked = {"active_prefill_tokens_threshold": 100}
    scaled = {"active_prefill_tokens_threshold_frac": 0.5, "max_num_batched_tokens": 201}  # more than 100
    for limits in (booked, scaled, {"active_decode_blocks_threshold": 0.06}):  # more than six blocks
        router = router_of("dynamo-kv-approximate", 2, **limits)
        views = views_of([View(0, profile=idle), View(1, profile=idle)])
        first, second = prompt((1, 112)), prompt((2, 112))
        router.on_sent(first, 0)
        assert {router.route(prompt((n, 10)), views) for n in range(9)} == {1}, limits
        router.on_sent(second, 1)
        assert router.route(prompt((3, 10)), views) == Reject(503), limits
        router.on_finish(first, 0, "finished")
        assert router.route(prompt((3, 10)), views) == 0, limits


def test_dynamo_s_busy_memory_is_also_what_engines_report() -> None:
    router, prompt = router_of("dynamo-kv-approximate", 2, active_decode_blocks_threshold=0.85), Prompts()
    views = views_of([View(0, kv_usage=0.86, profile=Memory()), View(1, kv_usage=0.85, profile=Memory())])
    assert {router.route(prompt((n, 10)), views) for n in range(9)} == {1}


def test_dynamo_s_queue_lets_out_what_has_the_fewest_tokens_to_compute_at_the_best_replica() -> None:
    prompt = Prompts()
    for policy, expected in (("wspt", [40, 20, 1]), ("fcfs", [0, 0, 0]), ("lcfs", [0, 0, 0])):
        router = router_of("dynamo-kv-approximate", 2, router_queue_policy=policy)
        router.on_sent(prompt((1, 64)), 1)
        waiting = [prompt((2, 40)), prompt((1, 64), (3, 20)), prompt((1, 64))]
        assert [router.queue_key(request) for request in waiting] == expected


def test_dynamo_waits_while_every_replica_has_too_much_prefill_booked() -> None:
    router = router_of("dynamo-kv-approximate", 2, router_queue_threshold=1, max_num_batched_tokens=100)
    prompt = Prompts()
    first, second = prompt((1, 101)), prompt((2, 101))
    router.on_sent(first, 0)
    assert router.route(prompt((3, 10)), views_of(2)) == 1
    router.on_sent(second, 1)
    assert router.route(prompt((3, 10)), views_of(2)) is WAIT
    router.on_prefill_done(first, 0)
    assert router.route(prompt((3, 10)), views_of(2)) == 0


def test_dynamo_draws_by_temperature_as_measured() -> None:
    router = router_of("dynamo-kv-approximate", 3, router_temperature=0.3)
    assert isinstance(router, DynamoRouter)
    draws = [router._drawn_by({0: 100.0, 1: 160.0, 2: 180.0}, 100.0) for _ in range(6000)]
    shares = [draws.count(i) / len(draws) for i in range(3)]
    assert shares == pytest.approx([0.895, 0.073, 0.032], abs=0.012)  # 3 standard errors of 6,000 draws


def test_dynamo_without_events_takes_what_it_sent_for_cached_for_120_s() -> None:
    router, prompt = router_of("dynamo-kv-approximate", 2), Prompts()
    assert isinstance(router, DynamoRouter)
    router.on_sent(prompt((1, 64)), 1)
    for at_ns, found in ((120 * S - 1, [0, 4]), (120 * S, [0, 0])):
        at(router, at_ns)
        assert router.counters(prompt((1, 64))).overlap_blocks.tolist() == found


def test_a_manual_key_that_was_idle_too_long_is_placed_as_if_new() -> None:
    router, prompt = router_of("manual", 2, assignment_mode="min_load", max_idle_s=10), Prompts()
    request = prompt((1, 5), session="a")
    router.on_sent(request, 1)
    router.on_sent(prompt((1, 5)), 0)
    router.on_finish(request, 1, "finished")
    choose = router.candidates  # type: ignore[attr-defined]
    router.on_sent(prompt((1, 5)), 1)
    router.on_sent(prompt((1, 5)), 1)
    at(router, 10 * S)
    assert choose(prompt((1, 5), session="a"), views_of(2)) == [1]
    at(router, 10 * S + 1)
    assert choose(prompt((1, 5), session="a"), views_of(2)) == [0]


def test_consistent_hashing_moves_only_the_keys_of_a_replica_that_goes() -> None:
    router, prompt = router_of("consistent-hash", 4), Prompts()
    keys = [f"user-{i}" for i in range(200)]
    before = {key: router.route(prompt((1, 5), session=key), views_of(4)) for key in keys}
    gone = views_of([View(0), View(1), View(2, state="failed"), View(3)])
    after = {key: router.route(prompt((1, 5), session=key), gone) for key in keys}
    assert {key for key in keys if before[key] != after[key]} == {key for key in keys if before[key] == 2}
    assert set(before.values()) == {0, 1, 2, 3}


def test_without_a_match_the_production_stack_takes_the_replica_sent_the_fewest_in_the_last_60_s() -> None:
    router, prompt, now = router_of("production-stack-prefix-aware", 2, min_match_length=400), Prompts(), 0
    router.clock = lambda: now
    router.on_sent(prompt((1, 9)), 0)
    choose = router.candidates  # type: ignore[attr-defined]
    now = 60 * 10**9
    assert choose(prompt((2, 9)), views_of(2)) == [1]
    now += 1
    assert choose(prompt((3, 9)), views_of(2)) == [0]


@pytest.mark.parametrize("name", ["dynamo-kv", "least-requests"])
def test_replicas_have_nothing_booked_before_anything_is_sent_and_nor_has_one_that_comes_later(name: str) -> None:
    router: Any = router_of(name, 2)
    router.on_replica(3, "ready")
    assert router.load == router.processed == [0, 0, 0, 0]
    assert list(getattr(router, "prefill_tokens", [0]))[:2] in ([0], [0, 0])
