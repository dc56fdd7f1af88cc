"""Least latency for a price: a question that gives both a rate and a budget, or a number of GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import servesim
from servesim.experiments.axes import Variant
from servesim.experiments.capacity_error import CapacityError
from servesim.experiments.recommend import latency_error
from servesim.experiments.recommend.aims import LeastLatency, MostForBudget, MostTraffic
from servesim.experiments.recommend.budget import latency, ratio_interval
from servesim.experiments.recommend.race import Entrant, LatencyRace, Race, climb
from servesim.experiments.recommend.words import ratio_words, sure_price
from servesim.intervals.fitted import Factors
from servesim.intervals.pairs import Spread
from servesim.run.stretched import PAIRED, Stretch
from tests.unit.experiments.recommend.test_recommend import QUESTION

ONE = {"trace": "synth:rate=1", "model": "llama-3.2-1b", "gpu": "h100", "usd_per_gpu_hour": 3.0}
ASKED: dict[str, Any] = {
    **QUESTION,
    "scheduler.max_num_batched_tokens": 8192,
    "price": {"h100": 3.0, "l40s": 1.0},
    "rate": 10.0,
}


def ask(**more: Any) -> Any:
    return servesim.recommend(**{**ASKED, **more}).attrs["document"]


def test_a_budget_buys_whole_replicas_and_a_price_is_a_latency() -> None:
    """$10 buy three H100 at $3; five GPUs hold two replicas of two."""
    aim = LeastLatency(MostForBudget(10.0), 4.0)
    v = Variant("one", {}, ONE)
    assert (aim.replicas(v), aim.load(v, 52.0), aim.rate_at(4.0)) == (3, 4.0, 4.0)
    assert (aim.bound(v, 4.0), aim.bound(v, 3.9)) == (0.0, float("inf"))
    assert LeastLatency(MostTraffic(5), 4.0).replicas(Variant("two", {}, {**ONE, "tp": 2})) == 2
    assert [aim.admits(Variant("", {}, {**ONE, "replicas": n}), v) for n in (3, 4)] == [True, False]


def test_a_row_over_the_budget_has_no_price() -> None:
    row = {"gpus": 3, "usd_per_hour": 9.0, "latency": {"ms": 40.0}}
    assert sure_price(LeastLatency(MostForBudget(9.0), 4.0), row) == 40.0
    assert sure_price(LeastLatency(MostForBudget(8.9), 4.0), row) == float("inf")
    assert sure_price(LeastLatency(MostTraffic(2), 4.0), row) == float("inf")


class Timed:
    """Study of deployments whose latencies are known; one above 200 ms misses the SLO."""

    def __init__(self, ms: dict[str, float]) -> None:
        self.ms, self.runs = ms, 0
        self.judged: dict[tuple[str, float], Any] = {}
        self.outcomes: dict[tuple[str, float], Any] = {}
        self.errors: dict[str, str] = {}

    def run_at(self, key: str, wanted: list[tuple[Variant, float]]) -> None:
        for v, load in wanted:
            self.runs += 1
            self.judged[v.label, load] = SimpleNamespace(carried=self.ms[v.label] <= 200)
            self.outcomes[v.label, load] = [SimpleNamespace(values={"ttft_p99": self.ms[v.label]})]


def test_each_deployment_runs_once_and_the_best_change_is_kept() -> None:
    """b is 10 % faster than a, c 20 %; d is the fastest by far, but misses the SLO; from c, e gains half a percent."""
    study = Timed({"a": 100.0, "b": 90.0, "c": 80.0, "d": 201.0, "e": 79.6})
    race = LatencyRace(study, LeastLatency(MostForBudget(9.0), 4.0))  # type: ignore[arg-type]
    near = {"a": "bcd", "c": "ae"}
    every = {label: Entrant({}, Variant(label, {}, {})) for label in study.ms}
    race.measure([(every["a"], 4.0)], 0.01)

    def neighbors(e: Entrant, _: Race) -> list[Entrant]:
        return [every[label] for label in near[e.variant.label]]

    assert [e.variant.label for e in climb(race, [every["a"]], neighbors, 0.01, 5)] == ["c"]
    assert race.prices == {"a": 100.0, "b": 90.0, "c": 80.0, "d": float("inf"), "e": 79.6}
    assert study.runs == 5


def test_an_interval_of_a_ratio_is_paired_by_seed() -> None:
    """Twice as long at each seed is surely twice as long, however much seeds differ."""
    rows = {"one": [10.0, 20.0, 40.0], "two": [20.0, 40.0, 80.0], "log": [30.0]}
    outcomes = {(k, 1): [SimpleNamespace(values={"ttft_p99": ms}) for ms in each] for k, each in rows.items()}
    study: Any = SimpleNamespace(outcomes=outcomes)
    one, two, log = ({"label": label, "replicas": 1} for label in rows)
    assert ratio_interval(study, one, two, "ttft_p99") == pytest.approx((2.0, 2.0))
    assert ratio_interval(study, log, log, "ttft_p99") is None
    assert latency(study, log, "ttft_p99") == {"metric": "ttft_p99", "ms": 30.0, "low": None, "high": None}
    found = latency(study, two, "ttft_p99")
    half = 4.302653 * np.std([20, 40, 80], ddof=1) / 3**0.5  # t of two degrees of freedom
    assert (found["low"], found["high"]) == (max(0.0, found["ms"] - half), pytest.approx(found["ms"] + half))
    assert ratio_words(1.1, 1.3) == "; 95 % interval of the difference +10.0 to +30.0 %"
    assert ratio_words(0.9, 1.3) == "; 95 % interval of the difference -10.0 to +30.0 %, so it is not decided"


def test_the_least_latency_within_a_budget_is_that_of_simulations_of_all() -> None:
    """$7 buy two H100 or seven L40S, $2.50 two L40S and no H100."""
    found = ask(budget=7.0)
    best = found["recommendation"]
    assert (best["settings"]["gpu"], best["settings"]["replicas"]) == ("h100", 2)
    assert best["aim"] == "least latency for the price"
    [row] = [row for row in found["rows"] if row["label"] == best["first"]]
    assert row["usd_per_hour"] == 6.0
    assert row["values"]["ttft_p99"] == pytest.approx(best["latency"]["ms"])
    plain = {k: v for k, v in ASKED.items() if k not in ("gpu", "jobs", "replicates", "tolerance", "intervals")}
    ms = {}
    for gpu, replicas in (("h100", 2), ("l40s", 7), ("h100", 1)):
        run = servesim.simulate(**{**plain, "requests": 2_000}, gpu=gpu, replicas=replicas)
        ms[gpu, replicas] = run.summary["latency_ms"]["ttft"]["p99"]
    assert ms["h100", 2] == min(ms.values())
    assert best["latency"]["ms"] == pytest.approx(ms["h100", 2], rel=0.1)
    cheap = ask(budget=2.5, slo="ttft:p99<2s")["recommendation"]
    assert (cheap["settings"]["gpu"], cheap["settings"]["replicas"]) == ("l40s", 2)


def test_gpus_and_a_rate_ask_for_the_least_latency_of_so_many_gpus() -> None:
    found = ask(gpus=3, gpu="h100")
    assert found["recommendation"]["settings"]["replicas"] == 3
    assert found["model_error"] is None
    assert found["recommendation"]["sure"] == [
        "The model's error is left out (--no-intervals): intervals of latencies, if any, are over seeds alone."
    ]


def test_a_model_without_error_has_the_simulated_latency_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Factors, "at", lambda self, share: 1.0)
    found = ask(gpus=1, gpu="h100", intervals=True)
    latency = found["recommendation"]["latency"]
    assert latency["model_error"]["low"] == latency["model_error"]["high"] == latency["ms"]
    assert found["model_error"]["runs"] == 2 * len(found["rows"]) * 2  # two ends, two seeds
    assert [row["model_error"] for row in found["rows"]] == [None] * len(found["rows"])  # that is of GPUs or rates
    assert "none of a p99" in found["recommendation"]["sure"][-1]


class Loaded:
    """Study whose p99 is 10 ms per request/s, and whose queue grows above 30 requests/s."""

    variants = (Variant("a", {}, ONE), Variant("b", {}, ONE))

    def __init__(self) -> None:
        self.measuring = SimpleNamespace(outcome=self.outcome)

    def further(self, asked: list[Any]) -> list[list[float]]:
        return [[settings["rate"]] for _, settings, _ in asked]

    def outcome(self, rate: float) -> Any:
        return SimpleNamespace(values={"ttft_p99": 10 * rate}, unstable=rate > 30)


@pytest.mark.parametrize(
    ("factor", "holds", "said"),
    [
        (1.5, True, "a stays faster than b even if its TTFT is 50 % longer"),
        (2.0, False, "TTFT p99 is 160.0 ms then, not 100"),
        (10.0, False, "its queue grows without bound"),
        (None, None, "a against b: the model's error is not known: too few pairs"),
    ],
)
def test_a_server_slower_by_f_has_f_times_the_latency_at_f_times_the_rate(
    factor: float | None, holds: bool | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a has 40 ms at 4 requests/s. Half as slow: 20 ms at 2, so 10 ms; twice: 80 ms at 8, so 160 ms; 1.5 times: 90 ms,
    which is less than the 100 ms of b."""
    ends = (Stretch.even(0.5), Stretch.even(2.0))
    monkeypatch.setattr(
        CapacityError, "stretches_of", lambda self, row: self.sides.setdefault(row["label"], "") or ends
    )
    spread = "too few pairs" if factor is None else dict.fromkeys(PAIRED, Spread("size", factor, "", ()))
    monkeypatch.setattr(latency_error, "spreads_of", lambda one, other: spread)
    rows: list[dict[str, Any]] = [
        {"label": label, "replicas": 1, "rate": 4.0, "latency": {"metric": "ttft_p99", "ms": ms}}
        for label, ms in (("a", 40.0), ("b", 100.0))
    ]
    study: Any = Loaded()
    error = latency_error.LatencyError(study, rows, "ttft_p99").add()
    assert (rows[0]["latency"]["model_error"]["low"], rows[0]["latency"]["model_error"]["high"]) == (10.0, 160.0)
    (decision,) = error["decisions"]
    assert decision["holds"] is holds
    assert said in decision["says"]
    assert error["runs"] == (4 if factor is None else 5)
    name = "a: TTFT p99 is 10.00 ms to 160.0 ms (80 % interval from the model's error, propagated, not validated)"
    assert latency_error.sure_words(rows)[0] == name


def test_a_latency_whose_error_is_not_known_says_why() -> None:
    bars = {"low": None, "high": None, "level": 0.8, "says": "none: no measured server uses it"}
    row = {"label": "a", "latency": {"metric": "ttft_p99", "model_error": bars}}
    said = latency_error.sure_words([row])[0]
    assert said == "a: TTFT p99: the model's error is not known: no measured server uses it"


def test_the_latency_asked_for_is_minimized() -> None:
    found = ask(gpus=1, gpu="h100", slo="tpot:p99<50ms,ttft:p99<200ms", latency="tpot")
    assert found["recommendation"]["latency"]["metric"] == "tpot_p99"
    assert "TPOT p99 is" in found["answer"]


def test_a_budget_that_is_too_small_for_the_rate_recommends_nothing() -> None:
    found = ask(budget=3.0, rate=150.0)
    assert found["recommendation"] is None
    assert found["answer"].startswith("No deployment sustains 150 requests/s")
