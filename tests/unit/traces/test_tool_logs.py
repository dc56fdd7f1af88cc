"""Files of benchmark clients and tracers, in the keys of their own sources: as traces, and as the measured side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import servesim
from servesim.errors import UserError
from servesim.experiments.recording_formats import read_run
from servesim.reports.export import aiperf as aiperf_export
from servesim.reports.export import table, vllm_bench
from servesim.traces import load_trace
from servesim.traces.formats import detect_format

START = 1_795_183_201_194_322_176


def put(folder: Path, text: Any, name: str) -> Path:
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def aiperf(start: int, prompt: int, output: int, **other: Any) -> str:
    metadata = {"request_start_ns": start, "benchmark_phase": "profiling", "conversation_id": "c", "turn_index": 0}
    metrics = {
        "input_sequence_length": {"value": prompt, "unit": "tokens"},
        "output_sequence_length": {"value": output, "unit": "tokens"},
        "time_to_first_token": {"value": 0.12, "unit": "sec"},
        "request_latency": {"value": 2000.0, "unit": "ms"},
    }
    row = {"metadata": metadata | other.pop("metadata", {}), "metrics": metrics, "error": None, **other}
    return json.dumps(row) + "\n"


def test_aiperf_leaves_out_the_warm_up_and_failures(tmp_path: Path) -> None:
    text = aiperf(START - 5, 9, 9, metadata={"benchmark_phase": "warmup"}) + aiperf(START, 100, 21)
    text += aiperf(START + 10**9, 50, 11) + aiperf(START + 2 * 10**9, 1, 1, error={"code": 500})
    path = put(tmp_path, text, "profile_export.jsonl")
    trace = load_trace(path)
    assert (detect_format(path), trace.arrival_ns.tolist()) == ("aiperf", [0, 10**9])
    assert (trace.prompt_len.tolist(), trace.output_len.tolist()) == ([100, 50], [21, 11])
    assert "skipped 2 warm-up, failed or canceled requests" in trace.notes
    run = read_run(path, tmp_path)
    assert run is not None
    assert (run.ttft_ms.tolist(), run.e2el_ms.tolist()) == ([120.0, 120.0], [2000.0, 2000.0])
    assert run.tpot_ms.tolist() == [94.0, 188.0]


@pytest.mark.parametrize("old", [True, False])
def test_guidellm_of_both_layouts(tmp_path: Path, old: bool) -> None:
    names = ("start_time", "end_time") if old else ("request_start_time", "request_end_time")
    row = {"prompt_tokens": 100, "output_tokens": 21, names[0]: 1_700_000_001.5, names[1]: 1_700_000_003.5}
    row |= {} if old else {"time_to_first_token_ms": 80.0}
    requests = {"successful": [row, row | {names[0]: 1_700_000_002.0}], "errored": [{}], "incomplete": []}
    path = put(tmp_path, {"metadata": {"version": 1}, "benchmarks": [{"requests": requests}]}, "benchmarks.json")
    trace = load_trace(path)
    assert (detect_format(path), trace.arrival_ns.tolist()) == ("guidellm", [0, 500_000_000])
    assert "skipped 1 errored or incomplete requests" in trace.notes
    run = read_run(path, tmp_path)
    assert run is not None
    assert run.e2el_ms.tolist() == [2000.0, 1500.0]
    assert np.isnan(run.ttft_ms).all() if old else run.ttft_ms.tolist() == [80.0, 80.0]


@pytest.mark.parametrize(
    "info",
    [
        {"input_tokens": 100, "output_tokens": 3, "output_token_times": [7.25, 7.5, 8.0]},
        {
            "request_metrics": {"text": {"input_tokens": 100}},
            "response_metrics": {"output_tokens": 3, "output_token_times": [7.25, 7.5, 8.0]},
        },
    ],
)
def test_inference_perf_of_both_layouts(tmp_path: Path, info: dict[str, Any]) -> None:
    row = {"start_time": 7.0, "end_time": 8.0, "request": "{}", "info": info, "error": None}
    failed = {"start_time": 7.5, "end_time": 8.0, "info": {}, "error": {"error_type": "x", "error_msg": "y"}}
    path = put(tmp_path, [row, failed], "per_request_lifecycle_metrics.json")
    trace = load_trace(path)
    assert (detect_format(path), len(trace)) == ("inference-perf", 1)
    run = read_run(path, tmp_path)
    assert run is not None
    assert (run.ttft_ms.tolist(), run.e2el_ms.tolist()) == ([250.0], [1000.0])


def genai(*texts: str) -> dict[str, Any]:
    rows = [
        {
            "timestamp": START + i,
            "request_inputs": {"payload": json.dumps({"messages": [{"role": "user", "content": text}]})},
            "response_timestamps": [START + i + 10**8, START + i + 2 * 10**8],
            "response_outputs": [],
        }
        for i, text in enumerate(texts)
    ]
    mode = {"mode": "concurrency", "value": 8}
    return {"service_kind": "openai", "endpoint": "", "experiments": [{"experiment": mode, "requests": rows}]}


def test_genai_perf_counts_characters_and_says_so(tmp_path: Path) -> None:
    path = put(tmp_path, genai("x" * 400, "y" * 41), "profile_export.json")
    trace = load_trace(path)
    assert (trace.prompt_len.tolist(), trace.output_len.tolist()) == ([100, 11], [2, 2])
    assert any("4 characters per token" in note for note in trace.notes)
    assert load_trace(path, columns="prompt=2000,output=300").prompt_len.tolist() == [2000, 2000]
    run = read_run(path, tmp_path)
    assert run is not None
    assert (run.ttft_ms.tolist(), run.e2el_ms.tolist(), run.concurrency) == ([100.0, 100.0], [200.0, 200.0], 8)
    silent = load_trace(put(tmp_path, genai("", ""), "silent.json"))
    assert any("2 of 2 prompts have no text in the file" in note for note in silent.notes)


def test_baseten_blocks_and_sessions(tmp_path: Path) -> None:
    columns = {
        "timestamp_start_unix_ms": [1_763_647_201_000, 1_763_647_203_500, 1_763_647_204_000],
        "prompt": ["a", "b", "c"],
        "input_tokens": [40, 70, 10],
        "output_tokens": [5, 6, 0],
        "provided_session_id": ["s", "s", None],
        "total_hashes": [[7, 8], [7, 8, 9, 1], []],
        "block_size": [16, 16, 16],
        "duration_e2e_ms": [1000, 900, 5],
        "duration_ttft_ms": [100, 90, None],
    }
    pq.write_table(pa.table(columns), tmp_path / "trace.parquet")
    path = tmp_path / "trace.parquet"
    trace = load_trace(path)
    assert (detect_format(path), trace.arrival_ns.tolist()) == ("baseten", [0, 2_500_000_000])
    assert trace.content is not None
    assert trace.content.runs(0)[:2] == [(0, 16), (1, 16)]
    assert [length for _, length in trace.content.runs(1)] == [16, 16, 16, 16, 6]
    assert trace.content.runs(1)[:2] == [(0, 16), (1, 16)]
    assert trace.after is not None
    assert trace.after.edges(1)[0][0] == 0
    run = read_run(path, tmp_path)
    assert run is not None
    assert run.ttft_ms.tolist() == [100.0, 90.0]


def test_otlp_is_read_as_flat_spans_are(tmp_path: Path) -> None:
    flat, otlp = [], []
    for i in range(3):
        start, end = START + i * 10**9, START + i * 10**9 + 5 * 10**8
        use = {"gen_ai.usage.input_tokens": 100 + i, "gen_ai.usage.output_tokens": 7}
        stamps = [str(np.datetime64(t, "ns")) + "Z" for t in (start, end)]
        flat.append(
            {"trace_id": str(i), "span_id": str(i), "start_time": stamps[0], "end_time": stamps[1], "attributes": use}
        )
        coded = [{"key": key, "value": {"intValue": str(value)}} for key, value in use.items()]
        span = {"traceId": str(i), "spanId": str(i), "startTimeUnixNano": str(start), "endTimeUnixNano": str(end)}
        otlp.append({"resourceSpans": [{"scopeSpans": [{"spans": [span | {"attributes": coded}]}]}]})
    plain = load_trace(put(tmp_path, flat, "flat.json"))
    whole = {"resourceSpans": [part for document in otlp for part in document["resourceSpans"]]}
    by_line = "".join(json.dumps(document) + "\n" for document in otlp)
    for found in (load_trace(put(tmp_path, whole, "otlp.json")), load_trace(put(tmp_path, by_line, "otlp.jsonl"))):
        assert found.arrival_ns.tolist() == plain.arrival_ns.tolist() == [0, 10**9, 2 * 10**9]
        assert found.prompt_len.tolist() == plain.prompt_len.tolist() == [100, 101, 102]
    run = read_run(tmp_path / "otlp.json", tmp_path)
    assert run is not None
    assert run.e2el_ms.tolist() == [500.0] * 3


def histogram(name: str, counts: dict[str, float], total: float, labels: str = "") -> str:
    lines = [f'{name}_bucket{{{labels}le="{edge}"}} {count}' for edge, count in counts.items()]
    return "\n".join([f"# TYPE {name} histogram", *lines, f"{name}_sum {total}", f"{name}_count {counts['+Inf']}", ""])


def test_prometheus_histograms_keep_the_buckets_and_the_mean(tmp_path: Path) -> None:
    prompt = histogram("vllm:request_prompt_tokens", {"128.0": 30, "1000.0": 80, "+Inf": 100}, 60_000)
    output = histogram("vllm:request_generation_tokens", {"128.0": 100, "+Inf": 100}, 5_000)
    trace = load_trace(put(tmp_path, prompt + output, "metrics.prom"))
    assert len(trace) == 100
    assert [int((trace.prompt_len <= edge).sum()) for edge in (128, 1000)] == [30, 80]
    assert trace.prompt_len.mean() == pytest.approx(600, rel=0.01)
    assert trace.output_len.mean() == pytest.approx(50, rel=0.02)
    assert any("Set a rate with --rate." in note for note in trace.notes)


def test_prometheus_series_are_summed_and_falling_counts_refused(tmp_path: Path) -> None:
    parts = [histogram("sglang:prompt_tokens_histogram", {"100": 5, "+Inf": 10}, 900, f'model="{m}",') for m in "ab"]
    output = histogram("sglang:generation_tokens_histogram", {"100": 20, "+Inf": 20}, 900)
    assert len(load_trace(put(tmp_path, "".join(parts) + output, "a.prom"))) == 20
    falling = histogram("vllm:request_prompt_tokens", {"128.0": 30, "+Inf": 10}, 60)
    with pytest.raises(UserError, match="bucket counts decrease"):
        load_trace(put(tmp_path, falling + histogram("vllm:request_generation_tokens", {"+Inf": 9}, 9), "b.prom"))
    with pytest.raises(UserError, match="no histogram of output tokens"):
        load_trace(put(tmp_path, parts[0], "c.prom"))


def test_what_export_writes_comes_back_in(tmp_path: Path) -> None:
    servesim.simulate(trace="synth:rate=9,prompt=uniform(20,90),output=uniform(2,9)", requests=20, model="llama-3.2-1b",
                      gpu="h200", out=tmp_path / "r")  # fmt: skip
    sent = pd.read_parquet(tmp_path / "r" / "requests.parquet").sort_values("arrival_ns")
    for name, export in (("a.csv", table), ("a.jsonl", aiperf_export), ("a.json", vllm_bench)):
        with (tmp_path / name).open("w") as file:
            export.write(tmp_path / "r", file)
    for path in (tmp_path / "r" / "requests.parquet", *(tmp_path / name for name in ("a.csv", "a.jsonl", "a.json"))):
        found = load_trace(path)
        assert found.prompt_len.tolist() == sent["prompt_len"].tolist(), path
        assert found.output_len.tolist() == sent["output_len"].tolist(), path
        start = int(sent["arrival_ns"].min()) if path.suffix in (".jsonl", ".json") else 0
        assert np.abs(found.arrival_ns - (sent["arrival_ns"].to_numpy() - start)).max() <= 1, path
    for name in ("a.jsonl", "a.json"):
        run = read_run(tmp_path / name, tmp_path)
        assert run is not None
        assert run.e2el_ms.tolist() == pytest.approx((sent["e2el_ns"] / 1e6).tolist())
