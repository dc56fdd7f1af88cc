"""Recorded busy servers against simulated ones: saturated, or with large decode batches on other models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from servesim.experiments.recording_formats import read_run
from servesim.experiments.validate import compare

CLIENTS = 256
"""Requests that the client of the saturated runs kept in flight."""


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["w5_sweep__agg24", "w7_sweep__agg18"])
def test_a_saturated_server_does_what_the_real_one_did(cell: str, shared_data: Callable[[str], Path]) -> None:
    """The steps of the first were used to fit the host terms, the second was not used."""
    path = shared_data(f"groundtruth/busy/residency_qwen3_14b_h100/{cell}.csv.gz")
    run = read_run(path, path.parent)
    assert run is not None
    error = compare(replace(run, concurrency=CLIENTS)).error
    assert error is not None
    assert abs(error["output_throughput"]) <= 0.03
    assert abs(error["tpot"]["mean"]) <= 0.03
    assert abs(error["e2el"]["mean"]) <= 0.04


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "model", "bound"),
    [
        ("blis_training_h100/20260217-155451-llama-2-7b-tp1-codegen", None, 0.06),
        ("busy/blis_training_h100/20260217-231439-llama-2-7b-tp1-general", None, 0.06),
        ("busy/blis_training_h100/20260218-150304-codellama-34b-tp2-general", None, 0.06),
        ("busy/blis_training_h100/20260218-120914-mixtral-8x7b-v0-1-tp2-codegen", "mixtral-8x7b", 0.12),
    ],
)
def test_time_per_token_of_other_models_and_an_older_version(
    run: str, model: str | None, bound: float, shared_data: Callable[[str], Path]
) -> None:
    path = shared_data(f"groundtruth/{run}.csv.gz")
    recorded = read_run(path, path.parent)
    assert recorded is not None
    server = replace(recorded.server, model=model or recorded.server.model)
    error = compare(replace(recorded, server=server)).error
    assert error is not None
    assert abs(error["tpot"]["mean"]) <= bound
