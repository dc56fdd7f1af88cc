"""Each autoscaler's rule, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts import build_params, make
from servesim.contracts.router import Report
from servesim.contracts.scaler import PoolLoad, Scaler, scalers
from servesim.errors import UserError
from servesim.policies.scaling._forecast import Arima, Constant, Kalman

S = 10**9


class Plain:
    """A prompt takes 0.1 ms a token, a decode step 10 ms and 0.1 ms more for each sequence."""

    def prefill_s(self, tokens: int) -> float:
        return tokens * 1e-4

    def decode_s(self, sequences: int, context: int) -> float:
        return 0.010 + sequences * 1e-4


def scaler(name: str, **params: Any) -> Scaler:
    cls, values = scalers.resolve(name)
    made: Scaler = make(cls, build_params(name, cls.Params, {**values, **params}), Plain())
    return made


def load(at_s: float, waiting: list[float], kv: list[float] | None = None, **more: Any) -> PoolLoad:
    """What is measured where these numbers wait at ready replicas."""
    running = more.pop("running", [1] * len(waiting))
    each = zip(waiting, running, kv or [0.0] * len(waiting), strict=True)
    ready = {i: Report(int(w), r, k, round(at_s * S)) for i, (w, r, k) in enumerate(each)}
    usual = {"num_starting": 0, "num_draining": 0, "num_held": 0, "arrived": 0, "prompt_tokens": 0}
    return PoolLoad(round(at_s * S), ready, **{**usual, "finished": 0, "output_tokens": 0, **more})


def test_hpa_wants_the_mean_at_its_target_rounded_up_and_nothing_within_the_tolerance() -> None:
    hpa = scaler("hpa", target=4)
    assert scaler("hpa", target=0.5, metric="kv").wanted(load(15, [0, 0], [0.5, 0.59])) == 2
    assert scaler("hpa", target=0.5, metric="kv").wanted(load(15, [0, 0], [0.5, 0.61])) == 3
    assert hpa.wanted(load(30, [10, 3])) == 4  # 13 / 4 = 3.25
    assert scaler("hpa", target=0.5, metric="kv").wanted(load(15, [0, 0], [0.9, 0.8])) == 4  # 1.7 / 0.5


def test_hpa_counts_pods_that_are_not_ready_as_idle_where_it_goes_up() -> None:
    hpa = scaler("hpa", target=4)
    assert hpa.wanted(load(15, [8], num_starting=1)) == 2  # 8 of two pods is the target
    assert hpa.wanted(load(30, [16], num_starting=1)) == 4


def test_hpa_adds_at_most_four_or_as_many_as_there_were() -> None:
    assert scaler("hpa", target=1, max=50).wanted(load(15, [90])) == 5
    assert scaler("hpa", target=1, max=50).wanted(load(15, [90] * 6)) == 12


def test_hpa_goes_down_to_the_highest_answer_of_the_last_five_minutes() -> None:
    hpa = scaler("hpa", target=4)
    assert hpa.wanted(load(15, [12, 4])) == 4
    assert hpa.wanted(load(30, [0, 0, 0, 0])) == 4
    assert hpa.wanted(load(300, [4, 4, 0, 0])) == 4
    assert hpa.wanted(load(320, [4, 0, 0, 0])) == 2  # of the window: 0, 2 and 1


def test_keda_goes_to_zero_after_the_cool_down_and_back_at_the_next_poll_that_finds_something() -> None:
    keda = scaler("keda", min=0, cooldown_s=300)
    assert keda.wanted(load(30, [0], running=[1])) == 1
    assert keda.wanted(load(300, [0], running=[0])) == 1
    assert keda.wanted(load(330, [0], running=[0])) == 0
    assert keda.wanted(load(360, [])) == 0
    assert keda.wanted(load(390, [], num_held=1)) == 1


def test_keda_counts_what_waits_in_the_router() -> None:
    assert scaler("keda", target=4).wanted(load(30, [4], num_held=8)) == 3


def test_wva_adds_one_where_the_spare_of_those_not_saturated_is_short() -> None:
    assert scaler("llm-d-wva").wanted(load(60, [0, 0], [0.65, 0.70])) == 2  # mean spare 0.125
    assert scaler("llm-d-wva").wanted(load(60, [0, 0], [0.75, 0.70])) == 3  # 0.075
    assert scaler("llm-d-wva").wanted(load(60, [3, 2], [0.4, 0.4])) == 3  # spare queue 2.5
    assert scaler("llm-d-wva").wanted(load(60, [5, 0], [0.4, 0.4])) == 2  # one saturated, one not
    assert scaler("llm-d-wva").wanted(load(60, [5, 9], [0.4, 0.4])) == 3


def test_wva_gives_one_up_where_the_others_keep_their_spare() -> None:
    assert scaler("llm-d-wva").wanted(load(60, [0, 0], [0.35, 0.35])) == 1  # one would have 0.70
    assert scaler("llm-d-wva").wanted(load(60, [0, 0], [0.36, 0.36])) == 2


def test_wva_takes_the_worst_of_a_minute_and_decides_once_a_minute_when_all_is_settled() -> None:
    wva = scaler("llm-d-wva")
    assert wva.wanted(load(15, [9], [0.1])) == 1  # not yet
    assert wva.wanted(load(60, [0], [0.1])) == 2
    assert wva.wanted(load(75, [9], [0.1])) == 1
    assert wva.wanted(load(120, [9], [0.1], num_starting=1)) == 2
    assert wva.wanted(load(135, [9], [0.1])) == 2


def test_wva_polls_the_queue_ten_times_a_second_while_there_is_nothing() -> None:
    wva = scaler("llm-d-wva", min=0)
    assert wva.wanted(load(15, [])) == 0
    assert wva.every_s == 0.1
    assert wva.wanted(load(15.1, [], num_held=1)) == 1
    wva.wanted(load(15.2, [], num_held=1, num_starting=1))
    assert wva.every_s == 15


def test_a_replica_of_dynamo_s_planner_does_what_fits_both_limits() -> None:
    planner: Any = scaler("dynamo-planner", ttft_ms=500, itl_ms=50)
    # ITL = 10 + 0.1 c + c 100 / 100 ms <= 50: c = 36 (49.6 ms); 36 / (100 x 49.6 ms) = 7.26 requests/s
    assert planner.rate_of_one(1000, 100) == pytest.approx(36 / (100 * 0.0496))
    # no c keeps 50 ms of TTFT: one at a time, 0.1 s + 100 x 10.1 ms
    assert scaler("dynamo-planner", ttft_ms=50).rate_of_one(1000, 100) == pytest.approx(1 / 1.11)  # type: ignore[attr-defined]


def test_the_throughput_loop_divides_the_forecast_by_the_rate_of_one() -> None:
    planner = scaler("dynamo-planner", loops="throughput", predictor="constant")
    demand = {"arrived": 3600, "prompt_tokens": 3_600_000, "finished": 3600, "output_tokens": 360_000}
    assert planner.every_s == 180
    assert planner.wanted(load(180, [0], **demand)) == 3  # 20/s of 7.26 each
    assert planner.wanted(load(360, [0, 0, 0], num_starting=1, **demand)) == 4  # what was decided is not in place


def test_the_load_loop_adds_one_where_all_are_over_and_gives_one_up_where_none_would_be() -> None:
    planner = scaler("dynamo-planner", loops="load", isl=1000, osl=100)
    assert planner.wanted(load(5, [4, 9])) == 2  # 4 x 100 + 100 ms is just the limit
    assert planner.wanted(load(10, [5, 9])) == 3
    assert planner.wanted(load(15, [0, 0], running=[401, 500])) == 3  # 10 + 0.1 x 401 ms
    assert planner.wanted(load(20, [0, 0], running=[400, 500])) == 2
    # 0.8 x (50 - 10.1) = 31.92 ms over the own 10.1: 320 sequences, so 160 on each of two
    assert planner.wanted(load(25, [0, 0], running=[160, 160])) == 1
    assert planner.wanted(load(30, [0, 0], running=[161, 160])) == 2


def test_forecasts() -> None:
    constant, arima, kalman = Constant(), Arima(), Kalman()
    for value in (1.0, 2.0, 4.0, 8.0, 16.0):
        for forecast in (constant, arima, kalman):
            forecast.add(value)
    assert constant.next() == 16
    assert arima.next() == 24  # changes double, of which at most the last is expected again
    level = Kalman()
    for _ in range(40):
        level.add(5.0)
    assert level.next() == pytest.approx(5.0, abs=0.01)
    assert kalman.next() > 8


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(UserError, match="min is 4 but must be at most max"):
        scaler("hpa", min=4, max=2)
    with pytest.raises(UserError, match="min is 0 but must be at least 1"):
        scaler("hpa", min=0)
