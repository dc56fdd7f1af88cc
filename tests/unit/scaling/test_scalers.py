"""Each autoscaler's rule, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts import build_params, make
from servesim.contracts.router import Report
from servesim.contracts.scaler import PoolLoad, Scaler, scalers
from servesim.errors import UserError
from servesim.policies.scaling._dynamo_pair import Sides, decode_rate, fitted, prefill_rate, within_budget
from servesim.policies.scaling._forecast import Arima, Constant, Kalman

S = 10**9


class Plain:
    """A prompt takes 0.1 ms a token, a decode step 10 ms and 0.1 ms more for each sequence."""

    usd_per_hour = 1.0

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


class Side(Plain):
    """A replica of one role: steps of at most 8,192 tokens and 256 requests, and KV for a million tokens."""

    num_gpus, max_num_batched_tokens, max_num_seqs, kv_tokens = 1, 8192, 256, 1_000_000

    def __init__(self, role: str) -> None:
        self.role = role


def pair(**params: Any) -> Scaler:
    planner = scaler("dynamo-planner", predictor="constant", max=64, **params)
    planner.profiles = {role: Side(role) for role in ("prefill", "decode")}  # type: ignore[assignment, misc]
    return planner


def sides(at_s: float, prefill: list[float], decode: list[float], rate: float = 0, **more: Any) -> dict[str, PoolLoad]:
    """Loads of both pools, with so many requests/s of 1,000 and 100 tokens since 180 s ago."""
    count = round(180 * rate)
    running = [int(n) for n in decode]
    loads = {
        "prefill": load(at_s, prefill, arrived=count, prompt_tokens=1000 * count),
        "decode": load(at_s, [0] * len(decode), running=running)._replace(
            finished=count, output_tokens=100 * count, **more
        ),
    }
    return {name: one._replace(others={k: v for k, v in loads.items() if k != name}) for name, one in loads.items()}


def test_the_rate_of_a_prefill_and_of_a_decode_replica_is_the_best_within_its_own_limit() -> None:
    assert prefill_rate(Side("prefill"), 1000, 0.5) == pytest.approx(10)  # type: ignore[arg-type]
    # 256 sequences in 10 + 25.6 ms, which are 256 / (100 x 35.6 ms) answers/s; within 20 ms it is 99 (of 1, 3, 5, ...)
    assert decode_rate(Side("decode"), 1000, 100, 0.05) == pytest.approx(256 / 3.56)  # type: ignore[arg-type]
    assert decode_rate(Side("decode"), 1000, 100, 0.02) == pytest.approx(99 / 1.99)  # type: ignore[arg-type]
    assert decode_rate(Side("decode"), 1000, 100, 0.001) == pytest.approx(256 / 3.56), "no batch fits"  # type: ignore[arg-type]


def test_the_planner_divides_the_demand_by_the_rate_of_each_side() -> None:
    planner = pair(loops="throughput")
    # 130/s: 13 prefill replicas of 10/s, 2 decode replicas of 71.9/s
    assert planner.wanted_of(sides(180, [0] * 5, [1, 1], 130)) == {"prefill": 13, "decode": 2}
    assert planner.wanted_of(sides(360, [0] * 2, [1], 130)) == {"prefill": 10, "decode": 2}, "8 at once"


def test_correction_factors_lower_the_prefill_demand_and_the_itl_limit() -> None:
    # TTFT 50 of 100 ms: half the demand, 6.5 of 10/s. 130/s for 1.54 s on two replicas are 100 at once, whose ITL is
    # 20 ms in the profile and 40 ms in truth: of 50 ms, 25 remain, in which 149 fit (24.9 ms, 59.8/s)
    seen = {"ttft_s": 0.05, "tpot_s": 0.04, "e2e_s": 200 / 130}
    planner = pair(loops="throughput", correction=True)
    assert planner.wanted_of(sides(180, [0] * 5, [1, 1], 130, **seen)) == {"prefill": 7, "decode": 3}


def test_the_load_loop_of_each_side_looks_at_its_own_latency() -> None:
    planner = pair(loops="load", isl=1000, osl=100)
    assert planner.wanted_of(sides(5, [5, 5], [10, 10])) == {"prefill": 3, "decode": 1}  # 6 prompts: 600 ms
    assert planner.wanted_of(sides(10, [4, 9], [400, 450])) == {"prefill": 2, "decode": 3}  # 401: 50.1 ms
    # down: 2 prompts of another are 200 of 0.8 x (500 - 100) ms; 299 at once are 39.9 of 0.8 x 50 ms
    assert planner.wanted_of(sides(15, [1, 1], [149, 149])) == {"prefill": 1, "decode": 1}
    assert planner.wanted_of(sides(20, [2, 1], [150, 149])) == {"prefill": 2, "decode": 2}


def test_the_pair_keeps_a_gpu_budget() -> None:
    gpus = Sides(1, 2)
    # 9 GPUs wanted of 6: prefill 5 x 6 / 9 = 3, and one decode replica of the 3 GPUs left
    assert within_budget(Sides(1, 1), Sides(5, 2), gpus, 6, 1) == (3, 1)
    assert fitted(Sides(1, 1), Sides(5, 2), gpus, 6, 1) == (4, 1), "closest to what is wanted"
    assert within_budget(Sides(4, 1), Sides(5, 1), gpus, 6, 1) == (4, 1), "full, and nobody gives"
    assert within_budget(Sides(4, 1), Sides(2, 2), gpus, 6, 1) == (2, 2)
    assert within_budget(Sides(4, 1), Sides(3, 2), gpus, 6, 1) == (4, 1), "both or neither"
    assert pair(loops="throughput", max_gpu_budget=8).wanted_of(sides(180, [0], [1], 130)) == {
        "prefill": 6,
        "decode": 2,
    }


def test_a_planner_of_one_side_leaves_the_other_as_it_is() -> None:
    both = sides(180, [0], [1], 130)
    planner = pair(loops="throughput", max_gpu_budget=3)
    assert planner.wanted_of({"prefill": both["prefill"]}) == {"prefill": 3}
    assert pair(loops="throughput").wanted_of({"decode": both["decode"]}) == {"decode": 2}


def test_a_planner_of_two_prefill_pools_is_refused() -> None:
    planner = pair()
    planner.profiles = {**planner.profiles, "more": Side("prefill")}  # type: ignore[assignment, dict-item]
    both = sides(180, [0], [1], 130)
    with pytest.raises(UserError, match="scales one prefill and one decode pool, not prefill, decode, more"):
        planner.wanted_of({**both, "more": both["prefill"]})
