"""Runs of hundreds of steps, which fast mode handles as arrays."""

from __future__ import annotations

from typing import Any

import pytest

import servesim

SETTINGS: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h200", "requests": 12}
SUMS = (
    "k", "elapsed_ns", "gpu_ns", "host_ns", "kv_used_ns", "kv_internal_ns",
    "measured_ns", "interpolated_ns", "extrapolated_ns", "roofline_ns",
)  # fmt: skip
"""Columns of the step table whose sums do not depend on how steps share rows."""
SPARSE = "synth:arrivals=poisson,rate=0.8,prompt=600,output=400"


@pytest.mark.parametrize(
    "more",
    [
        {"kv": "paged"},
        {"kv": "prefix-hash", "replicas": 2, "router": "round-robin"},
        {"kv": "paged", "engine": {"async_scheduling": False}},
        {"kv": "paged", "host": "none"},
        {"kv": "paged", "cluster": {"report_every_s": 0.7}, "replicas": 2, "router": "least-outstanding"},
    ],
    ids=["paged", "replicas", "synchronous", "no-host", "views"],
)
def test_long_runs_have_the_records_of_single_steps(more: dict[str, Any]) -> None:
    fast, reference = (
        servesim.simulate({**SETTINGS, **more, "trace": SPARSE, "mode": mode}) for mode in ("fast", "reference")
    )
    assert fast.steps.k.max() > 100
    assert fast.requests.equals(reference.requests)
    assert {**fast.summary, "scenario": 0} == {**reference.summary, "scenario": 0}
    for name in SUMS:
        assert fast.steps[name].sum() == reference.steps[name].sum(), name
