"""Logs in the formats of their tools (../shared/traces/user_logs): all are read, and those of one traffic agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from servesim.experiments.recording_formats import read_folder
from servesim.traces import load_trace
from servesim.traces.formats import detect_format

LOGS = Path(__file__).parents[3] / "shared/traces/user_logs"
pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason="no ../shared/traces/user_logs")
FORMATS = {
    "bench.json": "vllm-bench",
    "day.csv": "csv",
    "genai_perf.json": "genai-perf",
    "guidellm.json": "guidellm",
    "log.csv": "log",
    "log.jsonl": "log",
    "metrics.prom": "prometheus",
    "mine.csv": "csv",
    "openai.csv": "log",
    "otel_flat.json": "otel",
    "otlp.json": "otel",
    "profile_export.jsonl": "aiperf",
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_log_is_read_as_what_it_is(name: str) -> None:
    assert detect_format(LOGS / name) == FORMATS[name]
    assert len(load_trace(LOGS / name)) >= 200


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl", "openai.csv"])
def test_a_gateways_log_is_the_trace_of_its_native_columns(name: str) -> None:
    native, found = load_trace(LOGS / "mine.csv"), load_trace(LOGS / name)
    for column in ("arrival_ns", "prompt_len", "output_len"):
        assert getattr(found, column).tolist() == getattr(native, column).tolist()


@pytest.mark.parametrize("name", ["bench.json", "otlp.json", "otel_flat.json", "profile_export.jsonl", "guidellm.json"])
def test_clients_of_one_traffic_recorded_the_same_requests(name: str) -> None:
    native, found = load_trace(LOGS / "mine.csv"), load_trace(LOGS / name)
    count = len(found)
    assert found.prompt_len.tolist() == native.prompt_len[:count].tolist()
    assert found.output_len.tolist() == native.output_len[:count].tolist()
    assert np.abs(found.arrival_ns - native.arrival_ns[:count]).max() < 1_000_000  # native ones are in milliseconds


def test_histograms_have_the_shares_and_means_of_the_requests_they_count() -> None:
    native, found = load_trace(LOGS / "mine.csv"), load_trace(LOGS / "metrics.prom")
    for side in ("prompt_len", "output_len"):
        ours, theirs = getattr(found, side), getattr(native, side)
        assert ours.mean() == pytest.approx(theirs.mean(), rel=0.002)
        for edge in (128, 256, 512, 1000, 2000, 5000, 10000):
            assert int((ours <= edge).sum()) == int((theirs <= edge).sum())


@pytest.mark.parametrize(
    "name",
    [
        "bench.json",
        "genai_perf.json",
        "guidellm.json",
        "log.csv",
        "otel_flat.json",
        "otlp.json",
        "profile_export.jsonl",
    ],
)
def test_latencies_are_the_measured_side(name: str) -> None:
    (run,) = read_folder(LOGS / name)
    assert np.isfinite(run.e2el_ms).all()
    assert np.isfinite(run.ttft_ms).all() == (name in ("bench.json", "genai_perf.json", "profile_export.jsonl"))
