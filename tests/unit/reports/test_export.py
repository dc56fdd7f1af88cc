"""Exports: every key readers look for, aggregates that agree with their own arrays, traces that are well formed."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import servesim
from servesim.cli.app import app
from servesim.experiments.recording_formats import read_folder
from servesim.reports.export import FORMATS, export

SETTINGS: dict[str, Any] = {
    "trace": "synth:rate=60,prompt=lognormal(p50=300,p95=900),output=lognormal(p50=30,p95=90)",
    "requests": 150,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "replicas": 2,
    "slo": "ttft:50,tpot:5",
    "engine": {"num_gpu_blocks": 160, "max_model_len": 1500},
}
VLLM_KEYS = (
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("request_goodput", "output_throughput", "total_token_throughput", "input_lens", "output_lens", "ttfts", "itls"),
    *("latencies", "start_times", "queue_times", "errors", "max_concurrent_requests", "date", "backend", "model_id"),
    *("tokenizer_id", "num_prompts", "request_rate", "burstiness", "max_concurrency"),
    *(f"{s}_{m}_ms" for s in ("mean", "median", "std", "p99") for m in ("ttft", "tpot", "itl", "e2el")),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "run"
    servesim.simulate(**SETTINGS, out=out)
    return out


@pytest.fixture(scope="module")
def result(folder: Path) -> servesim.Result:
    return servesim.Result.load(folder)


def written(folder: Path, to: str, out: Path) -> str:
    export(folder, to, out)
    return out.read_text()


@pytest.fixture(scope="module")
def record(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written(folder, "vllm-bench", tmp_path_factory.mktemp("bench") / "bench.json"))
    return found


def test_vllm_json_has_every_key(record: dict[str, Any]) -> None:
    assert [key for key in VLLM_KEYS if key not in record] == []


def test_aggregates_agree_with_the_arrays_beside_them(record: dict[str, Any], result: servesim.Result) -> None:
    ok = np.array([not error for error in record["errors"]])
    assert 0 < record["completed"] == ok.sum() < len(ok) == record["num_prompts"]
    assert record["failed"] == (~ok).sum()
    output = np.array(record["output_lens"])[ok]
    ttft, e2el = (np.array(record[name])[ok] * 1e3 for name in ("ttfts", "latencies"))
    gaps = [np.array(g) * 1e3 for g in record["itls"]]
    assert [len(g) for g, good in zip(gaps, ok, strict=True) if good] == (output - 1).tolist()
    np.testing.assert_allclose([g.sum() for g, good in zip(gaps, ok, strict=True) if good], e2el - ttft, rtol=1e-9)
    arrays = {
        "ttft": ttft,
        "e2el": e2el,
        "tpot": (e2el - ttft)[output > 1] / (output[output > 1] - 1),
        "itl": np.concatenate(gaps),
    }
    for metric, values in arrays.items():
        stats = result.summary["latency_ms"][metric]
        for name, value, ours in (
            ("mean", values.mean(), stats["mean"]),
            ("median", np.median(values), stats["p50"]),
            ("std", values.std(), stats["std"]),
            ("p99", np.percentile(values, 99), stats["p99"]),
        ):
            assert record[f"{name}_{metric}_ms"] == pytest.approx(value, rel=1e-9)
            assert record[f"{name}_{metric}_ms"] == pytest.approx(ours, rel=1e-9)
    seconds = record["duration"]
    prompt = np.array(record["input_lens"])[ok].sum()
    assert record["total_input_tokens"] == prompt
    assert record["request_throughput"] == pytest.approx(ok.sum() / seconds)
    assert record["output_throughput"] == pytest.approx(output.sum() / seconds)
    assert record["total_token_throughput"] == pytest.approx((prompt + output.sum()) / seconds)
    for key in ("request_throughput", "output_throughput", "total_token_throughput"):
        assert record[key] == pytest.approx(result.summary["throughput"][key])


def test_vllm_json_counts_drafts_and_their_tokens_come_together(tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": "llama-3.1-8b", "requests": 40, "engine": {}, "speculation": "eagle3:k=3"}
    result = servesim.simulate(**settings, out=tmp_path / "run")
    record = json.loads(written(tmp_path / "run", "vllm-bench", tmp_path / "bench.json"))
    drafts, accepted = record["spec_decode_num_drafts"], record["spec_decode_accepted_tokens"]
    assert record["spec_decode_acceptance_length"] == pytest.approx(1 + accepted / drafts)
    assert record["spec_decode_acceptance_rate"] == accepted / record["spec_decode_draft_tokens"]
    assert sum(record["spec_decode_per_position_acceptance_rates"]) == pytest.approx(accepted / drafts)
    gaps = np.concatenate(record["itls"])
    assert (gaps == 0).sum() == result.steps["accepted"].sum() > 0
    assert record["mean_itl_ms"] == pytest.approx(result.summary["latency_ms"]["itl"]["mean"])


def test_our_own_reader_of_vllm_json_takes_it(tmp_path: Path) -> None:
    settings = {**SETTINGS, "engine": {}, "requests": 30}
    result = servesim.simulate(**settings, out=tmp_path / "run")
    (tmp_path / "recorded").mkdir()
    export(tmp_path / "run", "vllm-bench", tmp_path / "recorded" / "bench.json")
    (run,) = read_folder(tmp_path / "recorded")
    assert run.server.model == "llama-3.2-1b"
    assert run.totals["ttft_mean"] == pytest.approx(result.summary["latency_ms"]["ttft"]["mean"])
    np.testing.assert_allclose(run.e2el_ms.mean(), result.summary["latency_ms"]["e2el"]["mean"])


def test_the_trace_has_as_many_slices_as_the_run_had_steps(
    folder: Path, tmp_path: Path, result: servesim.Result
) -> None:
    export(folder, "perfetto", tmp_path / "trace.json.gz")
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == result.summary["engine"]["steps"] > len(result.steps)
    kinds = Counter(e["name"] for e in slices)
    assert kinds == {kind: n for kind, n in result.summary["engine"]["steps_by_kind"].items() if n}
    assert trace["otherData"]["step_times"] == "exact"


@pytest.mark.parametrize("stages", [1, 2])
def test_the_trace_keeps_to_the_trace_event_format(stages: int, tmp_path: Path) -> None:
    """What the trace processor asks of JSON traces: phases it knows, slices of a track nested or apart, asynchronous
    events in pairs, numbers where numbers belong."""
    settings = {**SETTINGS, "pp": stages, "requests": 60, "scheduler": "vllm:max_num_batched_tokens=64"}
    servesim.simulate(**settings, out=tmp_path / "run")
    trace = json.loads(written(tmp_path / "run", "perfetto", tmp_path / "trace.json"))
    tracks: dict[tuple[int, int], float] = {}
    pairs: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert event["ph"] in "XCMbe"
        if event["ph"] == "M":
            assert isinstance(event["args"]["name"], str)
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            track = event["pid"], event["tid"]
            assert event["dur"] > 0
            assert event["ts"] >= tracks.get(track, 0) - 1e-6
            tracks[track] = event["ts"] + event["dur"]
        elif event["ph"] == "C":
            assert all(isinstance(v, int) for v in event["args"].values())
        elif event["ph"] == "b":
            pairs.setdefault((event["cat"], event["id2"]["local"]), []).append((event["name"], event["ts"]))
        else:
            name, begin = pairs[event["cat"], event["id2"]["local"]].pop()
            assert name == event["name"]
            assert begin <= event["ts"]
    assert len(tracks) == 2 * stages
    assert len(pairs) == 60
    assert not any(pairs.values())


def test_aiperf_has_a_line_a_request_with_units(folder: Path, tmp_path: Path, result: servesim.Result) -> None:
    lines = [json.loads(line) for line in written(folder, "aiperf", tmp_path / "profile.jsonl").splitlines()]
    assert len(lines) == len(result.requests)
    good = [line for line in lines if line["error"] is None]
    assert 0 < len(good) < len(lines)
    ttft = [line["metrics"]["time_to_first_token"] for line in good]
    assert {value["unit"] for value in ttft} == {"ms"}
    assert np.mean([value["value"] for value in ttft]) == pytest.approx(result.summary["latency_ms"]["ttft"]["mean"])
    itl = [line["metrics"]["inter_token_latency"]["value"] for line in good if "inter_token_latency" in line["metrics"]]
    assert np.mean(itl) == pytest.approx(result.summary["latency_ms"]["tpot"]["mean"])
    for line in good:
        metrics, stamps = line["metrics"], line["metadata"]
        assert sum(metrics["inter_chunk_latency"]["value"]) + metrics["time_to_first_token"]["value"] == pytest.approx(
            metrics["request_latency"]["value"]
        )
        assert stamps["request_start_ns"] < stamps["request_ack_ns"] <= stamps["request_end_ns"]
    for line in lines:
        assert line["error"] is None or line["error"]["message"]


def test_csv_is_the_table_of_requests(folder: Path, tmp_path: Path, result: servesim.Result) -> None:
    export(folder, "csv", tmp_path / "requests.csv")
    frame = pd.read_csv(tmp_path / "requests.csv", keep_default_na=True)
    assert list(frame.columns) == list(result.requests.columns)
    assert frame["arrival_ns"].tolist() == result.requests["arrival_ns"].tolist()
    assert frame["ttft_ns"].isna().sum() == result.summary["requests"]["rejected"]


def test_markdown_says_what_the_summary_says(folder: Path, tmp_path: Path, result: servesim.Result) -> None:
    text = written(folder, "markdown", tmp_path / "comment.md")
    assert "### llama-3.2-1b on 2 replicas of H200" in text
    assert f"| Requests completed | {result.summary['requests']['completed']} |" in text
    table = [line for line in text.splitlines() if line.startswith("| TTFT")]
    assert len(table) == 1
    assert table[0].count("|") == 9


@pytest.mark.parametrize("to", FORMATS)
def test_the_same_result_gives_the_same_bytes(folder: Path, to: str, tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        export(folder, to, tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_an_export_that_cannot_be_is_refused_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    def invoke(*arguments: str) -> None:
        CliRunner().invoke(app, ["export", *arguments], catch_exceptions=False, standalone_mode=False)

    with pytest.raises(servesim.UserError, match='did you mean "perfetto"'):
        invoke(str(folder), "--to", "perfeto", "-o", str(tmp_path / "x"))
    with pytest.raises(servesim.UserError, match="cannot be written"):
        invoke(str(folder), "--to", "csv", "-o", str(tmp_path / "no" / "x"))
    with pytest.raises(servesim.UserError, match="not a servesim result"):
        invoke(str(tmp_path), "--to", "csv", "-o", str(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []
