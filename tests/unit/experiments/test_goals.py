"""Goals of an SLO: limits that hold jointly, each by itself, and for the requests of a class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from servesim.experiments.capacity import capacity
from servesim.experiments.goals import goals_of
from servesim.experiments.outcome import Measuring
from servesim.experiments.replicates import Replicates
from servesim.experiments.run_metrics import Run
from servesim.metrics.requests import MS
from servesim.run.scenario import Scenario

pytestmark = pytest.mark.feature("classes")

BASE = {"trace": "synth:", "model": "m", "gpu": "g"}


def goals(**slo: Any) -> list[Any]:
    return goals_of(Scenario.of(BASE | slo), 0.99)


def test_percentiles_hold_each_for_the_requests_of_their_class() -> None:
    found = goals(
        slo="ttft:p99<1s,tpot<50ms", slo_classes={"chat": "ttft:p95<200ms,tpot<30ms", "batch": "e2el:p90<1min"}
    )
    assert [goal.text for goal in found] == [
        "99 % of other requests within TPOT 50 ms; chat TPOT 30 ms",
        "99 % of other requests within TTFT 1 s",
        "95 % of chat requests within TTFT 200 ms",
        "90 % of batch requests within E2EL 60 s",
    ]


def test_a_scenario_with_percentiles_of_classes_reads_back_as_itself() -> None:
    scenario = Scenario.of(BASE | {"slo_classes": "{gold: 'ttft:p95<0.3s', tin: {tpot: 50ms}}"})
    assert scenario.slo_classes == {"gold": {"ttft": 300.0}, "tin": {"tpot": 50.0}}
    assert scenario.slo_class_percentiles == {"gold": {"ttft": 95.0}}
    assert Scenario.of(scenario.model_dump()) == scenario
    assert "slo_class_percentiles" not in Scenario.of(BASE | {"slo_classes": {"tin": "tpot:50"}}).model_dump()


def run(ttft_ms: list[float], classes: list[str]) -> Run:
    """A run in which request i arrives at i seconds and takes this long to its only token."""
    arrival = np.arange(len(ttft_ms)) * 1e9
    ttft = np.array(ttft_ms) * MS
    columns = {
        "row": np.arange(len(ttft_ms), dtype=np.float64),
        "arrival_ns": arrival,
        "last_token_ns": arrival + ttft,
        "ttft_ns": ttft,
        "tpot_ns": np.zeros(len(ttft_ms)),
        "prompt_len": np.full(len(ttft_ms), 10.0),
        "state": np.full(len(ttft_ms), 3.0),
    }
    summary = {
        "engine": {"gpu_busy_share": 1.0},
        "stability": {"unstable": False, "enough_requests": None},
        "requests": {"retries": 0},
        "scenario": {"tp": 1, "pp": 1, "replicas": 1, "usd_per_gpu_hour": 2.0},
    }
    return Run(summary, columns, classes)


def test_shares_of_a_class_are_of_its_requests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "done", property(lambda self: np.ones(len(self.columns["row"]), dtype=np.bool_)))
    monkeypatch.setattr(Run, "latency_ms", lambda self, name: self.columns[f"{name}_ns"] / MS)
    seen = run([100, 300, 900, 300, 1100, 100], ["chat", "chat", "", "chat", "", "chat"])
    found = goals(slo="ttft:p99<1s", slo_classes={"chat": "ttft:p50<200ms"})
    outcome = Measuring((), found, Replicates("seeds", ({"seed": 0},)), (0.0, 0.0), 10, 300).outcome(seen)
    # of the two others one is within 1 s; of four chats two within 200 ms
    assert outcome.shares == (0.5, 0.5)
    assert outcome.requests == 6


def test_shares_of_no_requests_are_unknown_served_or_alone() -> None:
    measuring = Measuring((), goals(slo="ttft:p99<1s"), Replicates("seeds", ({"seed": 0},)), (0.3, 0.3), 10, 300)
    seen = run([100, 100], ["", ""])
    assert np.isnan(
        [*measuring.outcome(seen).shares, *measuring.alone(seen, seen.columns["arrival_ns"], False).shares]
    ).all()


def test_capacity_binds_on_the_class_with_the_tight_percentile(tmp_path: Any) -> None:
    rows = [f"{i * 0.5},{8000 if i % 2 else 100},4,{'long' if i % 2 else 'short'}" for i in range(40)]
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_len,output_len,class\n" + "\n".join(rows) + "\n")
    asked = {"trace": str(trace), "model": "llama-3.1-8b", "gpu": "h200", "rate": 1, "intervals": False, "jobs": 1}
    passes = {"short": "ttft:p99<100ms", "long": "ttft:p99<10s"}
    frame = capacity(**asked, slo_classes=passes)
    assert frame["verdict"].tolist() == ["carries"]
    never = capacity(**asked, slo_classes=passes | {"long": "ttft:p99<100ms"})
    assert never["verdict"].tolist() == ["never"]
    assert never.attrs["document"]["settings"]["goals"][1]["text"] == "99 % of long requests within TTFT 100 ms"
