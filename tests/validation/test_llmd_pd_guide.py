"""llm-d's guide to prefill and decode apart: gpt-oss-120b on 16 H200, 45 requests/s of 5,000 and 250 tokens.

Measured figures are in ../shared/cluster.md 7c: 8 prefill replicas of one GPU and 2 decode replicas of 4, against 16
replicas of one behind a Kubernetes service. One factor of all times was fitted, to the mean end-to-end latency of the
16; everything else is a prediction."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import servesim

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (Path(__file__).parents[3] / "shared/cluster.md").is_file(), reason="no ../shared"),
]
FACTOR = 0.92
"""Measured over simulated time of a step, from the 16 alike."""


@cache
def means_ms(together: bool) -> dict[str, float]:
    """Return mean latencies at FACTOR of the simulated times: those at a rate that much lower, times it."""
    apart: dict[str, Any] = {"replicas": 16, "router": "random"} if together else {"pd": "8x1:2x4"}
    trace = f"synth:rate={45 * FACTOR},prompt=5000,output=250"
    summary = servesim.simulate(model="gpt-oss-120b", gpu="h200", trace=trace, requests=5400, **apart).summary
    return {name: summary["latency_ms"][name]["mean"] * FACTOR for name in ("ttft", "tpot", "e2el")}


def test_the_factor_is_that_of_the_16_alike() -> None:
    assert means_ms(True)["e2el"] == pytest.approx(6700, rel=0.02)
    assert means_ms(True)["tpot"] == pytest.approx(25, rel=0.1)


def test_apart_answers_are_as_much_faster_and_first_tokens_as_much_later_as_measured() -> None:
    found = means_ms(False)
    assert found["e2el"] == pytest.approx(2780, rel=0.2)
    assert found["tpot"] == pytest.approx(5.70, rel=0.2)
    assert found["ttft"] == pytest.approx(1157, rel=0.25)  # prefill is at 94 % of what it carries
    assert found["ttft"] > 2 * means_ms(True)["ttft"]
