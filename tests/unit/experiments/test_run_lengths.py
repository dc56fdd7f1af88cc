"""Lengths of the runs of a capacity question."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.experiments.axes import Variant
from servesim.experiments.capacity import capacity
from servesim.experiments.goals import Goal, goals_of
from servesim.experiments.outcome import Outcome, judge, surely
from servesim.experiments.run_lengths import RunLengths, fewest_requests, more_requests
from servesim.run.scenario import Scenario

SERVER = {"model": "llama-3.2-1b", "gpu": "h200", "slo": "ttft:40"}
SYNTH = {**SERVER, "trace": "synth:rate=1,prompt=600,output=20"}
CARRIED = {"verdict": "carries", "enough_requests": None, "rate_low": 9.0, "rate_high": 10.0}


def goals(share: float, **slo: Any) -> list[Goal]:
    return goals_of(Scenario.of({**SYNTH, **slo}), share)


def lengths(by_rate: bool = True, share: float = 0.99, **settings: Any) -> RunLengths:
    return RunLengths.of([Variant("", {}, {**SYNTH, **settings})], goals(share), by_rate)


def visited(of: RunLengths, rows: list[dict[str, Any]]) -> list[int | None]:
    """Return the lengths that are run if every one of them is answered by `rows`."""
    found = [of.now]
    while of.longer(rows):
        found.append(of.now)
    return found


def test_twenty_requests_of_a_run_may_miss_the_strictest_goal() -> None:
    assert fewest_requests(goals(0.99)) == 2_500  # 20 of the 2,000 that count
    assert fewest_requests(goals(0.9)) == 1_000  # 250 would do
    assert fewest_requests(goals(1.0)) == 20_000
    assert fewest_requests(goals(0.99), 0.2) == 10_000  # 20 of the 2,000 that count
    assert fewest_requests(goals(0.9, slo="ttft:40,tpot:p99.5<20")) == 5_000


def test_a_synthetic_workload_of_no_stated_length_is_as_long_as_the_question_needs() -> None:
    assert visited(lengths(), [CARRIED]) == [312, 2_500]
    assert visited(lengths(by_rate=False), [CARRIED]) == [2_500]
    assert visited(lengths(share=0.95), [CARRIED]) == [1_000]


def test_runs_get_longer_until_the_interval_is_narrow_or_the_longest_is_reached() -> None:
    assert visited(lengths(), [CARRIED | {"rate_high": 12.0}]) == [312, 2_500, 5_000, 10_000, 20_000]
    assert more_requests([CARRIED | {"rate_high": 11.25}], 2_500) is None
    assert more_requests([CARRIED | {"rate_low": 0.0}], 2_500) == 5_000
    assert more_requests([{"verdict": "no limit", "enough_requests": None}], 2_500) == 5_000
    assert more_requests([{"verdict": "never"}], 2_500) is None


def test_runs_get_as_long_as_the_queue_needs() -> None:
    assert more_requests([CARRIED, CARRIED | {"enough_requests": 9_100}], 2_500) == 9_100
    assert more_requests([CARRIED | {"enough_requests": 3_000}], 2_500) == 5_000
    assert more_requests([CARRIED | {"enough_requests": 14_000}], 12_500) == 20_000
    assert more_requests([CARRIED | {"enough_requests": 90_000}], 2_500) is None  # no length that is run would tell
    assert more_requests([CARRIED | {"rate_high": 12.0}], 20_000) is None
    by_replicas = CARRIED | {"rate_low": None, "rate_high": None}
    assert more_requests([by_replicas], 2_500) is None


def test_a_stated_length_a_shape_and_a_recorded_log_are_kept() -> None:
    wide = [CARRIED | {"rate_high": 90.0, "enough_requests": 90_000}]
    assert visited(lengths(requests=500), wide) == [500]
    assert visited(lengths(requests=4_000), wide) == [500, 4_000]
    assert visited(lengths(requests=4_000, by_rate=False), wide) == [4_000]
    assert visited(lengths(shape="ramp:start=1,end=2"), wide) == [None]
    assert visited(lengths(trace="log.csv"), wide) == [None]
    assert visited(lengths(trace="preset:azure-code-2023"), wide) == [8_819 // 8, None]
    traces = [Variant(n, {}, {**SYNTH, "trace": f"synth:prompt={n}"}) for n in ("100", "200")]
    assert visited(RunLengths.of(traces, goals(0.99), True), [CARRIED]) == [312, 2_500]
    both = [Variant("a", {}, {**SYNTH, "requests": 500}), Variant("b", {}, SYNTH)]
    assert visited(RunLengths.of(both, goals(0.99), True), wide) == [None]


@given(st.floats(0.5, 1.0))
def test_a_stricter_goal_never_takes_shorter_runs(share: float) -> None:
    assert fewest_requests(goals(share)) <= fewest_requests(goals((1 + share) / 2)) <= 20_000


@pytest.mark.medium
def test_short_runs_first_change_no_answer_by_more_than_its_tolerance() -> None:
    asked = SYNTH | {"requests": 2_000, "replicates": 2, "tolerance": 0.05, "intervals": False, "jobs": 1}
    scouted = capacity(**asked)
    document = scouted.attrs["document"]
    assert document["workload"]["requests"] == 2_000
    tried = sorted({point["rate"] for point in document["points"]})
    assert tried[0] > scouted["rate"].iloc[0] / 4  # slow rates are tried with short runs alone
    low, high = (next(p for p in document["points"] if p["rate"] == r) for r in (tried[0], tried[-1]))
    assert low["attainment"] >= 0.99 > high["attainment"]


def outcome(share: float, unstable: bool = False, enough: int | None = None) -> Outcome:
    return Outcome(100, {}, (share,), (), (None,), None, (None,), unstable, enough, 0.5)


def test_of_few_runs_all_must_agree_and_of_many_more_than_chance_would_let() -> None:
    assert [surely(count, 5) for count in range(6)] == [False, False, False, False, False, True]
    assert (surely(1, 1), surely(0, 1), surely(2, 3)) == (True, False, False)
    assert (surely(8, 10), surely(9, 10)) == (False, True)  # 56 and 11 of 1,024 throws


def test_a_load_is_surely_carried_only_where_the_runs_show_that_the_queue_is_bounded() -> None:
    needed = goals(0.9)
    sure = judge([outcome(0.97), outcome(0.98), outcome(0.97)], needed)
    assert sure.margin_low > 0
    unsure = judge([outcome(0.97), outcome(0.98), outcome(0.97, enough=900)], needed)
    assert (unsure.margin, unsure.margin_low, unsure.margin_high) == (sure.margin, -1.0, sure.margin_high)
    mixed = judge([outcome(0.97), outcome(0.98, unstable=True), outcome(0.97)], needed)
    assert (mixed.margin, mixed.margin_low, mixed.margin_high) == (sure.margin, -1.0, sure.margin_high)


def test_a_load_is_surely_too_much_only_where_the_runs_show_that_the_queue_grows() -> None:
    needed = goals(0.9)
    most = judge([outcome(0.97, unstable=True), outcome(0.98, unstable=True), outcome(0.97)], needed)
    assert (most.margin, most.margin_low) == (-1.0, -1.0)
    assert most.margin_high > 0
    every = judge([outcome(share, unstable=True) for share in (0.97, 0.98, 0.97)], needed)
    assert (every.margin, every.margin_low, every.margin_high) == (-1.0, -1.0, -1.0)
    assert judge([outcome(0.97, unstable=True)], needed).margin_high == -1.0
