"""A run whose requests come and go in chunks is the run that keeps them all."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import servesim
from servesim.contracts.request import Request
from servesim.errors import UserError
from servesim.metrics.sketch import RELATIVE_ERROR
from servesim.records import recorder
from servesim.records.columns import REQUEST_COLUMNS
from servesim.traces import load_trace, open_stream, open_trace, save_trace, synthesize
from servesim.workload.trace import Samples, Trace
from servesim.workload.trace_stream import TraceFacts, TraceStream

BASE: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h200", "slo": "ttft:25,tpot:7,e2el:900"}
SYNTH = "synth:rate=40,prompt=lognormal(p50=300,p95=900),output=uniform(1,150)"
SAMPLES = SYNTH + ",n=uniform(1,4)"
APPROXIMATE = {"p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99.9"}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of traces, of requests and steps on their way to a file, and of gaps."""
    monkeypatch.setattr("servesim.workload.trace_stream.CHUNK", 64)
    monkeypatch.setattr(recorder, "FLUSH_CELLS", 60 * len(REQUEST_COLUMNS))
    monkeypatch.setattr(recorder, "POOL_GAPS", 500)


def labelled(trace: Trace) -> Trace:
    count = len(trace)
    labels = {
        "class": tuple(("gold", "", "free")[i % 3] for i in range(count)),
        "tenant": tuple(f"t{i * 7 % 5}" for i in range(count)),
    }
    return replace(trace, labels=labels, request_id=tuple(f"r{i}" for i in range(count)))


def some_sampled(trace: Trace) -> Trace:
    """The trace with single answers in its first, third and last chunk."""
    assert trace.samples is not None
    row = trace.samples.rows
    single = (row < 64) | ((row >= 128) & (row < 192)) | (row >= 384)
    counts = np.bincount(row[~single], minlength=len(trace))
    return replace(labelled(trace), samples=Samples.of(counts, trace.samples.output_len[~single]))


REPLICAS = {"trace": SYNTH, "requests": 500, "rate": 100, "replicas": 3}
PREFIXES = {"trace": SYNTH + ",prefix=shared(groups=4,length=256)"}
DECIDER = "llm-d:non_cached_tokens=300"
CASES: dict[str, dict[str, Any]] = {
    "open": {"trace": SYNTH, "requests": 700, "kv": "paged"},
    "skip and rate": {"trace": SYNTH, "requests": 500, "skip": 100, "rate": 25},
    "closed loop": {"trace": SYNTH, "requests": 300, "clients": {"max_concurrency": 8}},
    "impatient": {"trace": SYNTH, "requests": 500, "rate": 300, "clients": {"ttft_timeout_s": 0.2}},
    "replicas": REPLICAS,
    "too long": {"trace": SYNTH, "requests": 300, "engine": {"max_model_len": 700}},
    "prefixes": {**PREFIXES, "requests": 400},
    "predicted": {"trace": SYNTH, "requests": 400, "rate": 80, "predictor": "random:error=0.3", "scheduler": "sjf"},
    "preset": {"trace": "preset:azure-conv-2023", "requests": 300},
    "apart": {"trace": SYNTH, "requests": 400, "rate": 60, "pd": "2x1:2x1"},
    "some apart": {"trace": SYNTH, "requests": 400, "rate": 60, "pd": "2x1:2x1", "disaggregate": DECIDER},
    "offload": {**PREFIXES, "requests": 400, "offload": "cpu=1GiB", "engine": {"num_gpu_blocks": 400}},
    "old views": {**REPLICAS, "router": "least-requests:counts=reported", "cluster": {"report_every_s": 1}},
    "apart, with crashes and host memory": {
        **PREFIXES,
        "requests": 700,
        "rate": 60,
        "pd": "2x1:2x1",
        "offload": "cpu=1GiB",
        "engine": {"num_gpu_blocks": 400},
        "cluster": {"failures": ["crash:replica=2,at=2,restart=1", "crash:replica=0,at=3,restart=1"], "migrations": 2},
    },
    "classes": {"slo_classes": {"gold": {"e2el": 400}}, "requests": 400},
    "samples": {"trace": SAMPLES, "requests": 400, "predictor": "random:error=0.3", "scheduler": "sjf"},
    "samples after their prompt": {"trace": SAMPLES, "requests": 300, "scheduler": "sglang", "kv": "prefix-radix"},
    "forks": {"trace": SAMPLES, "requests": 300, "scheduler": "continuous", "kv": "paged"},
    "impatient samples": {
        "trace": SAMPLES,
        "requests": 400,
        "rate": 60,
        "replicas": 2,
        "clients": {"ttft_timeout_s": 0.2, "timeout_s": 1.5, "max_concurrency": 60},
    },
    "samples of some": {"requests": 400},
    "lost samples": {
        "trace": SAMPLES,
        "requests": 400,
        "rate": 60,
        "replicas": 2,
        "scheduler": "sglang",
        "kv": "prefix-radix",
        "clients": {"ttft_timeout_s": 0.15},
        "cluster": {"failures": ["crash:replica=0,at=2,restart=1", "crash:replica=1,at=4,restart=1"]},
    },
}


def settings_of(name: str) -> dict[str, Any]:
    settings = {**BASE, **CASES[name]}
    if name == "classes":
        settings["trace"] = labelled(synthesize(SYNTH.removeprefix("synth:"), 400))
    if name == "samples of some":
        settings["trace"] = some_sampled(synthesize(SAMPLES.removeprefix("synth:"), 400))
    return settings


def compare(streamed: Any, kept: Any, where: str = "") -> None:
    """Compare figures: percentiles and estimates are within the stated error, others differ by rounding."""
    if isinstance(kept, dict):
        assert set(streamed) == set(kept), where
        for key in kept:
            close = key in APPROXIMATE and any(name in where for name in ("latency_ms", "stages_ms", "ttft_ms"))
            if close:
                assert streamed[key] == pytest.approx(kept[key], rel=RELATIVE_ERROR, abs=0), f"{where}.{key}"
            else:
                compare(streamed[key], kept[key], f"{where}.{key}")
    elif isinstance(kept, float) or (isinstance(kept, list) and kept and isinstance(kept[0], float)):
        by_tenth = where.endswith("_by_tenth")
        assert streamed == pytest.approx(kept, rel=0.01 if by_tenth else 1e-9, abs=0.01 if by_tenth else 0), where
    elif where.endswith(".enough_requests") and kept is not None:
        assert streamed == pytest.approx(kept, rel=0.05), where
    else:
        assert streamed == kept, where


@pytest.mark.medium
@pytest.mark.parametrize("name", CASES)
def test_it_says_what_the_run_that_keeps_all_says(tmp_path: Path, name: str) -> None:
    settings = settings_of(name)
    kept = servesim.simulate(**settings, out=tmp_path / "kept")
    streamed = servesim.simulate(**settings, stream=True, out=tmp_path / "streamed")
    for file in ("steps.parquet", "deliveries.parquet"):
        assert (tmp_path / "streamed" / file).read_bytes() == (tmp_path / "kept" / file).read_bytes()
    assert streamed.requests.equals(kept.requests)
    assert streamed.samples.equals(kept.samples)
    assert servesim.Result.load(tmp_path / "streamed").samples.equals(kept.samples)
    several = kept.samples["sample"].any()
    assert (tmp_path / "streamed/samples.parquet").exists() == several
    assert several or len(pq.ParquetFile(tmp_path / "streamed/requests.parquet").read_row_group(0)) == 60
    ours, theirs = dict(streamed.summary), dict(kept.summary)
    assert ours.pop("scenario") == {**theirs.pop("scenario"), "stream": True}
    assert ours["notes"].pop().startswith("streamed: percentiles of latencies are accurate to 0.1 %")
    compare(ours, theirs)


def test_the_same_bytes_come_again_and_from_the_scenario_it_wrote(tmp_path: Path) -> None:
    servesim.simulate(**settings_of("open"), stream=True, out=tmp_path / "one")
    servesim.simulate(tmp_path / "one/scenario.yaml", out=tmp_path / "two")
    for file in ("summary.json", "requests.parquet", "steps.parquet", "deliveries.parquet", "scenario.yaml"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert servesim.Result.load(tmp_path / "two").requests["row"].tolist() == list(range(700))


@pytest.mark.medium
def test_no_more_requests_are_held_than_are_on_their_way() -> None:
    held = []
    before = sum(isinstance(o, Request) for o in gc.get_objects())  # of tests before

    def on_ready(setup: Any) -> Callable[[int, int], None]:
        return lambda now, left: held.append(sum(isinstance(o, Request) for o in gc.get_objects()) - before)

    result = servesim.simulate(**{**settings_of("open"), "requests": 2000}, stream=True, on_ready=on_ready)
    assert result.summary["requests"]["completed"] == 2000
    assert len(held) == 31
    assert max(held) < 400


CACHED = {"trace": "synth:rate=60,prompt=300,output=40,prefix=shared(groups=4,length=128)", "replicas": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"router": "least-requests"},
        {"router": "dynamo-kv"},
        {"router": "least-requests:counts=reported", "cluster": {"report_every_s": 1}},
    ],
)
def test_memory_stops_growing_once_the_caches_are_full(settings: dict[str, Any]) -> None:
    held: dict[int, int] = {}

    def measured(now: int, left: int) -> None:
        if left in (1152, 1920):
            gc.collect()
            held[left] = tracemalloc.get_traced_memory()[0]

    def on_ready(setup: Any) -> Callable[[int, int], None]:
        tracemalloc.start()
        return measured

    engine = {"num_gpu_blocks": 400}
    try:
        servesim.simulate(
            **BASE, **CACHED, **settings, engine=engine, requests=2000, stream=True, conclude=False, on_ready=on_ready
        )
    finally:
        tracemalloc.stop()
    assert (held[1920] - held[1152]) / 768 < 50, "bytes per request"


def test_without_a_directory_there_are_figures_and_no_records() -> None:
    result = servesim.simulate(**settings_of("open"), stream=True)
    assert result.summary["requests"]["completed"] == 700
    for ask in (lambda: result.requests, lambda: result.steps, lambda: result.save("nowhere")):
        with pytest.raises(UserError, match="stores records only in a result directory"):
            ask()


SPECS = (
    SYNTH,
    "synth:arrivals=gamma(cv=2),rate=7,prompt=empirical(1|5|90),output=3",
    "synth:arrivals=constant,rate=7,prefix=shared(groups=3,length=40,share=0.5)",
    "synth:arrivals=mmpp(ratio=10,on=5,off=20)",
    "synth:lengths=azure-conv-2023,rate=3",
    "preset:mooncake-conversation",
    SAMPLES,
    SYNTH + ",n=empirical(1|1|1|1|1|1|1|1|1|1|1|2)",
)


def same(stream: TraceStream, trace: Trace) -> None:
    """The chunks are the rows of the trace, and what is said of both is the same."""
    chunks = list(stream.read())
    assert len(chunks) > 1
    for name in ("arrival_ns", "prompt_len", "output_len", "max_tokens", "stop", "priority"):
        assert np.concatenate([getattr(chunk, name) for chunk in chunks]).tolist() == getattr(trace, name).tolist()
    if trace.content is not None:
        runs = [chunk.content.runs(row) for chunk in chunks if chunk.content for row in range(len(chunk))]
        assert runs == [trace.content.runs(row) for row in range(len(trace))]
    assert np.concatenate([chunk.n for chunk in chunks]).tolist() == trace.n.tolist()
    lengths = [chunk.samples.output_len for chunk in chunks if chunk.samples is not None]
    assert [*np.concatenate([[], *lengths])] == ([*trace.samples.output_len] if trace.samples is not None else [])
    assert TraceFacts.of(stream, 16) == TraceFacts.of(trace, 16)


@pytest.mark.parametrize("spec", SPECS)
def test_a_trace_drawn_in_chunks_is_the_trace(spec: str) -> None:
    same(open_stream(spec, 300, 5), open_trace(spec, 300, 5))


def test_parquet_files_are_read_in_chunks(tmp_path: Path) -> None:
    trace = labelled(synthesize("rate=9,prefix=shared(groups=3,length=40)", 300))
    trace = replace(trace, cancel_ns=np.arange(300))
    save_trace(trace, tmp_path / "whole.parquet", "parquet")
    (tmp_path / "folder").mkdir()
    for i, rows in enumerate(np.split(np.arange(300), [100, 170])):
        save_trace(trace.take(rows), tmp_path / f"folder/part-{i}.parquet", "parquet")
    same(open_stream(str(tmp_path / "whole.parquet")), trace)
    same(open_stream(str(tmp_path / "folder")), load_trace(tmp_path / "folder"))
    assert load_trace(tmp_path / "folder").arrival_ns.tolist() == trace.arrival_ns.tolist()


@pytest.mark.parametrize("form", ["csv", "jsonl", "azure"])
def test_text_files_are_read_in_chunks(tmp_path: Path, form: str) -> None:
    trace = synthesize("rate=9" + (",prefix=shared(groups=3,length=40)" if form == "jsonl" else ""), 200)
    save_trace(labelled(trace) if form != "azure" else trace, tmp_path / "trace", form)
    same(open_stream(str(tmp_path / "trace")), load_trace(tmp_path / "trace"))


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_samples_are_read_in_chunks(tmp_path: Path, form: str) -> None:
    trace = some_sampled(synthesize(SAMPLES.removeprefix("synth:"), 400))
    save_trace(trace, tmp_path / "trace", form)
    same(open_stream(str(tmp_path / "trace")), load_trace(tmp_path / "trace"))


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_clock_times_count_from_the_first_row_of_the_file(tmp_path: Path, form: str) -> None:
    trace = synthesize("rate=9", 200)
    save_trace(replace(trace, arrival_ns=trace.arrival_ns + 10**18), tmp_path / "trace", form)
    same(open_stream(str(tmp_path / "trace")), load_trace(tmp_path / "trace"))


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_files_of_conversations_are_refused(tmp_path: Path, form: str) -> None:
    save_trace(replace(synthesize("turns=chat(turns=3,think=1)", 100), content=None), tmp_path / "trace", form)
    with pytest.raises(UserError, match="requests wait for others"):
        servesim.simulate(**BASE, trace=str(tmp_path / "trace"), stream=True)


def test_a_text_file_out_of_order_is_refused_also_between_chunks(tmp_path: Path) -> None:
    rows = "".join(f"{at},10,10\n" for at in (*range(100, 164), 5))
    (tmp_path / "trace.csv").write_text("arrival_ns,prompt_len,output_len\n" + rows)
    with pytest.raises(UserError, match="row 64: arrives before the row above it"):
        servesim.simulate(**BASE, trace=str(tmp_path / "trace.csv"), stream=True)


def test_a_folder_of_parquet_files_out_of_order_names_the_row(tmp_path: Path) -> None:
    trace = synthesize("rate=9", 100)
    for i, rows in enumerate(np.split(np.arange(100), [50])):
        save_trace(trace.take(rows), tmp_path / f"{1 - i}.parquet", "parquet")
    with pytest.raises(UserError, match="row 51: arrives before the request above it"):
        servesim.simulate(**BASE, trace=str(tmp_path), stream=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": {"retries": 1}}, "clients.retries needs the whole trace in memory"),
        ({"shape": ["thin:keep=0.5"]}, "shape needs the whole trace"),
        ({"trace": "synth:turns=chat(turns=3,think=1)"}, "requests wait for others"),
        ({"skip": 5000}, "skip is 5000, but trace synth:rate=1 has no more requests"),
        ({"rate": 0.5, "requests": 1}, "all requests arrive at once"),
    ],
)
def test_what_needs_all_rows_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        servesim.simulate(**{**BASE, "trace": "synth:rate=1", **settings}, stream=True)


def test_the_command_line_streams_without_a_report(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from servesim.cli.app import app

    command = ["run", "--trace", SYNTH, "--requests", "100", "--model", "llama-3.1-8b", "--gpu", "h200", "--stream"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "out/report.html").exists()
    assert json.loads((tmp_path / "out/summary.json").read_text())["scenario"]["stream"] is True
