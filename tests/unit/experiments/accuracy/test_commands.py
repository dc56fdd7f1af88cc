"""Runs told by their commands: what a command sets, what it cannot, and headings that contradict it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from servesim.errors import UserError
from servesim.experiments.accuracy.answers import Answer
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.commands import COLUMNS, parsed
from servesim.experiments.accuracy.reading import read
from servesim.experiments.accuracy.recipes import recipe
from servesim.experiments.accuracy.study import Scored
from servesim.hardware import ModelSpec
from servesim.run.scenario import Scenario


def run(tmp_path: Path, **other: Any) -> Cell:
    """Read a table of one run."""
    values = (
        "qwen3-14b_a100", "random 4K input", "vllm serve Qwen/Qwen3-14B -tp 2", "500", "1997942", "99783", "245.13",
        "5000", "90",
    )  # fmt: skip
    line = {
        **dict(zip(COLUMNS, values, strict=True)),
        "engine_versions": "{'vLLM': '0.11.0', 'SGLang': '0.5.3'}",
        **other,
    }
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*line])
        writer.writeheader()
        writer.writerow(line)
    (found,) = read([tmp_path / "runs.csv"])
    return found


@pytest.mark.parametrize(
    ("command", "engine", "model", "flags"),
    [
        ("vllm serve Qwen/Qwen3-14B", "vllm", "Qwen/Qwen3-14B", {}),
        ("vllm serve m -tp 2 --eager --max_num_seqs=64", "vllm", "m", {"eager": "", "max-num-seqs": "64", "tp": "2"}),
        ("python3 -m sglang.launch_server --model-path m --port 1", "sglang", "m", {"port": "1"}),
        ("trtllm-serve /workspace/m --tp_size 8", "trtllm", "m", {"tp-size": "8"}),
        ("mindie", "mindie", "", {}),
    ],
)
def test_a_command_is_an_engine_a_model_and_flags(command: str, engine: str, model: str, flags: dict[str, str]) -> None:
    assert parsed(command) == (engine, model, tuple(flags.items()))


def test_a_run_is_a_cell_of_its_totals(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert (found.engine, found.version, found.model, found.gpu) == ("vllm", "0.11.0", "Qwen/Qwen3-14B", "a100")
    assert (found.isl, found.osl, found.concurrency, found.requests) == (3996, 200, 500, 500)
    assert (found.tp, found.gpus, found.output_rate, found.ttft_ms, found.tpot_ms) == (2, 2, 245.13, 5000.0, 90.0)


def test_the_end_to_end_latency_of_unequal_answers_is_that_of_the_mean_gap_between_tokens(tmp_path: Path) -> None:
    chat = {"Total input tokens": "108500", "Total generated tokens": "100500", "Mean ITL (ms)": "60"}  # 217, 201
    answer = Answer(ttft_ms=4000.0, tpot_ms=80.0, e2e_ms=15_000.0)
    one = Scored(run(tmp_path, **chat), "", answer)
    assert one.measured == (90.0, 5000.0, 5000.0 + 60 * 200)  # not 90 * 200: short answers have the longest TPOT
    assert one.simulated == (80.0, 4000.0, 15_000.0)
    without = Scored(run(tmp_path, **{**chat, "Mean ITL (ms)": ""}), "", answer)
    assert (without.measured[2], without.simulated) == (5000.0 + 90 * 200, (80.0, 4000.0, 4000.0 + 80 * 200))
    equal = Scored(run(tmp_path, **{"Mean ITL (ms)": "99"}), "", answer)  # chunks of several tokens have longer gaps
    assert equal.measured[2] == pytest.approx(5000 + 90 * (99_783 / 500 - 1), rel=0.01)


def test_its_scenario_sends_all_at_once_with_the_settings_of_its_flags(tmp_path: Path) -> None:
    command = "vllm serve Qwen/Qwen3-14B --max-num-batched-tokens 4096 --gpu-memory-utilization 0.85"
    settings = recipe(run(tmp_path, serve_command=command)).settings
    assert settings["trace"] == "synth:prompt=3996,output=200"
    assert "clients" not in settings
    assert settings["scheduler"] == {"name": "vllm", "max_num_batched_tokens": "4096"}
    assert settings["engine"] == {"version": "0.11.0", "gpu_memory_utilization": "0.85"}
    assert Scenario.of(settings).engine.gpu_memory_utilization == 0.85
    asynchronous = recipe(run(tmp_path, serve_command="vllm serve Qwen/Qwen3-14B --async-scheduling")).settings
    assert asynchronous["engine"] == {"version": "0.11.0", "async_scheduling": "true"}


def test_a_version_that_the_page_states_is_that_of_the_server_and_none_is_assumed_otherwise(tmp_path: Path) -> None:
    stated, without = run(tmp_path), run(tmp_path, engine_versions="{}")
    assert Scenario.of(recipe(stated).settings).engine.async_scheduling is False  # the default before 0.14
    assert "version" not in recipe(without).settings["engine"]
    assert Scenario.of(recipe(without).settings).engine.async_scheduling is True


def test_a_name_that_shares_the_shapes_of_a_bundled_model_is_known(tmp_path: Path) -> None:
    columns = {"doc": "glm-4.x_h200", "serve_command": "vllm serve zai-org/GLM-4.6 -tp 8"}
    settings = recipe(run(tmp_path, **columns)).settings
    assert (settings["model"], settings["dtype"]) == ("zai-org/GLM-4.6", "bf16")
    assert ModelSpec.load(settings["model"]).max_position == 202752


def test_a_command_without_a_format_runs_the_published_one(tmp_path: Path) -> None:
    columns = {"doc": "deepseek-r1_h200", "serve_command": "trtllm-serve /workspace/DeepSeek-R1-0528 --tp_size 8"}
    assert recipe(run(tmp_path, **columns)).settings["dtype"] == "fp8"


def test_pipeline_stages_of_a_command_are_simulated(tmp_path: Path) -> None:
    command = "python3 -m sglang.launch_server --model-path zai-org/GLM-4.5-Air --pp-size 4"
    found = run(tmp_path, doc="glm-4.5-air_h100", serve_command=command)
    assert (found.gpus, recipe(found).settings["pp"], recipe(found).settings["tp"]) == (4, 4, 1)


def test_clients_expert_parallelism_and_conversations(tmp_path: Path) -> None:
    columns = {
        "Total input tokens": "108500",
        "Total generated tokens": "100500",
        "Maximum request concurrency": "4",
        "Output token throughput (tok/s)": "35",
    }
    command = "vllm serve Qwen/Qwen3-30B-A3B -tp 2 --enable-expert-parallel"
    found = run(tmp_path, serve_command=command, doc="qwen3-30b-a3b_h100", **columns)
    settings = recipe(found).settings
    lengths = (f"lognormal(mean={mean},sigma=1.0,max=1024)" for mean in (217, 201))
    assert settings["trace"] == "synth:prompt={},output={}".format(*lengths)
    assert settings["clients"] == {"max_concurrency": 4}
    assert settings["engine"]["enable_expert_parallel"] is True
    assert (found.ep, found.tp) == (2, 2)


def test_a_format_in_the_name_is_that_of_the_weights(tmp_path: Path) -> None:
    found = run(tmp_path, serve_command="vllm serve Qwen/Qwen3-14B-FP8", doc="qwen3-14b_h100")
    assert (found.model, found.weights, recipe(found).settings["dtype"]) == ("Qwen/Qwen3-14B", "fp8", "fp8")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"serve_command": "vllm serve Qwen/Qwen3-14B --enable-lora"}, "flag --enable-lora of vllm"),
        ({"section": "--max-num-seqs 8", "serve_command": "vllm serve Qwen/Qwen3-14B"}, "run's heading"),
        ({"serve_command": "vllm serve Qwen/Qwen3-32B"}, "run's heading"),
        ({"doc": "qwen3-14b_910b"}, "GPU 910b"),
    ],
)
def test_what_cannot_be_replayed_says_why(tmp_path: Path, columns: dict[str, str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        recipe(run(tmp_path, **columns))


def test_clients_that_wait_before_they_send_are_no_closed_loop(tmp_path: Path) -> None:
    """8 clients with 200 tokens each in 23 s: 70 tokens/s, or 23, with which 2.6 of the 8 are in flight."""
    times = {"Mean TTFT (ms)": "5090", "Mean TPOT (ms)": "90", "Maximum request concurrency": "8"}
    rate = "Output token throughput (tok/s)"
    assert recipe(run(tmp_path, **times, **{rate: "70"})).settings["clients"] == {"max_concurrency": 8}
    with pytest.raises(UserError, match="they were sent at an unstated rate"):
        recipe(run(tmp_path, **times, **{rate: "23"}))


def test_a_heading_that_its_command_has_is_no_contradiction(tmp_path: Path) -> None:
    columns = {"section": "--max-num-seqs 8", "serve_command": "vllm serve Qwen/Qwen3-14B --max-num-seqs 8"}
    assert recipe(run(tmp_path, **columns)).settings["scheduler"]["max_num_seqs"] == "8"


def test_a_figure_that_is_no_number_is_told_with_its_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run 0: Mean TPOT \(ms\) is 'fast' but must be a number"):
        run(tmp_path, **{"Mean TPOT (ms)": "fast"})
