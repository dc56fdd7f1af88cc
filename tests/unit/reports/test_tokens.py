"""Steps and tokens worked out from the records are those of the run, to the nanosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.metrics.distribution import describe
from servesim.reports.tokens import Tokens

WORKLOAD: dict[str, Any] = {
    "trace": "synth:rate=80,prompt=lognormal(p50=400,p95=1500),output=lognormal(p50=40,p95=150)",
    "requests": 120,
    "model": "llama-3.2-1b",
    "gpu": "h100",
}
TIGHT = {"num_gpu_blocks": 400}
CASES: dict[str, dict[str, Any]] = {
    "asynchronous": {},
    "synchronous": {"engine": {"async_scheduling": False}},
    "preempting": {"engine": TIGHT, "replicas": 2},
    "few tokens a step": {"scheduler": "vllm:max_num_batched_tokens=64", "engine": {"async_scheduling": False}},
    "two stages": {"pp": 2},
    "speculation": {"model": "llama-3.1-8b", "speculation": "eagle3:k=3"},
    "static batches": {"scheduler": "static", "kv": "contiguous"},
    "no host terms": {"host": "none"},
}


@pytest.mark.medium
@pytest.mark.parametrize("case", CASES)
def test_gaps_of_the_tokens_are_those_the_run_counted(case: str) -> None:
    result = servesim.simulate(**{**WORKLOAD, **CASES[case]})
    tokens = Tokens(result)
    gaps = np.concatenate([np.diff(tokens.of(i)) for i in range(len(result.requests))])
    found, counted = describe(gaps, 1e6), result.summary["latency_ms"]["itl"]
    assert found is not None
    for key in ("count", "min", "p50", "p99", "max"):
        assert found[key] == counted[key], key
    assert found["mean"] == pytest.approx(counted["mean"], rel=1e-12)
    assert tokens.steps.exact


@pytest.mark.parametrize("case", ["asynchronous", "synchronous", "preempting"])
def test_steps_written_out_are_those_of_plain_stepping(case: str) -> None:
    fast = servesim.simulate(**{**WORKLOAD, **CASES[case]})
    plain = servesim.simulate(**{**WORKLOAD, **CASES[case]}, mode="reference")
    assert len(fast.steps) < len(plain.steps)
    steps = Tokens(fast).steps
    expected = plain.steps.sort_values(["replica", "step"])
    assert steps.step.tolist() == expected["step"].tolist()
    assert steps.begin_ns.tolist() == expected["start_ns"].tolist()
    assert steps.end_ns.tolist() == expected["end_ns"].tolist()
    order = ["row", "ns"]
    pd.testing.assert_frame_equal(
        fast.deliveries.sort_values(order, ignore_index=True), plain.deliveries.sort_values(order, ignore_index=True)
    )


def test_a_preempted_request_is_on_record_with_the_gap_it_had() -> None:
    result = servesim.simulate(**WORKLOAD, **CASES["preempting"])
    preempted = result.requests[(result.requests["num_preemptions"] > 0) & (result.requests["output_len"] > 1)]
    assert len(preempted) > 0
    late = result.deliveries
    assert (late["ns"] > late["since_ns"]).all()
    assert set(late["row"]) <= set(preempted["row"])


def test_without_the_cost_model_the_time_of_a_row_is_shared_evenly() -> None:
    result = servesim.simulate(**WORKLOAD)
    tokens = Tokens(result)
    tokens._scenario = tokens._scenario.model_copy(update={"model": "gone/config.json"})
    steps = tokens.steps
    assert not steps.exact
    assert len(steps.row) == result.summary["engine"]["steps"]
    last = np.flatnonzero(np.diff(steps.row, append=-1) != 0)
    assert steps.end_ns[last].tolist() == result.steps["end_ns"].tolist()
    assert (np.diff(steps.end_ns) > 0).all()
