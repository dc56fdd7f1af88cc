"""Rate limits with error bars beside recorded servers: what a saturated closed loop got through, and open loops that
were stable. Nothing of these servers was fitted to: their model or version is among those left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.experiments.recording import RecordedRun
from servesim.experiments.recording_formats import read_folder
from servesim.run.stretched import SAYS

pytestmark = pytest.mark.slow

QWEN: dict[str, Any] = {
    "model": "qwen3-14b",
    "gpu": "h100",
    "engine": {"version": "0.23.0", "num_gpu_blocks": 18038},  # stated in its server_config.json
}
BUSY, CALM = "groundtruth/busy/residency_qwen3_14b_h100", "groundtruth/residency_qwen3_14b_h100"
LOOPS = [("w5_sweep__agg24", "w5_sweep__agg6"), ("w7_sweep__agg18", "w7_sweep__agg6")]
"""A saturated loop of 256 clients, and an open one of the same lengths at 6 requests/s."""


def recorded(shared_data: Callable[[str], Path], folder: str, name: str) -> RecordedRun:
    return next(run for run in read_folder(shared_data(f"{folder}/{name}.csv.gz").parent) if run.name == name)


def throughput(run: RecordedRun) -> float:
    """Requests/s that end between the first and the last tenth of all ends."""
    ends = run.arrival_ns / 1e9 + run.e2el_ms / 1e3
    low, high = np.quantile(ends, (0.1, 0.9))
    return float(((ends > low) & (ends <= high)).sum() / (high - low))


def closed_loop(prompt: list[int], output: list[int], clients: int, **server: Any) -> dict[str, Any]:
    """The interval of the throughput of a closed loop."""
    columns = {"arrival_ns": np.zeros(len(prompt), np.int64), "prompt_len": prompt, "output_len": output}
    trace = servesim.load_trace(pd.DataFrame(columns))
    loop = {"rate": "inf", "clients": {"max_concurrency": clients}, "propagate": True}
    bars = servesim.simulate(trace=trace, **loop, **server).summary["intervals"]["propagated"]
    assert bars["says"] == SAYS
    return dict(bars["request_throughput"])


@pytest.mark.parametrize(("busy", "calm"), LOOPS)
def test_what_a_saturated_server_gets_through_lies_inside(
    busy: str, calm: str, shared_data: Callable[[str], Path]
) -> None:
    run = recorded(shared_data, BUSY, busy)
    bars = closed_loop(run.prompt_len[:3000].tolist(), run.output_len[:3000].tolist(), 256, **QWEN)
    measured = throughput(run)
    assert bars["low"] < measured < bars["high"]
    assert bars["value"] == pytest.approx(measured, rel=0.04)  # 17.5 beside 17.4, 8.2 beside 8.4


@pytest.mark.parametrize(("busy", "calm"), LOOPS)
def test_the_highest_rate_of_capacity_holds_what_was_sustained(
    busy: str, calm: str, shared_data: Callable[[str], Path]
) -> None:
    """Limits so wide that what ends the search is a queue without end."""
    run = recorded(shared_data, CALM, calm)
    columns = {
        "arrival_ns": run.arrival_ns - run.arrival_ns[0],
        "prompt_len": run.prompt_len,
        "output_len": run.output_len,
    }
    asked = {"slo": "e2el:60000", "replicates": 1, "tolerance": 0.05, "jobs": 1}
    found = servesim.capacity(trace=servesim.load_trace(pd.DataFrame(columns)), **asked, **QWEN)
    (row,) = found.attrs["document"]["rows"]
    bars = row["model_error"]
    assert bars["says"] == SAYS
    assert bars["low"] < throughput(recorded(shared_data, BUSY, busy)) < bars["high"]
    rate = (len(run) - 1) / np.ptp(run.arrival_ns) * 1e9
    last = run.ttft_ms[-len(run) // 10 :]
    assert np.mean(last) < 1.2 * np.mean(run.ttft_ms)  # it was stable
    assert rate < bars["high"]


@pytest.mark.parametrize("name", ["gptoss120b_h200/none/gt_c4", "gptoss120b_h200/none/gt_c64"])
def test_throughput_of_closed_loops_below_saturation_lies_inside(name: str, shared_data: Callable[[str], Path]) -> None:
    record = json.loads(shared_data(f"groundtruth/{name}.json").read_text())
    count = min(1280, record["completed"])
    bars = closed_loop(
        record["input_lens"][:count],
        record["output_lens"][:count],
        record["max_concurrency"],
        model="gpt-oss-120b",
        gpu="h200",
        engine={"version": "0.22.0"},
    )
    assert bars["low"] < record["request_throughput"] < bars["high"]
