"""A server with its times stretched: what is run in its place, and the figures of that run as it has them, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from servesim.experiments.metrics import METRICS
from servesim.run.scenario import Scenario
from servesim.run.stretched import Stretch

SLOWER = Stretch({"ttft": 2.0, "tpot": 1.5, "e2el": 1.25})
SERVER = {"trace": "synth:rate=8", "model": "llama-3.1-8b", "gpu": "h100"}


@pytest.mark.parametrize(
    ("name", "value", "stretched"),
    [
        ("ttft_p99", 100.0, 200.0),
        ("tpot_mean", 10.0, 15.0),
        ("queue_time_p99", 100.0, 125.0),  # no factor of its own: that of durations
        ("output_throughput", 50.0, 40.0),
        ("request_goodput", 5.0, 4.0),
        ("usd_per_million_tokens", 1.0, 1.25),
        ("slo_attainment", 0.9, 0.9),
    ],
)
def test_a_figure_takes_the_factor_of_its_own_kind(name: str, value: float, stretched: float) -> None:
    assert SLOWER.value(name, METRICS[name].becomes, value) == stretched


def test_what_is_no_matter_of_times_alone_has_no_rule() -> None:
    unknown = {name for name, metric in METRICS.items() if not metric.becomes}
    assert {"hit_rate", "acceptance_length", "preemptions_per_request"} <= unknown
    assert not any(name.startswith(("usd_per_million", "ttft", "output_throughput")) for name in unknown)


@pytest.mark.parametrize(("rate", "run"), [(8.0, 10.0), ("2x", "2.5x"), (None, "1.25x"), (math.inf, math.inf)])
def test_in_its_place_a_server_is_run_at_another_rate_under_shorter_limits(rate: Any, run: Any) -> None:
    classes = {"chat": {"tpot": 30.0}}
    scenario = Scenario.of({**SERVER, "slo": {"ttft": 500, "e2el": 2500}, **({} if rate is None else {"rate": rate})})
    assert SLOWER.settings(scenario) == {"rate": run, "slo": {"ttft": 250.0, "e2el": 2000.0}}
    assert SLOWER.classes(classes) == {"chat": {"tpot": 20.0}}
    assert SLOWER.settings(Scenario.of(SERVER), rate=4.0) == {"rate": 5.0}
