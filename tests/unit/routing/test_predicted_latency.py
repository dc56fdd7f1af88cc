"""Routing by predicted latency, by hand: the oracle, what is learned, and the choice by headroom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from servesim.contracts import Request
from servesim.policies.routing._latency import Learned, Oracle, Ridge, Seen, Speeds
from servesim.policies.routing.predicted_latency import Expected, PredictedLatency, PredictedParams, latency_scores
from tests.support.routing import Prompts, View, router_of, views_of

S = 10**9


@dataclass
class Plain:
    """A prompt token takes 1 ms; a decode step 10 ms, 1 ms for each sequence and 1 ns for each token of context."""

    role: str = "both"
    max_num_batched_tokens: int = 100
    max_num_seqs: int = 8
    kv_tokens: int = 1000
    asked: int = 0

    def prefill_s(self, tokens: int) -> float:
        self.asked += 1
        return tokens * 1e-3

    def decode_s(self, sequences: int, context: int) -> float:
        return 0.010 + sequences * 1e-3 + sequences * context * 1e-9


IDLE = Seen(80, 0.0, 0.0, 0, 0, 0, 0, 0)
EMPTY = View(0, profile=Plain())


def oracle() -> Oracle:
    return Oracle(PredictedParams())


def predicted(seen: Seen, **view: Any) -> tuple[float, float]:
    return oracle().predict(seen, View(0, profile=Plain(), **view))  # type: ignore[arg-type]


def test_on_an_empty_fleet_a_prompt_takes_its_steps_and_an_answer_steps_of_one() -> None:
    ttft, tpot = predicted(IDLE)
    assert ttft == pytest.approx(0.080)
    assert tpot == pytest.approx(0.011 + 80e-9)
    assert predicted(IDLE._replace(prompt_len=250))[0] == pytest.approx(0.250)  # steps of 100, 100 and 50
    assert predicted(IDLE._replace(share=0.75))[0] == pytest.approx(0.020)
    assert predicted(IDLE._replace(share=1.0))[0] == pytest.approx(0.001)  # the last token is always computed


def test_a_prompt_waits_for_those_ahead_of_it_and_shares_steps_with_what_decodes() -> None:
    # 4 in flight, one of them a prompt of 60: steps have room for 97 tokens: 60 + 80 = 97 + 43, each with 3 tokens and
    # the attention to three contexts of 200; half of a decode step of three is still to come
    seen = IDLE._replace(kv_usage=0.6, num_requests=4, tokens=500, backlog=60, num_prompts=1)
    ttft, tpot = predicted(seen, num_running=3)
    attention = 3 * 199e-9
    assert ttft == pytest.approx(0.100 + attention + 0.046 + attention + (0.013 + 600e-9) / 2)
    assert tpot == pytest.approx(0.015 + 5 * 176e-9)  # (4 x 200 + 80) / 5


def test_where_no_slot_is_free_a_request_waits_until_those_ahead_of_it_have_left() -> None:
    made, view = oracle(), View(0, profile=Plain(), num_running=8)
    seen = IDLE._replace(num_waiting=3, num_requests=8, kv_usage=0.8)
    free, _ = made.predict(seen, view)  # type: ignore[arg-type]
    made.finished(seen, 20, 1.0)
    # answers of 20 tokens, 8 at a time, in steps of 18 ms: one leaves in 45 ms, and four are to leave
    assert made.predict(seen, view)[0] - free == pytest.approx(4 * 20 / 8 * (0.018 + 800e-9))  # type: ignore[arg-type]


def test_the_cost_model_is_asked_once_for_each_size_and_lines_run_between() -> None:
    profile = Plain()
    speeds = Speeds(profile)  # type: ignore[arg-type]
    for tokens in range(1, 1025):
        assert speeds.prefill(tokens) == pytest.approx(tokens * 1e-3)
    assert profile.asked <= 4 + 8 * 8


def test_ridge_is_the_closed_form_on_standardized_features() -> None:
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 100, (40, 3))
    x[:, 1] = 7.0  # tells nothing
    y = 200 + 2 * x[:, 0] - x[:, 2] + rng.normal(0, 1, 40)
    model = Ridge(penalty=2.0, most=500, margin=0.0)
    for row, value in zip(x, y, strict=True):
        model.add((0, 0, 0), row.tolist(), float(value))
    model.train()
    z = (x[:, [0, 2]] - x[:, [0, 2]].mean(axis=0)) / x[:, [0, 2]].std(axis=0)
    w = np.linalg.inv(z.T @ z + 2.0 * np.eye(2)) @ z.T @ (y - y.mean()) / x[:, [0, 2]].std(axis=0)
    assert model.coefficients == pytest.approx([w[0], 0.0, w[1]])
    new = [50.0, 9.0, 20.0]
    expected = y.mean() + w @ (np.array([50.0, 20.0]) - x[:, [0, 2]].mean(axis=0))
    assert model.predict(new) == pytest.approx(expected)
    wary = Ridge(2.0, 500, margin=1.28)
    wary._samples = model._samples
    wary.train()
    errors = y - [model.predict(row.tolist()) for row in x]
    assert wary.predict(new) - model.predict(new) == pytest.approx(1.28 * errors.std())


def test_the_oldest_sample_of_a_full_stratum_gives_way_and_no_prediction_is_below_nothing() -> None:
    model = Ridge(penalty=1e-9, most=2, margin=0.0)
    for value, stratum in ((100.0, 0), (1.0, 0), (3.0, 0), (8.0, 1)):
        model.add((stratum, 0, 0), [value], value)
    assert model.num_samples == 3
    model.train()
    assert model.predict([5.0]) == pytest.approx(5.0)
    assert model.predict([-9.0]) == 0.0


def test_before_the_first_training_all_predictions_are_ten_milliseconds() -> None:
    learned = Learned(PredictedParams(min_samples=4))
    assert learned.predict(IDLE, EMPTY) == (0.010, 0.010)  # type: ignore[arg-type]
    for row in range(4):
        seen = IDLE._replace(prompt_len=100 * (row + 1))
        learned.first_token(seen, 0.1 * (row + 1))
        learned.at(S // 2)  # not yet
        assert learned.predict(IDLE, EMPTY) == (0.010, 0.010)  # type: ignore[arg-type]
    learned.at(S)
    ttft, tpot = learned.predict(IDLE._replace(prompt_len=250), EMPTY)  # type: ignore[arg-type]
    assert 0.2 < ttft < 0.3
    assert tpot == 0.010  # no answer has finished


def test_samples_are_kept_by_queue_memory_and_prefix() -> None:
    assert IDLE.stratum == (0, 0, 0)
    assert IDLE._replace(num_waiting=3, kv_usage=0.55, share=0.6).stratum == (2, 11, 2)
    assert IDLE._replace(num_waiting=11, kv_usage=1.0, share=1.0).stratum == (4, 19, 3)


def score(*rooms: tuple[float, float], idle: tuple[int, ...] = (), **params: Any) -> list[float]:
    kept = {i: Expected(IDLE._replace(num_requests=i not in idle), 0.0, *room) for i, room in enumerate(rooms)}
    return list(latency_scores(kept, PredictedParams(**params)).values())


def test_scores_prefer_the_least_headroom_of_those_that_meet_the_limits() -> None:
    # (1.0, .2) is 1 and 1 of the way to the most room, (.5, .1) 0 and 0; 0.8 of TTFT and 0.2 of TPOT
    assert score((0.5, 0.1), (1.0, 0.2), (0.75, 0.1), (-0.1, 0.3)) == [1.01, 0.01, 0.61, 0.0]
    assert score((0.5, 0.1), (1.0, 0.2), headroom_selection_strategy="most") == [0.01, 1.01]


def test_scores_without_headroom_take_idle_replicas_then_the_lesser_miss() -> None:
    assert score((-0.5, -0.1), (-1.0, -0.2), idle=(1,)) == [0.0, 0.51]
    assert score((-0.5, -0.1), (-1.0, -0.2)) == [1.01, 0.01]
    assert score((0.5, -0.1), (-0.1, 0.2), (-0.1, -0.1)) == [0.51, 0.0, 0.0]  # misses TPOT only
    assert score((-0.1, 0.2), (-0.1, -0.1)) == [0.51, 0.0]


def test_where_one_of_the_two_is_equal_everywhere_the_other_decides() -> None:
    assert score((-0.5, -0.1), (-0.5, -0.2)) == [1.01, 0.01]
    assert score((-0.5, -0.1), (-0.7, -0.1)) == [1.01, 0.01]


def router(replicas: int, **params: Any) -> PredictedLatency:
    made = router_of("predicted-latency", replicas, predictor="oracle", picker="max-score", **params)
    assert isinstance(made, PredictedLatency)
    return made


def views(*more: dict[str, Any]) -> Any:
    return views_of([View(i, profile=Plain(), **each) for i, each in enumerate(more)])


def send(made: PredictedLatency, request: Request, replica: int, found: Any) -> None:
    """Decide, and send the request to the given replica."""
    made.route(request, found)
    made.on_sent(request, replica)


def test_a_prompt_that_is_known_goes_where_it_is_unless_that_is_far_slower() -> None:
    made, prompt = router(2, max_ttft_penalty_ms=100), Prompts()
    found = views({}, {})
    send(made, prompt((1, 128)), 1, found)  # 128 ms ahead, for 100 ms more than elsewhere
    again = prompt((1, 128))
    assert made.prefix_shares(again).tolist() == [0.0, 1.0]
    assert made.route(again, found) == 1  # 128 + 1 ms and half a step against 128 ms
    send(made, prompt((2, 200)), 1, found)
    assert made.route(again, found) == 0  # 328 ms, 200 ms later than elsewhere


def test_limits_keep_the_emptier_replica_free_for_what_needs_it() -> None:
    found = views({}, {"num_running": 2, "kv_usage": 0.1})
    for limits, choice in (({}, 0), ({"ttft_slo_ms": 500, "tpot_slo_ms": 50}, 1), ({"ttft_slo_ms": 100}, 0)):
        made, prompt = router(2, epsilon_explore_neg=0, **limits), Prompts()
        first = prompt((1, 100))
        send(made, first, 1, found)
        assert made.route(prompt((2, 90)), found) == choice


def test_a_router_hears_of_first_tokens_and_answers_and_books_nothing_that_has_ended() -> None:
    made, prompt = router_of("predicted-latency", 2, min_samples=2), Prompts()
    assert isinstance(made, PredictedLatency)
    found, now = views({}, {}), [0]
    made.clock = lambda: now[0]
    for row in range(3):
        request = prompt((row + 5, 100))
        send(made, request, 0, found)
        assert (made.backlog, made.num_prompts) == ([100, 0], [1, 0])
        now[0] += S
        made.on_prefill_done(request, 0)
        assert (made.backlog, made.num_prompts, made.load) == ([0, 0], [0, 0], [1, 0])
        now[0] += 4 * S
        request._num_tokens = 105
        made.on_finish(request, 0, "finished")
    lost = prompt((9, 50))
    send(made, lost, 1, found)
    made.on_finish(lost, 1, "failed")
    assert (made.backlog, made.num_prompts, made.load) == ([0, 0], [0, 0], [0, 0])
    assert isinstance(made.predictor, Learned)
    made.predictor.at(now[0])
    ttft, tpot = made.predictor.predict(IDLE._replace(prompt_len=100), EMPTY)  # type: ignore[arg-type]
    assert ttft == pytest.approx(1.0)
    assert tpot == pytest.approx(1.0)  # four seconds for four tokens after the first


def test_prefill_replicas_are_judged_by_ttft_and_decode_replicas_by_tpot() -> None:
    made, request = router(1), Prompts()((1, 80))
    for role, rooms in (("prefill", (-0.080, 0.0)), ("decode", (0.0, -0.011 - 80e-9))):
        made.role = role  # type: ignore[assignment]
        found = made.expected(request, views({}), np.zeros(1))[0]
        assert (found.ttft_headroom, found.tpot_headroom) == pytest.approx(rooms)
