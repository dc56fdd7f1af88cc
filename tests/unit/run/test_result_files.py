"""Results: what they hold, that the same inputs give the same bytes, and that there is a whole one or none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import servesim
from servesim.errors import UserError
from servesim.records.columns import STEP_COLUMNS
from servesim.run.result_files import ResultWriter, write_text

REPRODUCIBLE = ("summary.json", "requests.parquet", "steps.parquet", "deliveries.parquet", "scenario.yaml")
SETTINGS: dict[str, Any] = {
    "trace": "synth:rate=20,prompt=300,output=lognormal(p50=20,p95=60),prefix=shared(groups=3,length=200)",
    "requests": 60,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "replicas": 2,
    "slo": "ttft:500",
}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in REPRODUCIBLE}


def test_three_lines_of_python_give_figures_and_data_frames() -> None:
    result = servesim.simulate(**SETTINGS)
    assert result.summary["requests"]["completed"] == len(result.requests) == 60
    assert list(result.steps.columns) == list(STEP_COLUMNS)
    assert result.summary["engine"]["steps"] == result.steps["k"].sum()
    assert result.summary["latency_ms"]["ttft"]["mean"] == pytest.approx(result.requests["ttft_ns"].mean() / 1e6)
    assert result.summary["latency_ms"]["tpot"]["p90"] == pytest.approx(result.requests["tpot_ns"].quantile(0.9) / 1e6)
    assert result.summary["prefix_cache"]["hit_tokens"] > 0


def test_same_inputs_same_bytes_however_the_result_is_made(tmp_path: Path) -> None:
    result = servesim.simulate(**SETTINGS, out=tmp_path / "streamed")
    servesim.simulate(**SETTINGS).save(tmp_path / "saved")
    servesim.simulate(tmp_path / "streamed" / "scenario.yaml", out=tmp_path / "rerun")
    servesim.Result.load(tmp_path / "rerun").save(tmp_path / "loaded")
    expected = contents(tmp_path / "streamed")
    for other in ("saved", "rerun", "loaded"):
        assert contents(tmp_path / other) == expected, other
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loaded", "rerun", "saved", "streamed"]
    pd.testing.assert_frame_equal(result.steps, pd.read_parquet(tmp_path / "saved" / "steps.parquet"))


def test_fast_and_reference_mode_report_the_same() -> None:
    tight = {**SETTINGS, "rate": 400, "engine": {"num_gpu_blocks": 40}}
    fast = servesim.simulate(**tight, check=True).summary
    reference = servesim.simulate(**tight, mode="reference", check=True).summary
    assert fast["engine"]["preemptions"] > 0
    assert (fast["scenario"].pop("mode"), reference["scenario"].pop("mode")) == ("fast", "reference")
    assert json.dumps(fast) == json.dumps(reference)


def test_a_result_says_what_made_it() -> None:
    summary = servesim.simulate(**SETTINGS).summary
    provenance = summary["provenance"]
    assert provenance["versions"]["servesim"] == servesim.__version__
    assert len(provenance["trace"]["sha256"]) == 64
    assert set(provenance["kernel_tables"]["sha256"]) >= {"gemm.parquet", "attention.parquet"}
    assert summary["scenario"]["seed"] == 0
    other = servesim.simulate(**SETTINGS, seed=1).summary["provenance"]
    assert other["trace"]["sha256"] != provenance["trace"]["sha256"]


def test_a_run_by_formula_alone_says_so() -> None:
    summary = servesim.simulate(**SETTINGS, kernel_tables="roofline").summary
    assert summary["cost_shares"]["roofline"] == 1.0
    assert summary["provenance"]["kernel_tables"] is None
    assert any(
        one.startswith("all costs are roofline estimates: no kernel measurement was used")
        for one in summary["warnings"]
    )


def test_timing_tells_start_up_and_loop_apart(tmp_path: Path) -> None:
    servesim.simulate(**SETTINGS, out=tmp_path / "r")
    timing = json.loads((tmp_path / "r" / "timing.json").read_text())
    assert timing["requests_per_cpu_s"] == pytest.approx(60 / timing["loop_cpu_s"])
    assert timing["startup_wall_s"] > 0
    assert timing["peak_memory_mb"] > 10


def test_an_earlier_result_is_replaced_and_anything_else_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "r"
    servesim.simulate(**SETTINGS, out=out)
    servesim.simulate(**{**SETTINGS, "requests": 5}, out=out)
    assert len(pd.read_parquet(out / "requests.parquet")) == 5
    assert [p.name for p in tmp_path.iterdir()] == ["r"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("important")
    with pytest.raises(UserError, match="exists and is not a servesim result"):
        servesim.simulate(**SETTINGS, out=mine)
    with pytest.raises(UserError, match="exists and is not a directory"):
        servesim.simulate(**SETTINGS, out=mine / "thesis.txt")
    assert [p.name for p in mine.iterdir()] == ["thesis.txt"]


def test_an_unwritable_place_is_found_out_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        # the trace does not exist either: the place is looked at first
        servesim.simulate(trace="none.csv", model="llama-3.2-1b", gpu="h200", out=tmp_path / "file" / "r")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def stop(now_ns: int, left: int) -> None:
        assert any(tmp_path.iterdir()), "the result is being written"
        raise error

    with pytest.raises(error):
        servesim.simulate(**{**SETTINGS, "requests": 200}, out=tmp_path / "r", on_ready=lambda setup: stop)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_finishing_leaves_the_earlier_result(tmp_path: Path) -> None:
    out = tmp_path / "r"
    servesim.simulate(**SETTINGS, out=out)
    before = contents(out)
    writer = ResultWriter(out)
    with pytest.raises(ValueError, match="JSON"):
        writer.finish({"not a number": float("nan")}, servesim.Result.load(out)._requests, "", {})
    writer.discard()
    assert contents(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_what_is_no_result_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a servesim result"):
        servesim.Result.load(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(UserError, match="damaged result"):
        servesim.Result.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "spoil", "said"),
    [
        ("steps.parquet", lambda data: data[:100], "magic"),
        ("requests.parquet", lambda data: data[:100], "magic"),
        ("summary.json", lambda data: b"{}", "no cost_shares"),
        ("summary.json", lambda data: b"[]", "no cost_shares"),
        ("summary.json", lambda data: data.replace(b'"speculation"', b'"drafts"'), "it has no speculation"),
    ],
)
def test_a_damaged_result_is_one_line(file: str, spoil: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    servesim.simulate(**SETTINGS, out=out)
    (out / file).write_bytes(spoil((out / file).read_bytes()))
    with pytest.raises(UserError, match=f"{out / file}: damaged result: .*{said}"):
        servesim.Result.load(out)


def test_a_table_damaged_after_its_schema_was_read_is_one_line(tmp_path: Path) -> None:
    servesim.simulate(**SETTINGS, out=tmp_path / "r")
    result = servesim.Result.load(tmp_path / "r")
    (tmp_path / "r" / "steps.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="damaged result"):
        _ = result.steps
    with pytest.raises(UserError, match="damaged result"):
        result.save(tmp_path / "copy")
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_a_text_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"--json .*folder: cannot be written"):
        write_text(tmp_path / "folder", "{}", "--json")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_run_in_which_everything_is_rejected_is_a_result_too(tmp_path: Path) -> None:
    settings = {**SETTINGS, "engine": {"num_gpu_blocks": 3}}
    summary = servesim.simulate(**settings, out=tmp_path / "r").summary
    assert summary["requests"]["rejected"] == 60
    assert list(summary["requests"]["rejection_reasons"].values()) == [60]
    assert summary["latency_ms"]["ttft"] is None
    assert not [note for note in summary["warnings"] if note.startswith("replicas=")]  # nobody was served anywhere
    assert len(servesim.Result.load(tmp_path / "r").steps) == 0


def test_a_recorded_trace_is_replayed_to_the_token(shared_data: Callable[[str], Path]) -> None:
    trace = shared_data("traces/azure/AzureLLMInferenceTrace_conv.csv")
    result = servesim.simulate(trace=str(trace), requests=500, model="llama-3.1-8b", gpu="h200")
    recorded = pd.read_csv(trace, nrows=500)
    assert result.requests["prompt_len"].tolist() == recorded["ContextTokens"].tolist()
    assert result.requests["output_len"].tolist() == recorded["GeneratedTokens"].tolist()
    assert result.requests["row"].tolist() == list(range(500))


def test_files_of_others_in_a_result_directory_are_never_deleted(tmp_path: Path) -> None:
    out = tmp_path / "r"
    servesim.simulate(**SETTINGS, out=out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"it contains notes\.txt"):
        servesim.simulate(**SETTINGS, out=out)
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(("name", "message"), [("", "is not the name of a directory"), ("link", "is a symbolic link")])
def test_places_that_are_no_directory_of_their_own_are_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(UserError, match=message):
        servesim.simulate(**SETTINGS, out=tmp_path / name if name else "")


def test_a_device_or_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "{}", "--json")
        assert (os.read(reader, 9), pipe.is_fifo()) == (b"{}", True)
    finally:
        os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
def test_a_full_device_is_one_line() -> None:
    with pytest.raises(UserError, match="--json /dev/full: cannot be written: No space left"):
        write_text(Path("/dev/full"), "{}", "--json")
    assert Path("/dev/full").is_char_device()
