"""Requests that a router refuses: what becomes of them in metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

import servesim

LIVELY = Path(__file__).parents[2] / "support" / "lively.py"
"""Refuses every 11th decision with 429."""


@pytest.mark.parametrize("mode", ["fast", "reference"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_the_router_refuses_misses_every_limit_and_is_no_throughput(
    mode: str, stream: bool, tmp_path: Path
) -> None:
    """Of 33 requests, none of which waits, three are refused; the others meet any limit."""
    found = servesim.simulate(
        trace="synth:arrivals=constant,rate=2,prompt=64,output=4",
        requests=33,
        model="llama-3.1-8b",
        gpu="h200",
        replicas=2,
        router=f"{LIVELY}:Lively",
        slo="ttft:60000,e2el:60000",
        mode=mode,
        stream=stream,
        out=tmp_path / "out",
    ).summary
    requests, goodput = found["requests"], found["goodput"]
    assert (requests["arrived"], requests["completed"], requests["rejected"]) == (33, 30, 3)
    assert requests["rejection_reasons"] == {"refused by the router (429)": 3}
    assert (goodput["good_requests"], goodput["slo_attainment"]) == (30, 30 / 33)
    assert goodput["attainment_by_metric"] == {"ttft": 30 / 33, "e2el": 30 / 33}
    assert goodput["request_goodput"] == found["throughput"]["request_throughput"] == 30 / found["duration_s"]
    assert requests["output_tokens"] == 30 * 4
    assert found["latency_ms"]["ttft"]["count"] == 30
