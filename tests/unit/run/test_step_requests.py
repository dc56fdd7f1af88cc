"""Which requests each step computed, of all cores that serve in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import servesim
from servesim.run.result_files import STEP_REQUESTS

RUN: dict[str, Any] = {
    "trace": "synth:rate=30,prompt=200,output=60",
    "requests": 60,
    "model": "llama-3.1-8b",
    "gpu": "h200",
    "router": "round-robin",
    "mode": "reference",
    "step_requests": True,
}
CRASH = {"replicas": 2, "cluster.failures": ["crash:replica=0,at=0.5,restart=0.2"]}
START = {"boot_s": 0.1, "weights_gb_s": 1000.0, "compile_s": 0.1, "graphs_s": 0.1, "warm_up_s": 0.1}
GROWS = {"replicas": 1, "scaler": "hpa:metric=running,target=2,max=3,sync_s=0.2", "start": START}


@pytest.mark.feature("*")
@pytest.mark.parametrize("settings", [CRASH, GROWS, {"replicas": 2}], ids=["a crash", "a scale-up", "plain"])
def test_every_step_has_its_requests_whichever_core_took_it(settings: dict[str, Any], tmp_path: Path) -> None:
    result = servesim.simulate(**{**RUN, **settings}, out=tmp_path / "out")
    told = pd.read_parquet(tmp_path / "out" / STEP_REQUESTS)
    found = told.groupby(["replica", "step"])["num_scheduled_tokens"].sum().to_dict()
    taken = {
        (row.replica, row.step + i): row.prefill_tokens + row.decode_count
        for row in result.steps.itertuples()
        for i in range(row.k)
    }
    assert len({replica for replica, _ in taken}) > 1
    lost = found.keys() - taken.keys()  # in flight at the crash
    assert len(lost) <= (2 if settings is CRASH else 0)
    assert {step: tokens for step, tokens in found.items() if step not in lost} == taken
