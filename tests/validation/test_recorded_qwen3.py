"""Recorded runs of a real vLLM server (Qwen3-14B, one H100) against simulated ones, one set of host terms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servesim.experiments.recording_formats import read_run
from servesim.experiments.validate import compare

CELLS = (
    "sweep_rate__agg_2rps__vanilla",
    "sweep_rate__agg_4rps__vanilla",
    "w5_sweep__agg6",
    "w7_sweep__agg6",
)


@pytest.mark.parametrize("cell", CELLS)
def test_latencies_are_those_of_the_real_server(cell: str, shared_data: Callable[[str], Path]) -> None:
    path = shared_data(f"groundtruth/residency_qwen3_14b_h100/{cell}.csv.gz")
    run = read_run(path, path.parent)
    assert run is not None
    got = compare(run)
    assert got.host == "vllm-0.23-h100"
    assert got.error is not None
    for metric, mean in (("ttft", 0.08), ("tpot", 0.02), ("e2el", 0.02)):
        assert abs(got.error[metric]["mean"]) <= mean, (metric, got.error[metric])
        assert abs(got.error[metric]["p99"]) <= 0.10, (metric, got.error[metric])
    assert abs(got.error["output_throughput"]) <= 0.01
