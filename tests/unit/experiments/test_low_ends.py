"""Low ends of capacity's intervals, checked by longer runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import servesim
from servesim.experiments.axes import Variant
from servesim.experiments.goals import goals_of
from servesim.experiments.limit_search import RateSearch
from servesim.experiments.low_ends import carry, design_effect, low_ends, times_longer
from servesim.experiments.outcome import Outcome, judge
from servesim.experiments.replicates import Replicates
from servesim.run.scenario import Scenario

SERVER = {"model": "llama-3.2-1b", "gpu": "h200", "slo": "ttft:40"}
GOALS = goals_of(Scenario.of({**SERVER, "trace": "synth:rate=1"}), 0.9)
ALONE = Outcome(100, {}, (1.0,), (), (None,), None, (None,), False, None, 1.0, counted=(100,))


def runs(*shares: float) -> list[Outcome]:
    return [replace(ALONE, shares=(share,)) for share in shares]


def test_the_design_effect_is_the_variance_of_shares_over_that_of_independent_requests() -> None:
    # Of .8 and 1.0 the mean is .9 and the variance .02; 100 independent requests have .9 x .1 / 100 = .0009.
    assert design_effect(runs(0.8, 1.0), 0) == pytest.approx(0.02 / 0.0009)
    assert design_effect(runs(0.9, 0.91, 0.89), 0) == 1  # varies less than independent requests would
    assert design_effect(runs(1.0, 1.0), 0) == design_effect(runs(0.0, 0.0), 0) == design_effect(runs(0.8), 0) == 1


def test_runs_are_long_enough_for_five_groups_of_misses_within_the_goal() -> None:
    # 200 requests at 90 % may miss 20 times: 2 groups of 10 misses, or 20 misses alone.
    alike = runs(0.9, 0.9)
    assert times_longer([alike], GOALS) == pytest.approx(5 * 1 / (0.1 * 200))
    bursts = runs(0.8, 1.0)
    assert times_longer([bursts], GOALS) == pytest.approx(5 * (0.02 / 0.0009) / (0.1 * 200))
    assert times_longer([alike, bursts], GOALS) == pytest.approx(5 * ((1 + 0.02 / 0.0009) / 2) / (0.1 * 200))
    assert times_longer([], GOALS) == 0
    assert times_longer([bursts], [replace(GOALS[0], share=1.0)]) == 0  # no number of groups may be missed


def test_misses_of_a_class_are_compared_with_the_requests_of_that_class() -> None:
    # 10 of 100 requests are of the class: .9 x .1 / 10 = .009 of independent ones.
    few = [replace(one, counted=(10,)) for one in runs(0.8, 1.0)]
    assert design_effect(few, 0) == pytest.approx(0.02 / 0.009)
    assert times_longer([few], GOALS) == pytest.approx(5 * (0.02 / 0.009) / (0.1 * 20))


def test_a_rate_is_carried_if_nine_of_ten_further_runs_would() -> None:
    # Of .96 and .98 t(.9, 1) = 3.078 leaves .97 - 3.078 x .01414 x 1.225 = .917 for a further run, t(.975, 1) = 12.71
    # only .97 - 12.71 x .01 = .843 for the mean.
    assert judge(runs(0.96, 0.98), GOALS).margin_low == pytest.approx(0.843 - 0.9, abs=1e-3)
    assert not carry(runs(0.96, 0.98), GOALS)
    # Of twenty runs the mean is surely above .9, but one in ten of them is not.
    many = (0.97,) * 17 + (0.8, 0.82, 0.84)
    assert judge(runs(*many), GOALS).margin_low > 0
    assert not carry(runs(*many), GOALS)
    assert carry(runs(*(0.97,) * 17, 0.95, 0.95, 0.96), GOALS)
    assert not carry([replace(one, unstable=True) for one in runs(0.97, 0.97, 0.97)], GOALS)


class Told:
    """A study whose longer runs carry rates up to a limit, by label; those of "broken" fail."""

    def __init__(self, recorded: bool = False, count: int = 2, most: int = 10_000, **limits: float) -> None:
        self._limits, self._most = limits, most
        self.variants = [Variant(label, {}, {"requests": 200, "of": label}) for label in limits]
        self.errors: dict[str, str] = {}
        tried = ((8.0, runs(1.0, 0.99)), (9.0, runs(0.7, 0.9)), (12.0, runs(0.0, 0.1)))
        self.outcomes = {(label, rate): outcomes for label in limits for rate, outcomes in tried}
        self.judged = dict.fromkeys(self.outcomes)
        self.measuring = SimpleNamespace(
            repeats=Replicates("seeds", ({"seed": 0}, {"seed": 1})[:count], recorded=recorded),
            goals=GOALS,
            outcomes=lambda each: [runs(0.97 if run[1] <= limits[run[0]] else 0.5)[0] for run in each or ()],
        )
        self.asked: list[tuple[float, int]] = []

    def trace(self, v: Variant) -> range:
        return range(min(v.settings["requests"] // 2, self._most))  # a shape drops every other request

    def further(self, asked: Any, repeats: Replicates) -> Any:
        assert [repeats.settings({}, j)["seed"] for j in range(2)] == [2, 3]  # fresh ones
        self.asked += [(settings["rate"], v.settings["requests"]) for v, settings, _ in asked]
        return [
            None if v.label == "broken" else [(v.label, settings["rate"])] * 2 for v, settings, _ in asked
        ]  # fmt: skip


def search(low: float, high: float) -> RateSearch:
    found = RateSearch(0.02)
    found.tell(low, True)
    found.tell(high, False)
    return found


def lowered(study: Any) -> Any:
    searches = (search(8.0, 9.0), search(8.0, 9.0), search(9.0, 12.0))
    return low_ends(study, {v.label: searches for v in study.variants}, 0.02)


def test_a_low_end_that_longer_runs_do_not_carry_is_lowered_until_they_do() -> None:
    # At 9/s the effect is .02 / (.8 x .2 / 100) = 12.5: runs must be 5 x 12.5 / (.1 x 200) = 3.125 times as long.
    study = Told(a=7.0, b=8.5)
    assert lowered(study) == {
        "a": {"rate_low": 6.935, "checked_requests": 350},
        "b": {"rate_low": 8.0, "checked_requests": 350},
    }
    assert study.asked == [(8.0, 700), (8.0, 700), (7.273, 700), (6.011, 700), (6.612, 700), (6.935, 700)]


def test_a_low_end_that_no_longer_run_carries_is_0() -> None:
    study = Told(a=-1.0)
    assert lowered(study)["a"]["rate_low"] == 0
    assert len(study.asked) == 6


def test_a_length_that_cannot_be_reached_is_told() -> None:
    assert lowered(Told(a=9.0, most=100)) == {"a": {"low_end_needs": 400}}  # the trace has no more
    assert lowered(Told(a=9.0, most=200))["a"] == {"rate_low": 8.0, "checked_requests": 200, "low_end_needs": 400}


def test_a_low_end_whose_check_fails_is_kept_and_called_unchecked() -> None:
    study = Told(broken=7.0, a=8.5)
    assert lowered(study)["broken"] == {"checked_requests": None, "low_end_needs": 350}
    assert lowered(study)["a"]["rate_low"] == 8.0


def test_recorded_traces_and_single_runs_are_not_checked() -> None:
    assert lowered(Told(a=7.0, recorded=True)) == lowered(Told(a=7.0, count=1)) == {}


@pytest.mark.medium
def test_a_capacity_of_runs_too_short_for_bursts_says_how_long_those_are_that_checked_it() -> None:
    asked = {
        "model": "llama-3.2-1b",
        "gpu": "h200",
        "slo": "ttft:200",
        "trace": "synth:rate=1,prompt=lognormal(1500,5000),output=lognormal(16,60)",
        "requests": 60,
        "attainment": 0.9,
        "replicates": 3,
        "tolerance": 0.1,
        "intervals": False,
    }
    (row,) = servesim.capacity(**asked, jobs=1).attrs["document"]["rows"]
    assert row["checked_requests"] > 60
    assert row["rate_low"] <= row["rate"] < row["rate_high"]
