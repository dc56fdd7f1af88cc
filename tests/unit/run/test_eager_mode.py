"""Eager mode: a step takes at least its launches, whatever engine and host terms it is priced with."""

from __future__ import annotations

from typing import Any

import pytest

from servesim import simulate
from servesim.errors import UserError

ALONE: dict[str, Any] = {
    "trace": "synth:rate=1,prompt=64,output=16",
    "requests": 1,
    "model": "llama-3.1-8b",
    "gpu": "h100",
}


def of(engine: dict[str, Any], **more: Any) -> dict[str, Any]:
    summary: dict[str, Any] = simulate(**{**ALONE, **more}, engine=engine).summary
    return summary


@pytest.mark.parametrize(("preset", "kernels"), [("vllm", 324), ("sglang", 324), ("tensorrt-llm", 260)])
def test_a_decode_step_takes_its_launches_and_what_the_gpu_waits_for(preset: str, kernels: int) -> None:
    """26 us a kernel; 10 kernels a layer, 8 with TensorRT-LLM, and 4 for all."""
    graphs, eager = (of(engine, preset=preset) for engine in ({}, {"enforce_eager": True}))
    terms = eager["provenance"]["host_terms"]
    waits = terms["exposed"] + terms["exposed_per_sampled"]
    assert eager["latency_ms"]["tpot"]["mean"] == pytest.approx((kernels * 26_000 + waits) / 1e6)
    assert graphs["latency_ms"]["tpot"]["mean"] < eager["latency_ms"]["tpot"]["mean"]


def test_steps_that_compute_longer_than_they_are_launched_take_as_long_as_ever() -> None:
    long = {"trace": "synth:rate=1,prompt=8000,output=1"}
    graphs, eager = (of(engine, **long)["latency_ms"]["ttft"]["mean"] for engine in ({}, {"enforce_eager": True}))
    assert eager == graphs


def test_without_host_time_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"engine\.enforce_eager adds host time, but host is none"):
        of({"enforce_eager": True}, host="none")


def test_its_runs_have_no_error_bars() -> None:
    assert "no measured server runs without CUDA graphs" in str(of({"enforce_eager": True})["intervals"])
