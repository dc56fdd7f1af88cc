"""A recorded day with a peak: capacity, compare and run say the same of the whole trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servesim

DAY = Path(__file__).resolve().parents[3] / "shared/traces/user_logs/day.csv"
SERVER: dict[str, Any] = {
    "trace": str(DAY),
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "slo": "ttft:1000,tpot:50",
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DAY.is_file(), reason="the log with a peak is not here")]


def share(**settings: Any) -> float:
    return float(servesim.simulate(**SERVER, **settings).summary["goodput"]["slo_attainment"])


@pytest.mark.parametrize("replicates", [1, 4])
def test_what_is_offered_for_a_rate_passes_when_it_is_run(replicates: int) -> None:
    found = servesim.capacity(**SERVER, rate=4.4, max_replicas=8, replicates=replicates).iloc[0]
    assert found["replicas"] == 2
    taken = share(rate=4.4, replicas=2)
    assert found["attainment"] == taken >= 0.99
    assert found["attainment_low"] <= taken <= found["attainment_high"]
    assert share(rate=4.4, replicas=1) < 0.5  # one server: 47 % within the limits


@pytest.mark.parametrize("rate", [4.4, None])
def test_compare_values_the_whole_trace_as_a_run_does(rate: float | None) -> None:
    at = {} if rate is None else {"rate": rate}
    frame = servesim.compare(**SERVER, **at, kv="prefix-hash,paged", metrics="ttft_p99,slo_attainment")
    values = frame[frame["variant"] == "prefix-hash"].set_index("metric")["value"]
    summary = servesim.simulate(**SERVER, **at).summary
    assert values["ttft_p99"] == pytest.approx(summary["latency_ms"]["ttft"]["p99"])
    assert values["slo_attainment"] == pytest.approx(summary["goodput"]["slo_attainment"])


@pytest.mark.parametrize("replicates", [1, 4])
def test_the_highest_rate_holds_for_the_whole_trace(replicates: int) -> None:
    found = servesim.capacity(**SERVER, replicates=replicates).iloc[0]
    assert share(rate=found["rate"]) >= 0.99 > share(rate=1.1 * found["rate"])
    assert found["rate_low"] <= found["rate"] <= found["rate_high"]
    assert found["rate"] < 5  # not the 14.67/s of windows that are stretched one by one
