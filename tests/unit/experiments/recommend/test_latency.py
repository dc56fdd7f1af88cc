"""Least latency for a price: a question that gives both a rate and a budget, or a number of GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import servesim
from servesim.experiments.axes import Variant
from servesim.experiments.recommend.aims import LeastLatency, MostForBudget, MostTraffic
from servesim.experiments.recommend.budget import latency, ratio_interval
from servesim.experiments.recommend.latency import LatencyRace
from servesim.experiments.recommend.race import Entrant, Race
from servesim.experiments.recommend.words import ratio_words, sure_price
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

    assert race.improved(every["a"], neighbors, 5).variant.label == "c"
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
    found = ask(gpus=3, gpu="h100", intervals=True)
    assert found["recommendation"]["settings"]["replicas"] == 3
    assert found["model_error"] is None  # it is known for rates and replicas, not for latencies


def test_the_latency_asked_for_is_minimized() -> None:
    found = ask(gpus=1, gpu="h100", slo="tpot:p99<50ms,ttft:p99<200ms", latency="tpot")
    assert found["recommendation"]["latency"]["metric"] == "tpot_p99"
    assert "TPOT p99 is" in found["answer"]


def test_a_budget_that_is_too_small_for_the_rate_recommends_nothing() -> None:
    found = ask(budget=3.0, rate=150.0)
    assert found["recommendation"] is None
    assert found["answer"].startswith("No deployment sustains 150 requests/s")
