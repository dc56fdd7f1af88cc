"""Fixed batches on H100, as Argonne National Laboratory measured them in 2024 (vLLM and TensorRT-LLM, Llama-2 and
Llama-3): all requests at once, as many output tokens as prompt tokens, time until the last is done.

Kernel times alone are a lower bound. The rest is the host's: about the same for every step, and under vLLM of that year
some tens of microseconds more for every request in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

import servesim

pytestmark = pytest.mark.slow
MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "meta-llama/Meta-Llama-3-8B": "llama-3.1-8b",  # the same shapes
    "meta-llama/Meta-Llama-3-70B": "llama-3.1-70b",
}
SHAPE = ["model", "gpus", "length", "batch"]


@cache
def simulated(model: str, gpus: int, length: int, batch: int) -> tuple[float, int, float]:
    """Seconds until the last is done, steps, and sequences in the fullest one; kernels alone."""
    summary = servesim.simulate(
        trace=f"synth:rate=1000000,prompt={length},output={length}",
        requests=batch,
        model=MODELS[model],
        gpu="h100",
        tp=gpus,
        host="none",
        engine={"async_scheduling": False, "version": "0.6.0"},  # of that year: its all-reduces are not today's
        scheduler="continuous",
        kv="paged",
    ).summary
    return summary["duration_s"], summary["engine"]["steps"], summary["engine"]["batch_size"]["max"]


@pytest.fixture(scope="module", params=["vLLM", "TensorRT-LLM"])
def runs(request: pytest.FixtureRequest, shared_data: Callable[[str], Path]) -> pd.DataFrame:
    """The measured runs of one engine, repeats to their median, and what they are simulated to take."""
    table = pd.read_csv(shared_data("groundtruth/argonne_static_batch/All_results.csv"))
    table = table.set_axis(["hardware", "gpus", "engine", "model", "length", "batch", "seconds", "rate"], axis=1)
    mine = (table.hardware == "Nvidia H100 GPU") & (table.engine == request.param) & table.model.isin(list(MODELS))
    found = table[mine].groupby(SHAPE).seconds.median().reset_index()
    found[["kernels", "steps", "running"]] = [simulated(*key) for key in found[SHAPE].itertuples(index=False)]
    found.attrs["engine"] = request.param
    return found


def test_static_batches_take_longer_in_the_order_measured(
    runs: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    error = runs.kernels / runs.seconds - 1.0
    rank = spearmanr(runs.kernels, runs.seconds).statistic
    alone = error[runs.gpus == 1]
    with capsys.disabled():
        print(
            f"\n{len(runs)} static batches on H100, {runs.attrs['engine']}: kernels {100 * error.median():+.1f} % "
            f"in the median (one GPU {100 * alone.median():+.1f} %), rank correlation {rank:.4f}"
        )
    assert len(runs) > 150
    assert rank > 0.985
    assert error.max() < 0.02  # no run is faster than its kernels
    assert -0.25 < alone.median() < 0.0


def test_batching_helps_as_much_as_measured(runs: pd.DataFrame) -> None:
    runs = runs.sort_values([*SHAPE])
    for _, group in runs.groupby(["model", "gpus", "length"]):
        measured, predicted = (np.diff(np.log(group[c].to_numpy())) for c in ("seconds", "kernels"))
        tokens = np.diff(np.log(group.batch.to_numpy()))
        assert (predicted > 0).all()
        assert (predicted < tokens).all()
        assert np.abs(predicted - measured).max(initial=0.0) < 0.35


def test_host_time_of_llama_2_explains_llama_3(runs: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    errors = {}
    for gpus, group in runs.groupby("gpus"):
        known = group.model.str.contains("Llama-2")
        terms = np.stack([group.steps, group.steps * group.running], axis=1) / group.seconds.to_numpy()[:, None]
        missing = 1.0 - group.kernels / group.seconds
        fitted = np.linalg.lstsq(terms[known], missing[known], rcond=None)[0]
        errors[gpus] = float(np.mean(np.abs(terms[~known] @ fitted - missing[~known])))
        with capsys.disabled():
            terms_of = f"{1e3 * fitted[0]:.2f} ms a step and {1e6 * fitted[1]:.0f} us a request"
            print(
                f"\n{runs.attrs['engine']}, {gpus} GPUs: with {terms_of}, fitted to Llama-2, "
                f"Llama-3 is off by {100 * errors[gpus]:.1f} % in the mean"
            )
    limits = {1: 0.04, 2: 0.08, 4: 0.08} if runs.attrs["engine"] == "vLLM" else {1: 0.12, 2: 0.12, 4: 0.12}
    assert all(errors[gpus] < limit for gpus, limit in limits.items()), errors
