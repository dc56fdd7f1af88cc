"""Warnings of the runs of an experiment reach its document: what one run would have said, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servesim

TWO = "time,prompt,output,model\n" + "".join(
    f"2026-11-02T09:00:{i:02}Z,{200 + i},40,{'ab'[i % 2]}\n" for i in range(40)
)
MODELS = "the trace requests 2 models (20 for a, 20 for b), but llama-3.1-8b serves all of them"


@pytest.fixture
def log(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "two.csv").write_text(TWO)
    return {"trace": str(tmp_path / "two.csv"), "model": "llama-3.1-8b", "gpu": "h100"}


def test_a_comparison_warns_of_what_its_runs_warn_of(log: dict[str, Any]) -> None:
    warnings = servesim.compare(**log, scheduler=["vllm", "sarathi"], replicates=1).attrs["document"]["warnings"]
    assert [warning for warning in warnings if MODELS in warning] == [
        f"{MODELS}: define a pool for each model, or keep only one model's requests (--shape where:model=a)"
    ]


def test_a_sweep_and_capacity_do_so_too(log: dict[str, Any]) -> None:
    for frame in (
        servesim.sweep(**log, tp=[1, 2], replicates=1),
        servesim.capacity(**log, slo={"ttft": 500}, replicates=1),
    ):
        assert sum(warning.startswith(MODELS) for warning in frame.attrs["document"]["warnings"]) == 1


def test_a_warning_of_some_variants_names_them(log: dict[str, Any]) -> None:
    frame = servesim.compare(**log, scheduler=["vllm", "vllm:policy=priority"], replicates=1)
    (found,) = (w for w in frame.attrs["document"]["warnings"] if "policy=priority has little effect" in w)
    assert found.startswith("vllm:policy=priority: scheduler policy=priority")
