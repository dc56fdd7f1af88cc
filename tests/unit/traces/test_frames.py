"""DataFrames as traces: the same columns are found as in a CSV of the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.errors import UserError
from servesim.traces import load_trace

LOG = {
    "timestamp": ["2026-11-20T14:00:01.194Z", "2026-11-20T14:00:03.531Z", "2026-11-20T14:00:04Z"],
    "prompt_tokens": [388, 1680, 7],
    "completion_tokens": [798, 364, 3],
    "status": [200, 200, 200],
}
SAME: dict[str, dict[str, Any]] = {
    "a log": LOG,
    "servesim's own": {"arrival_ns": [0, 5_000_000], "prompt_len": [300, 900], "output_len": [40, 10]},
    "Azure": {
        "TIMESTAMP": ["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690"],
        "ContextTokens": [374, 396],
        "GeneratedTokens": [44, 109],
    },
    "Vidur": {"arrived_at": [0.5, 2.25], "num_prefill_tokens": [10, 20], "num_decode_tokens": [3, 4]},
    "a failed request": {**LOG, "status": [200, 503, 200]},
    "a missing count": {**LOG, "prompt_tokens": [388, None, 7]},
    "usage in objects": {
        "timestamp": LOG["timestamp"],
        "usage": [{"input": i, "output": 5, "total": i + 5} for i in (388, 1680, 7)],
    },
    "conversations": {**LOG, "session_id": ["a", "b", "a"], "latency_s": [0.5, 0.5, 0.5]},
}


@pytest.mark.parametrize("kind", SAME)
def test_a_frame_is_read_as_the_csv_of_its_rows(tmp_path: Path, kind: str) -> None:
    frame = pd.DataFrame(SAME[kind])
    texts = frame.map(lambda cell: json.dumps(cell) if isinstance(cell, dict) else cell)
    texts.to_csv(tmp_path / "log.csv", index=False)
    read, held = load_trace(tmp_path / "log.csv"), load_trace(frame)
    for name in ("prompt_len", "output_len"):
        assert getattr(held, name).tolist() == getattr(read, name).tolist()
    assert (held.arrival_ns - held.arrival_ns[0]).tolist() == (read.arrival_ns - read.arrival_ns[0]).tolist()
    assert held.labels == read.labels
    assert (held.after is None) == (read.after is None)


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("kind", ["datetime64[ns]", "datetime64[s]", "object"])
def test_times_of_pandas_are_times_of_arrival(kind: str, zone: str | None) -> None:
    times = pd.Series(pd.to_datetime(["2026-11-20 14:00:01", None, "2026-11-20 14:00:04"]))
    times = times.dt.tz_localize(zone) if zone else times
    if not (zone and kind == "datetime64[s]"):
        times = times if zone and kind != "object" else times.astype(kind)
    frame = pd.DataFrame({**LOG, "timestamp": times, "prompt_tokens": [388, None, 7]})
    assert load_trace(frame).arrival_ns.tolist() == [0, 3_000_000_000]


@pytest.mark.parametrize("name", [None, "created_at"])
def test_an_index_of_times_is_the_column_of_arrivals(name: str | None) -> None:
    times = pd.DatetimeIndex(pd.to_datetime(LOG["timestamp"], format="ISO8601"), name=name)
    frame = pd.DataFrame({column: LOG[column] for column in ("prompt_tokens", "completion_tokens")}, index=times)
    assert load_trace(frame).arrival_ns.tolist() == [0, 2_337_000_000, 2_806_000_000]


def test_columns_are_named_as_for_a_file_and_a_frame_keeps_its_name() -> None:
    frame = pd.DataFrame({"wann": [1, 3], "rein": [5, 6], "raus": [7, 8]})
    frame.attrs["name"] = "mine"
    with pytest.raises(UserError, match=r"^DataFrame: no column for .* such as --columns"):
        load_trace(frame)
    trace = load_trace(frame, columns="arrival=wann,prompt=rein,output=raus,unit=s")
    assert (trace.name, trace.arrival_ns.tolist()) == ("mine", [0, 2_000_000_000])
    assert trace.prompt_len.tolist() == [5, 6]


def test_an_error_counts_rows_from_zero_as_pandas_does() -> None:
    with pytest.raises(UserError, match=r"^DataFrame: row 1: prompt_tokens is 1\.5 but must be a whole number"):
        load_trace(pd.DataFrame({**LOG, "prompt_tokens": [388, 1.5, 7]}))
    with pytest.raises(UserError, match=r"^DataFrame: "):
        load_trace(pd.DataFrame(LOG)[:0])
    with pytest.raises(UserError, match=r"^DataFrame: column 'status' appears twice"):
        load_trace(pd.concat([pd.DataFrame(LOG), pd.DataFrame(LOG)[["status"]]], axis=1))


def test_a_run_takes_a_frame_and_its_columns() -> None:
    asked = {"model": "llama-3.2-1b", "gpu": "h200", "intervals": False}
    assert servesim.simulate(trace=pd.DataFrame(LOG), **asked).summary["requests"]["completed"] == 3
    other = pd.DataFrame({"a": [1, 2], "b": [3, 4], "c": [5, 6]})
    run = servesim.simulate(trace=other, columns="arrival=a,prompt=b,output=c", **asked)
    assert run.requests["prompt_len"].tolist() == [3, 4]


def test_a_time_index_that_is_a_column_too_is_read_once() -> None:
    frame = pd.DataFrame({"timestamp": pd.date_range("2026-01-01", periods=3, freq="s"), "prompt_tokens": 5})
    frame["completion_tokens"] = 2
    for indexed in (frame.set_index("timestamp", drop=False), frame.set_index(frame["timestamp"].rename(None))):
        assert load_trace(indexed).arrival_ns.tolist() == load_trace(frame).arrival_ns.tolist()


def test_times_that_ns_cannot_hold_are_one_line_and_numpy_s_integers_are_numbers() -> None:
    times = pd.Series(np.array(["2900-01-01", "2900-01-02"], dtype="datetime64[s]"))
    tokens = pd.Series([np.int64(5)] * 2, dtype=object)
    frame = pd.DataFrame({"timestamp": times, "prompt_tokens": tokens, "completion_tokens": tokens})
    with pytest.raises(UserError, match="timestamp: times must be between the years 1678 and 2262"):
        load_trace(frame)
    frame["timestamp"] = [1_700_000_000.0, 1_700_000_001.0]
    assert load_trace(frame).prompt_len.tolist() == [5, 5]


def test_columns_of_a_frame_that_are_not_servesims_own_are_named_alone() -> None:
    frame = pd.DataFrame({"arrival_ns": [0], "prompt_len": [3], "output_len": [1], "color": ["red"]})
    assert "extra columns not used: color" in load_trace(frame).notes
    assert not any("columns" in note for note in load_trace(frame.drop(columns="color")).notes)
