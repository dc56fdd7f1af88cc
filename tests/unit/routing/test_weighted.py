"""Routers of unlike replicas, by hand: nginx's and Envoy's documented sequences, and speeds by the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from servesim.contracts import Router, build_params, routers
from servesim.errors import UserError
from tests.support.routing import Prompts, View, router_of, views_of


def picks(router: Router, views: Any, count: int, *, keep: bool = False) -> str:
    """Return the replicas of successive requests, as letters. `keep`: none of the requests ends."""
    prompt, found = Prompts(), ""
    for _ in range(count):
        request = prompt((1, 5))
        choice = router.route(request, views)
        assert isinstance(choice, int)
        router.on_sent(request, choice)
        if not keep:
            router.on_finish(request, choice, "finished")
        found += "abcdefgh"[choice]
    return found


@pytest.mark.parametrize(("weights", "sequence"), [("3/1", "aabaaaba"), ("5/1/1", "aabacaaaabacaa"), ("1/1", "abab")])
def test_weighted_round_robin_gives_nginx_s_smooth_sequence(weights: str, sequence: str) -> None:
    replicas = weights.count("/") + 1
    assert (
        picks(router_of("weighted-round-robin", replicas, weights=weights), views_of(replicas), len(sequence))
        == sequence
    )


def test_a_replica_that_is_not_ready_is_passed_over_and_later_ones_have_the_weight_of_their_pool() -> None:
    router = router_of("weighted-round-robin", 2, weights="3/1")
    assert picks(router, views_of([View(0, "draining", pool="x"), View(1, pool="y")]), 2) == "bb"
    more = views_of([View(0, pool="x"), View(1, "failed", pool="y"), View(2, pool="x"), View(3, pool="z")])
    assert sorted(picks(router, more, 7)) == sorted("aaacccd")


def test_least_requests_by_weight_fill_up_in_proportion() -> None:
    router = router_of("weighted-least-requests", 2, weights="3/1")
    # 0/3 = 0/1: the round robin says a; then 1/3 > 0; 1/3 < 1/1; 2/3 < 1; 3/3 = 1/1: the round robin's turn again
    assert picks(router, views_of(2), 8, keep=True) == "abaaabaa"


def test_idle_replicas_get_requests_in_nginx_s_smooth_sequence() -> None:
    assert picks(router_of("weighted-least-requests", 3, weights="5/1/1"), views_of(3), 7) == "aabacaa"


def test_envoy_s_rule_delays_a_replica_by_its_requests_when_it_is_chosen() -> None:
    router = router_of("weighted-least-requests", 2, weights="4/1", rule="envoy")
    # deadlines .25 and 1: a to .5 (no request yet), a to 1 (2 / 4 later), b: tied, but it came first: to 2;
    # a to 1 + 3 / 4, a to 1.75 + 4 / 4; b to 2 + 2
    assert picks(router, views_of(2), 6, keep=True) == "aabaab"


def test_without_bias_envoy_s_rule_is_weighted_round_robin_by_deadline() -> None:
    router = router_of("weighted-least-requests", 2, weights="3/1", rule="envoy", active_request_bias=0)
    assert picks(router, views_of(2), 8, keep=True).count("a") == 6


def test_envoy_takes_the_emptier_of_two_where_all_weights_are_equal() -> None:
    router = router_of("weighted-least-requests", 3, weights="2/2/2", rule="envoy")
    router.load[:] = [0, 5, 9]  # type: ignore[attr-defined]
    found = picks(router, views_of(3), 300)
    # two draws with replacement: the fullest of three is chosen only if it is drawn twice
    assert 150 < found.count("a") < 185
    assert 20 < found.count("c") < 48


@dataclass
class Speeds:
    """A prompt token takes 1 ms, and a step 10 ms or more, however many decode."""

    step_s: float = 0.010
    role: str = "both"
    max_num_batched_tokens: int = 50
    max_num_seqs: int = 10
    kv_tokens: int = 10_000

    def prefill_s(self, tokens: int) -> float:
        return tokens * 0.001

    def decode_s(self, sequences: int, context: int) -> float:
        return self.step_s


@pytest.mark.parametrize(
    ("role", "weights"),
    # with 100 and 100 tokens, a request takes 100 ms and 100 x 10 / 10 or 100 x 30 / 10 ms
    [("both", [100, 50]), ("prefill", [100, 100]), ("decode", [100, 33])],
)
def test_weights_that_are_not_given_are_speeds_by_the_cost_model(role: str, weights: list[int]) -> None:
    router = router_of("weighted-round-robin", 2, prompt_len=100, output_len=100)
    profiles = [Speeds(role=role), Speeds(step_s=0.030, role=role)]
    views = views_of([View(i, pool=str(i), profile=profile) for i, profile in enumerate(profiles)])
    router.route(Prompts()((1, 5)), views)
    assert router._weights.of(views) == weights  # type: ignore[attr-defined]


@pytest.mark.parametrize("weights", ["3/0", "a", "1/", "-1/2", "1.5/1"])
def test_weights_that_are_no_whole_numbers_are_refused(weights: str) -> None:
    cls, _ = routers.resolve("weighted-round-robin")
    with pytest.raises(UserError, match=r"weights is .* but must be whole numbers of at least 1, such as 3/1"):
        build_params("weighted-round-robin", cls.Params, {"weights": weights})


def test_weights_for_other_than_the_initial_replicas_are_refused() -> None:
    with pytest.raises(UserError, match="weights has 2 numbers for 3 replicas"):
        router_of("weighted-round-robin", 3, weights="3/1")
