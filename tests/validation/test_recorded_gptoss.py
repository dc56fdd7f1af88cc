"""A recorded vLLM server of gpt-oss-120b on one H200 under closed loops of 1 to 64 clients, without speculation.

Nothing here was fitted to it but which kernel runs its experts: host terms are those of another model on another
GPU, the kernel's times those of other experts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servesim.experiments.recording import RecordedRun
from servesim.experiments.recording_formats import read_folder
from servesim.experiments.validate import compare


@pytest.fixture(scope="module")
def runs(shared_data: Callable[[str], Path]) -> dict[str, RecordedRun]:
    return {run.name: run for run in read_folder(shared_data("groundtruth/gptoss120b_h200"))}


@pytest.mark.parametrize(
    "cell", ["sweep_c1", "sweep_c4", "sweep_c16", pytest.param("sweep_c64", marks=pytest.mark.slow), "gt_c4"]
)
def test_latencies_under_closed_loops_are_those_of_the_real_server(cell: str, runs: dict[str, RecordedRun]) -> None:
    got = compare(runs[f"none/{cell}"])
    assert got.error is not None
    print(cell, {metric: f"{got.error[metric]['mean']:+.1%}" for metric in ("ttft", "tpot", "e2el")})
    for metric, mean in (("ttft", 0.13), ("tpot", 0.04), ("e2el", 0.05)):
        assert abs(got.error[metric]["mean"]) <= mean, (metric, got.error[metric])
    assert abs(got.error["output_throughput"]) <= 0.05
