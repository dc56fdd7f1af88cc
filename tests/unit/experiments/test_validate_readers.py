"""Recorded runs are read by their content, closed loops replayed as such, errors defined as documented."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.experiments.recording import RecordedRun, Server
from servesim.experiments.recording_formats import read_folder
from servesim.experiments.recording_replay import replay
from servesim.experiments.validate import compare, validate

CHUNKS = "send_time_us,first_chunk_time_us,last_chunk_time_us,server_input_tokens,output_tokens,extra\n"
SETTINGS = {"vllm_version": "0.23.0", "model": "meta-llama/Llama-3.1-8B", "gpu": "H100 SXM", "num_gpu_blocks": 900}


def chunk_run(folder: Path, name: str = "run.csv") -> Path:
    rows = [(1_000_000 + i * 200_000, 100 + i, 5 + i) for i in range(6)]
    text = CHUNKS + "".join(
        f"{sent},{sent + 40_000},{sent + 40_000 + 9_000 * (out - 1)},{new},{out},x\n" for sent, new, out in rows
    )
    file = folder / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    (folder / "server_config.json").write_text(json.dumps(SETTINGS))
    return file


@pytest.mark.parametrize("name", ["run.csv", "odd name.csv.gz"])
def test_a_client_log_is_read_with_the_settings_beside_it(name: str, tmp_path: Path) -> None:
    chunk_run(tmp_path, name)
    (run,) = read_folder(tmp_path)
    server = run.server
    assert (server.model, server.gpu, server.engine, server.num_blocks) == ("llama-3.1-8b", "h100", "vllm 0.23.0", 900)
    assert run.arrival_ns.tolist() == [i * 200_000_000 for i in range(6)]
    assert run.prompt_len.tolist() == [100, 101, 102, 103, 104, 105]
    assert run.ttft_ms.tolist() == [40.0] * 6
    np.testing.assert_allclose(run.tpot_ms, 9.0)


def test_validate_reports_signed_errors_and_their_mean_size_per_request(tmp_path: Path) -> None:
    chunk_run(tmp_path)
    (got,) = validate(tmp_path)
    written = got.to_dict()
    assert written["name"] == "run"
    assert got.simulated is not None
    assert got.error is not None
    measured, simulated = got.measured["ttft"]["mean"], got.simulated["ttft"]["mean"]
    assert measured == 40.0
    assert got.error["ttft"]["mean"] == pytest.approx(simulated / measured - 1)
    assert got.error["ttft"]["per_request"] >= abs(got.error["ttft"]["mean"]) - 1e-12
    assert set(written["error"]) == {"ttft", "tpot", "e2el", "output_throughput"}
    assert written["zero_shot"]["error"]["ttft"]["mean"] < written["error"]["ttft"]["mean"]


def test_a_folder_without_kernel_tables_is_refused(tmp_path: Path) -> None:
    chunk_run(tmp_path)
    with pytest.raises(UserError, match="contains no kernel tables"):
        validate(tmp_path, tables=tmp_path / "nowhere")


def test_repeats_of_a_run_show_their_noise(tmp_path: Path) -> None:
    chunk_run(tmp_path, "a.csv")
    other = chunk_run(tmp_path, "b.csv")
    other.write_text(other.read_text().replace(",x\n", ",y\n"))
    first, second = validate(tmp_path)
    assert first.noise is not None
    assert second.noise is not None
    assert first.noise["ttft"]["mean"] == 0.0


def test_a_closed_loop_replay_never_has_more_requests_than_clients() -> None:
    server = Server("llama-3.1-8b", "h100", num_blocks=4000)
    lengths = np.full(20, 50, dtype=np.int64)
    unknown = np.full(20, np.nan)
    run = RecordedRun(
        "loop", Path("loop"), "made", server, np.zeros(20, np.int64), lengths, lengths, unknown, unknown, concurrency=4
    )
    got = replay(run)
    ends = got.arrival_ns + np.rint(got.e2el_ms * 1e6).astype(np.int64)
    for arrival in got.arrival_ns.tolist():
        assert ((got.arrival_ns <= arrival) & (ends > arrival)).sum() <= 4
    assert got.arrival_ns[4:].min() > 0


def test_what_cannot_be_priced_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    chunk_run(tmp_path)
    (run,) = read_folder(tmp_path)
    got = compare(replace(run, unpriced="not priced: reason"))
    assert (got.unpriced, got.simulated) == ("not priced: reason", None)
    assert got.to_dict()["not_priced"] == "not priced: reason"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CHUNKS + "1,2,3,10\n", "line 2: 4 fields instead of 6"),
        (CHUNKS + "1,two,3,10,5,x\n", "first_chunk_time_us is 'two'"),
        ("a,b\n1,2\n", "no recorded run with latencies found"),
    ],
)
def test_damaged_logs_are_refused_with_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("max_model_len: 4096", ""),
        ("max_model_len: true", ""),
        ("max_model_len: 1\nmax_model_len: 2", "appears twice"),
        ("a: [", "not YAML"),
        ("- " * 200 + "1", "nested more than 100 deep"),
        ("[" * 3000, "nested more than 100 deep"),
    ],
)
def test_a_configuration_within_a_recording_is_read_within_the_limits(tmp_path: Path, config: str, says: str) -> None:
    (tmp_path / "run.csv").write_text("arrival_time_us,input_tokens,output_tokens,ttft_s,e2e_s\n0,5,5,0.1,0.2\n")
    meta = {"model_id": "llama-3.1-8b", "config": {"gpu": "h100"}, "exp_config": config}
    (tmp_path / "run.meta.json").write_text(json.dumps(meta))
    if says:
        with pytest.raises(UserError, match=rf"run\.csv.*: exp_config.*{says}"):
            read_folder(tmp_path)
    else:
        (run,) = read_folder(tmp_path)
        assert run.server.max_model_len == (4096 if "4096" in config else None)
