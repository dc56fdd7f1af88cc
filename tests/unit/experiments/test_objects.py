"""Experiments take traces that are objects: Traces and DataFrames, named by their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import servesim
from servesim import UserError
from servesim.experiments.runner import Progress
from servesim.traces import load_preset, load_trace, save_trace, trace_digest
from servesim.workload.trace import Trace

SERVER: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h200", "jobs": 1}
FRAME = pd.DataFrame(
    {
        "arrival_ns": [20_000_000 * i for i in range(60)],
        "prompt_len": [200 + 7 * i for i in range(60)],
        "output_len": [20 + i % 9 for i in range(60)],
        "class": ["chat", "code"] * 30,
    }
)


@pytest.fixture
def trace() -> Trace:
    return load_trace(FRAME)


def test_a_dataframe_is_the_trace_its_csv_is(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    assert trace_digest(load_trace(FRAME)) == trace_digest(load_trace(tmp_path / "t.csv"))
    with_content = FRAME.assign(content=[[[7, 100], [8 + i, 100 + 7 * i]] for i in range(60)])
    content = load_trace(with_content).content
    assert content is not None
    assert content.runs(2) == [(7, 100), (10, 114)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_len": 0}, "DataFrame: row 0: prompt_len is 0 but must be a whole number of at least 1"),
        ({"arrival_ns": None}, "DataFrame: row 0: arrival_ns is None"),
        ({"arrival_ns": list(range(60, 0, -1))}, "DataFrame: row 1: arrives before the request above it"),
    ],
)
def test_a_dataframe_that_is_no_trace_is_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        servesim.simulate(trace=FRAME.assign(**change), model="llama-3.2-1b", gpu="h200")


def test_simulate_takes_a_dataframe(trace: Trace) -> None:
    runs = [servesim.simulate(trace=t, model="llama-3.2-1b", gpu="h200") for t in (FRAME, trace)]
    assert runs[0].summary == runs[1].summary
    assert runs[0].scenario.trace == "object:DataFrame"


def test_a_sweep_over_an_object_is_the_one_over_its_file(trace: Trace, tmp_path: Path) -> None:
    save_trace(trace, tmp_path / "t.parquet", "parquet")
    a = servesim.sweep(**SERVER, trace=trace, kv="paged,prefix-hash", rate=[20, 60], out=tmp_path / "a")
    b = servesim.sweep(**SERVER, trace=str(tmp_path / "t.parquet"), kv="paged,prefix-hash", rate=[20, 60])
    pd.testing.assert_frame_equal(a.drop(columns="address"), b.drop(columns="address"))
    assert a.attrs["document"]["workload"]["trace"].startswith("object:DataFrame@")


def test_the_same_content_has_the_same_address_and_is_not_computed_twice(trace: Trace, tmp_path: Path) -> None:
    first = servesim.sweep(**SERVER, trace=trace, rate=[20, 60], out=tmp_path / "a")
    seen: list[Progress] = []
    again = servesim.sweep(**SERVER, trace=FRAME, rate=[20, 60], out=tmp_path / "a", on_progress=seen.append)
    assert [p.computed for p in seen] == [False, False]
    elsewhere = servesim.sweep(**SERVER, trace=FRAME, rate=[20, 60], out=tmp_path / "b")
    assert list(first["address"]) == list(again["address"]) == list(elsewhere["address"])
    other = servesim.sweep(**SERVER, trace=FRAME.assign(output_len=30), rate=[20, 60])
    assert not set(other["address"]) & set(first["address"])


@pytest.mark.medium
def test_worker_processes_and_several_traces(tmp_path: Path) -> None:
    longer = FRAME.assign(output_len=FRAME["output_len"] * 3)
    longer.attrs["name"] = "longer"
    frame = servesim.sweep(**SERVER | {"jobs": 2}, trace=[FRAME, longer], kv="paged,prefix-hash", out=tmp_path)
    assert set(frame["status"]) == {"ok"}
    names = frame["trace"].str.partition("@")[0].tolist()
    assert names == ["object:DataFrame"] * 2 + ["object:longer"] * 2
    assert frame["e2el_mean"].iloc[2] > frame["e2el_mean"].iloc[0]
    assert len(list((tmp_path / "traces").iterdir())) == 2


def test_windows_of_an_object_are_compared(trace: Trace) -> None:
    document = servesim.compare(**SERVER, trace=trace, scheduler="vllm,static", replicates=3).attrs["document"]
    assert document["replicates"]["kind"] == "windows"
    assert [change["skip"] for change in document["replicates"]["changes"]] == [0, 20, 40]


@pytest.mark.medium
def test_capacity_takes_an_object() -> None:
    frame = servesim.capacity(
        **SERVER, trace=load_preset("azure-conv-2023", 200), slo="ttft:300", replicates=2, tolerance=0.3
    )
    assert frame["verdict"].tolist() == ["carries"]


def test_a_scenario_mapping_may_hold_one(trace: Trace, tmp_path: Path) -> None:
    scenario = {"trace": trace, "model": "llama-3.2-1b", "gpu": "h200", "axes": {"rate": [20, 60]}}
    servesim.sweep(scenario, jobs=1, out=tmp_path)
    cell = next((tmp_path / "cells").iterdir())
    summary = json.loads((cell / "summary.json").read_text())
    assert summary["provenance"]["trace"]["sha256"] == trace_digest(trace.with_rate(summary["scenario"]["rate"]))


@pytest.mark.feature("classes")
def test_classes_are_held_to_their_own_limits(tmp_path: Path) -> None:
    asked = SERVER | {"trace": FRAME, "slo_classes": {"chat": {"e2el": 1e-3}}, "warmup": 0.0, "cooldown": 0.0}
    frame = servesim.sweep(**asked, slo="e2el:60000", rate=[20, 60], out=tmp_path)
    assert frame["slo_attainment"].tolist() == [0.5, 0.5]
    summary = json.loads((tmp_path / "cells" / frame["address"].iloc[0] / "summary.json").read_text())
    assert summary["goodput"]["good_requests"] == summary["classes"]["good_requests"] == 30
    assert summary["goodput"]["slo_classes_ms"] == {"chat": {"e2el": 1e-3}}
    assert summary["goodput"]["attainment_by_metric"] == {"e2el": 0.5}
    alone = servesim.sweep(**asked, rate=[20, 60])
    assert alone["slo_attainment"].tolist() == [0.5, 0.5]


@pytest.mark.medium
def test_a_page_calls_an_object_by_its_name(tmp_path: Path) -> None:
    chat = FRAME.copy()
    chat.attrs["name"] = "my chat"
    servesim.sweep(**SERVER, trace=chat, rate=[20, 60], out=tmp_path)
    html = servesim.report(tmp_path)
    assert '<p class="subtitle">my chat</p>' in html
    servesim.report(next((tmp_path / "cells").iterdir()))
