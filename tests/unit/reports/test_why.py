"""`servesim why` tells one request's story, and step_requests.parquet which requests each step computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.errors import UserError
from servesim.reports.export import export
from servesim.reports.why import Story
from servesim.run import step_requests

RUN: dict[str, Any] = {
    "trace": "synth:arrivals=poisson,rate=60,prompt=lognormal(300,900),output=20",
    "requests": 40,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "kv": "paged",
    "slo": "ttft:1",
    "scheduler": "vllm:max_num_seqs=4,max_num_batched_tokens=512",
    "mode": "reference",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("why") / "r"
    servesim.simulate(RUN, out=out, step_requests=True)
    return out


def test_the_requests_of_the_steps_add_up_to_the_steps_and_to_the_requests(folder: Path) -> None:
    result = servesim.Result.load(folder)
    told = pd.read_parquet(folder / "step_requests.parquet")
    steps = result.steps.set_index("step")
    sums = told.groupby("step")["num_scheduled_tokens"].sum()
    assert (sums == steps["prefill_tokens"] + steps["decode_count"]).all()
    # every prompt token and every output token but the last, which nothing is computed from; one step more is planned
    # ahead of a request's end under asynchronous scheduling
    of = told.groupby("row")["num_scheduled_tokens"].sum().reindex(result.requests["row"]).to_numpy()
    needed = (result.requests["prompt_len"] + result.requests["output_len"] - 1).to_numpy()
    assert set(of - needed) <= {0, 1}
    before = told.groupby("row")["num_scheduled_tokens"].cumsum() - told["num_scheduled_tokens"]
    assert (before == told["num_computed_tokens"]).all()  # nothing is preempted here


def test_recording_them_leaves_the_run_as_it_was(folder: Path, tmp_path: Path) -> None:
    servesim.simulate(RUN, out=tmp_path / "r")
    assert not (tmp_path / "r" / "step_requests.parquet").exists()
    for name in ("summary.json", "requests.parquet", "steps.parquet"):
        assert (tmp_path / "r" / name).read_bytes() == (folder / name).read_bytes()


def test_the_table_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_requests.StepRequests.__init__, "__defaults__", (100,))
    summary = servesim.simulate(RUN, out=tmp_path / "r", step_requests=True).summary
    told = pd.read_parquet(tmp_path / "r" / "step_requests.parquet")
    assert 96 < len(told) <= 100
    left_out = summary["engine"]["steps"] - told["step"].nunique()
    assert (
        f"step_requests: the limit of {len(told)} rows is reached, and the last {left_out} steps are missing. Replay "
        "fewer requests." in summary["warnings"]
    )


def test_preemptions_are_rows_without_tokens(tmp_path: Path) -> None:
    # 4 requests of 300 to 380 tokens in 60 blocks of 16: not all of them fit to the end
    tight = {**RUN, "trace": "synth:rate=20,prompt=220,output=80", "requests": 4, "rate": float("inf")}
    result = servesim.simulate({**tight, "engine": {"num_gpu_blocks": 62, "max_model_len": 400}}, out=tmp_path / "r",
                               step_requests=True)  # fmt: skip
    told = pd.read_parquet(tmp_path / "r" / "step_requests.parquet")
    dropped = told[told["num_scheduled_tokens"] == 0]
    assert len(dropped) == result.summary["engine"]["preemptions"] > 0
    row = int(dropped["row"].iloc[0])
    story = "\n".join(Story.of(tmp_path / "r", str(row)).lines())
    assert "preempted 1 time: " in story


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mode": "fast"}, "only in reference mode"),
        ({"out": None}, "result directory"),
        ({"stream": True, "scheduler": "vllm"}, "streamed run"),
        ({"jobs": 2, "replicas": 2}, "not available with --jobs"),
    ],
)
def test_where_steps_are_not_told_it_is_said(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        servesim.simulate(**{**RUN, "out": tmp_path / "r", **change}, step_requests=True)


def test_the_story_is_that_of_the_records(folder: Path) -> None:
    result = servesim.Result.load(folder)
    frame = result.requests
    i = int(frame["queue_time_ns"].argmax())
    row = frame.iloc[i]
    arrival = row["arrival_ns"]
    mine = frame["replica"] == row["replica"]
    waiting = int((mine & (frame["arrival_ns"] <= arrival) & (frame["scheduled_ns"] > arrival)).sum()) - 1
    lines = Story.of(folder, str(row["row"])).lines()
    assert lines[0].startswith(f"request {row['row']}: prompt {row['prompt_len']:,} tokens, output 20 of at most 20")
    begun = mine & (frame["scheduled_ns"] <= arrival) & (frame["finished_ns"] > arrival)
    assert lines[1].endswith(f"{begun.sum()} run and {waiting} wait on its replica")
    assert waiting > 0
    said = f"after {row['queue_time_ns'] / 1e6:.1f} ms in the queue: all 4 slots in the batch were taken"
    assert lines[2].endswith(said)
    assert "(over 1 ms)" in lines[-1]
    told = pd.read_parquet(folder / "step_requests.parquet")
    own = told[told["row"] == row["row"]]["step"]
    others = told[told["step"].isin(own) & (told["row"] != row["row"])]["row"].value_counts()
    computed = next(line for line in lines if line.startswith("computed in"))
    assert computed.startswith(f"computed in {len(own)} steps, {own.min()} to {own.max()}; most often together with ")
    assert f"({others.max()})" in computed
    pieces = int((told[told["row"] == row["row"]]["num_scheduled_tokens"] > 1).sum())
    assert f"over {pieces} step" in lines[3]


def test_a_request_that_comes_to_an_idle_server_is_scheduled_at_once(tmp_path: Path) -> None:
    servesim.simulate({**RUN, "requests": 1, "mode": "fast"}, out=tmp_path / "r")
    lines = Story.of(tmp_path / "r", "0").lines()
    assert lines[1].endswith("0 run and 0 wait on its replica")
    assert lines[2].endswith("is scheduled at once")


def test_a_request_that_is_not_there_is_refused(folder: Path) -> None:
    for request in ("40", "-1", "x"):
        with pytest.raises(UserError, match="no request"):
            Story.of(folder, request)


def test_the_figure_is_drawn(folder: Path, tmp_path: Path) -> None:
    drawn = Story.of(folder, "3").figure()
    drawn.save(tmp_path / "f.svg")
    assert (tmp_path / "f.svg").read_text().startswith("<svg")
    assert "request 3: prompt" in drawn.alt


def test_perfetto_names_the_requests_of_a_step(folder: Path, tmp_path: Path) -> None:
    export(folder, "perfetto", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    named = {e["args"]["step"]: e["args"]["requests"] for e in events if e.get("cat") == "step"}
    told = pd.read_parquet(folder / "step_requests.parquet")
    assert sorted(named) == sorted(told["step"].unique())
    for step, group in told.groupby("step"):
        assert [int(part.split()[0]) for part in named[step].split(", ")] == group["row"].tolist()


def test_rows_of_steps_fit_their_table() -> None:
    assert np.iinfo(np.int64).max > step_requests.MOST
