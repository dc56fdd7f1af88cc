"""Exported traces in Perfetto's own trace processor. Skipped where `make trace-processor` has not fetched it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

import servesim
from servesim.contracts.request import State
from servesim.reports.export import export
from servesim.reports.tokens import Tokens

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not ((ROOT / ".trace-processor" / ".ready").exists() and shutil.which("node")),
        reason="no trace processor on this machine (make trace-processor): exported traces are not loaded",
    ),
]
WORKLOAD: dict[str, Any] = {
    "trace": "synth:rate=60,prompt=lognormal(p50=300,p95=900),output=lognormal(p50=30,p95=90)",
    "requests": 100,
    "model": "llama-3.2-1b",
    "gpu": "h200",
}
RUNS: dict[str, dict[str, Any]] = {
    "equal steps": {"trace": "preset:azure-conv-2023", "requests": 100, "model": "llama-3.1-8b"},
    "short of memory": {"engine": {"num_gpu_blocks": 70, "max_model_len": 1000}},
    "replicas": {"replicas": 3, "router": "round-robin"},
    "stages": {"pp": 2, "replicas": 2, "scheduler": "vllm:max_num_batched_tokens=64"},
    "speculation": {"model": "llama-3.1-8b", "speculation": "eagle3:k=3"},
}


def loaded(trace: Path) -> TraceProcessor:
    config = TraceProcessorConfig(bin_path=str(ROOT / "tests" / "support" / "trace_processor.cjs"))
    return TraceProcessor(trace=str(trace), config=config)


def rows(processor: TraceProcessor, query: str) -> list[tuple[Any, ...]]:
    return [tuple(vars(row).values()) for row in processor.query(query)]


def complaints(processor: TraceProcessor) -> list[tuple[Any, ...]]:
    return rows(processor, "SELECT name, value FROM stats WHERE severity != 'info' AND value > 0")


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, ...]]:
    """What the run is for, its result, and its trace in the processor."""
    folder = tmp_path_factory.mktemp("run")
    result = servesim.simulate(**(WORKLOAD | RUNS[request.param]), out=folder / "run")
    export(folder / "run", "perfetto", folder / "trace.json.gz")
    with loaded(folder / "trace.json.gz") as processor:
        yield request.param, result, processor


def test_a_trace_loads_without_complaint(run: tuple[str, servesim.Result, TraceProcessor]) -> None:
    kind, result, processor = run
    engine, s = result.summary["engine"], result.steps
    assert {
        "equal steps": engine["steps"] > 4 * len(s),
        "short of memory": engine["preemptions"] > 0 and (result.requests["state"] != State.FINISHED).any(),
        "replicas": s["replica"].nunique() == 3,
        "stages": (s.groupby("replica")["start_ns"].shift(-1) < s["end_ns"]).any(),
        "speculation": s["drafts"].sum() > 0,
    }[kind]
    assert complaints(processor) == []


def test_complaints_are_heard(tmp_path: Path) -> None:
    """Of two slices of one track that overlap, the processor drops one and says so."""
    slices = [{"ph": "X", "pid": 1, "tid": 2, "name": "step", "ts": ts, "dur": 10} for ts in (0, 5)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": slices}))
    with loaded(tmp_path / "trace.json") as processor:
        assert complaints(processor) == [("slice_drop_overlapping_complete_event", 1)]


def test_each_step_is_a_slice_to_the_nanosecond(run: tuple[str, servesim.Result, TraceProcessor]) -> None:
    _, result, processor = run
    slices = rows(
        processor,
        "SELECT process.name, EXTRACT_ARG(slice.arg_set_id, 'args.step'), slice.ts, slice.dur FROM slice"
        " JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)",
    )
    steps = Tokens(result).steps
    replica = result.steps["replica"].to_numpy()[steps.row].tolist()
    lasts = (steps.end_ns - steps.begin_ns).tolist()
    times = zip(steps.step.tolist(), steps.begin_ns.tolist(), lasts, strict=True)
    assert sorted(slices) == sorted((f"replica {r}", *of) for r, of in zip(replica, times, strict=True))
    assert len(slices) == result.summary["engine"]["steps"]
    names = Counter(name for (name,) in rows(processor, "SELECT name FROM slice WHERE category = 'step'"))
    assert names == {name: n for name, n in result.summary["engine"]["steps_by_kind"].items() if n}


def test_processes_and_their_tracks_have_names(run: tuple[str, servesim.Result, TraceProcessor]) -> None:
    kind, result, processor = run
    replicas = [f"replica {r}" for r in range(result.steps["replica"].nunique())]
    named = rows(processor, "SELECT name FROM process WHERE pid > 0 ORDER BY pid")
    assert [name for (name,) in named] == [*replicas, "requests"]
    tracks = rows(
        processor,
        "SELECT DISTINCT process.name AS process, thread.name AS track, is_main_thread FROM thread_track"
        " JOIN thread USING (utid) JOIN process USING (upid) ORDER BY 1, 2",
    )
    lanes = ("steps 1", "steps 2") if kind == "stages" else ("steps 1",)
    assert tracks == [(replica, lane, 0) for replica in replicas for lane in lanes]


def test_counters_are_the_step_table(run: tuple[str, servesim.Result, TraceProcessor]) -> None:
    _, result, processor = run
    counters = rows(
        processor,
        "SELECT process.name AS process, process_counter_track.name AS counter, ts, value FROM counter"
        " JOIN process_counter_track ON counter.track_id = process_counter_track.id JOIN process USING (upid)",
    )
    s = result.steps
    replicas = [f"replica {r}" for r in s["replica"]]
    values = {
        "sequences in a step": s["decode_count"] + s["prefill_pieces"],
        "KV tokens used": s["kv_used"],
        "KV tokens not filled": s["kv_internal"],
    }
    expected = [
        (replica, name, ts, value)
        for name, column in values.items()
        for replica, ts, value in zip(replicas, s["start_ns"], column, strict=True)
    ]
    assert sorted(counters) == sorted(expected)


def test_each_request_is_a_track_of_its_phases(run: tuple[str, servesim.Result, TraceProcessor]) -> None:
    _, result, processor = run
    slices = rows(
        processor,
        "SELECT track_id, depth, slice.name, ts, dur FROM slice JOIN process_track ON slice.track_id = process_track.id"
        " JOIN process USING (upid) WHERE process.name = 'requests' ORDER BY track_id, depth, ts",
    )
    tracks: dict[int, list[tuple[Any, ...]]] = {}
    for track, *of in slices:
        tracks.setdefault(track, []).append(tuple(of))
    frame = result.requests
    assert len(tracks) == len(frame)
    starts = np.array(sorted(track[0][2] for track in tracks.values()))
    np.testing.assert_array_equal(starts, np.sort(frame["arrival_ns"]))
    spans = sorted(track[0][2] + track[0][3] for track in tracks.values())
    np.testing.assert_array_equal(spans, np.sort(frame["finished_ns"]))
    for (depth, label, begin, lasts), *phases in tracks.values():
        assert depth == 0
        assert label.startswith("request ")
        assert [name for _, name, _, _ in phases] == ["waiting", "prompt", "output"][: len(phases)]
        assert sum(dur for _, _, _, dur in phases) == lasts
        assert all(begin <= ts for _, _, ts, _ in phases)
    answered = sum(len(track) == 4 for track in tracks.values())
    assert answered == (frame["first_token_ns"] >= 0).sum()
