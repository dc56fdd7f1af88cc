"""Comparisons that must find nothing, and comparisons that must find 5 %, from simulated runs.

The runs are simulated once, 60 requests each, one a seed. A null comparison sets the policy on some of the seeds
against the same policy on others. The figures stand in docs/comparing.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from servesim import simulate
from servesim.cost.host import host_terms
from servesim.experiments.metrics import METRICS
from servesim.experiments.run_metrics import Run, measure
from servesim.experiments.statistics import interval, replicates_needed, sign_flip_p, verdict

pytestmark = pytest.mark.slow

Bank = dict[str, NDArray[np.float64]]
"""Logarithm of a metric by seed."""

NAMES = ("ttft_p99", "tpot_mean", "e2el_mean", "output_throughput")
SEEDS, SLOWER_SEEDS = 240, 80
MARGIN = float(np.log1p(0.02))
SLOWER_STEP_NS = 92_000
"""What planted host time adds to each step: about 5 % of the mean end-to-end latency here."""


def bank(seeds: int, **settings: Any) -> Bank:
    values: dict[str, list[float]] = {name: [] for name in NAMES}
    for seed in range(seeds):
        result = simulate(
            trace="synth:rate=60,arrivals=gamma(cv=2),prompt=lognormal(300,900),output=lognormal(25,60)",
            **{"requests": 60, "seed": seed, "model": "llama-3.2-1b", "gpu": "h200", "kv": "paged", **settings},
        )
        columns = {k: result.requests[k].to_numpy(dtype=float) for k in result.requests if k not in ("reason", "name")}
        found = measure(Run(result.summary, columns), [METRICS[name] for name in NAMES], 0.1, 0.1)
        for name in NAMES:
            values[name].append(float(np.log(found[name])))
    return {name: np.array(column) for name, column in values.items()}


@pytest.fixture(scope="module")
def runs() -> Bank:
    return bank(SEEDS)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """The same seeds on an engine that spends a little more time on the host in each step."""
    terms = host_terms("vllm", "h200")
    assert terms is not None
    path: Path = tmp_path_factory.mktemp("host") / "slower.yaml"
    path.write_text(yaml.safe_dump(terms.to_dict() | {"exposed": terms.exposed + SLOWER_STEP_NS}))
    return bank(SLOWER_SEEDS, host=str(path))


@pytest.mark.parametrize(("method", "n"), [("t", 5), ("t", 10), ("studentized", 15), ("bca", 30)])
def test_intervals_of_a_thousand_null_comparisons_cover_zero_as_often_as_they_say(
    runs: Bank, method: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servesim.experiments.statistics.RESAMPLES", 999)
    rng = np.random.default_rng(2026)
    covered = dict.fromkeys(NAMES, 0)
    for _ in range(1000):
        seeds = rng.permutation(SEEDS)
        for name in NAMES:
            low, high = interval(runs[name][seeds[:n]] - runs[name][seeds[n : 2 * n]], method)
            covered[name] += low <= 0 <= high
    print(f"{method} of {n} replicates: zero covered in {covered} of 1,000 null comparisons")
    assert all(930 <= count <= 970 for count in covered.values()), covered


def test_null_comparisons_are_seldom_called_better_or_worse(runs: Bank) -> None:
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(400):
        seeds = rng.permutation(SEEDS)
        d = runs["e2el_mean"][seeds[:10]] - runs["e2el_mean"][seeds[10:20]]
        alarms += verdict(d, interval(d), sign_flip_p(d), "lower", MARGIN) in ("better", "worse")
    print(f"false alarms: {alarms} of 400")
    assert alarms <= 33  # 5 % and three standard errors


def test_a_planted_effect_is_found_with_the_replicates_announced(runs: Bank, slower: Bank) -> None:
    """Same seeds, common random numbers: five pilot replicates say how many are needed."""
    name = "e2el_mean"
    d = slower[name] - runs[name][:SLOWER_SEEDS]
    assert np.expm1(d.mean()) == pytest.approx(0.05, abs=0.01)
    rng = np.random.default_rng(5)
    found, announced = 0, []
    for _ in range(100):
        seeds = rng.permutation(SLOWER_SEEDS)
        n = replicates_needed(d[seeds[:5]], MARGIN)
        assert n is not None
        announced.append(n)
        fresh = d[seeds[5 : 5 + n]]
        found += verdict(fresh, interval(fresh), sign_flip_p(fresh), "lower", MARGIN) == "worse"
    print(f"planted {np.expm1(d.mean()):.1%}, paired: found in {found} of 100, {np.median(announced):.0f} replicates")
    assert found >= 80


def test_a_planted_effect_is_found_between_different_seeds_too(runs: Bank) -> None:
    """Without pairing the chance of the trace is in the way, and many more replicates are announced."""
    rng = np.random.default_rng(11)
    effect = float(np.log(1.05))
    found, announced = 0, []
    for _ in range(100):
        seeds = rng.permutation(SEEDS)
        values = runs["tpot_mean"]
        pilot = values[seeds[:15]] - values[seeds[15:30]]
        n = replicates_needed(pilot - pilot.mean() + effect, MARGIN)
        assert n is not None
        announced.append(n)
        assert 30 + 2 * n <= SEEDS
        d = values[seeds[30 : 30 + n]] + effect - values[seeds[30 + n : 30 + 2 * n]]
        found += verdict(d, interval(d), sign_flip_p(d), "lower", MARGIN) == "worse"
    print(f"planted 5 %, unpaired: found in {found} of 100, {np.median(announced):.0f} replicates announced")
    assert found >= 80
