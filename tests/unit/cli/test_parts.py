"""Shaping steps, keys of synthetic traces, policies and features can be found like settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from servesim.cli import app as cli
from servesim.cli.known import all_settings
from servesim.cli.other_names import all_flags
from servesim.cli.parts import all_parts, shapes, synth_keys
from servesim.traces.shape import STEPS
from servesim.traces.synth import DEFAULTS

Call = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command; return exit code, output and errors."""

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["servesim", *line.split()])
        code = cli._guarded()
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.parametrize("line", ["run --shape help", "run --shape=help", "sweep --gpu h200 --shape help"])
def test_shape_help_prints_each_step_with_its_parameters(call: Call, line: str) -> None:
    code, said, errors = call(line)
    assert (code, errors) == (0, "")
    assert "--shape burst:at=...,for=...,times=..." in said
    assert "content [default: fresh]" in said
    assert [one["key"] for one in shapes()] == [f"shape {name}" for name in STEPS]


@pytest.mark.parametrize("line", ["run --trace synth:help", "compare --trace=synth:help", "trace inspect synth:help"])
def test_synth_help_prints_every_key_and_its_default(call: Call, line: str) -> None:
    code, said, errors = call(line)
    assert (code, errors) == (0, "")
    assert "synth prompt  [default: 512]" in said
    assert "lognormal(p50,p95)" in said
    found = {one["key"].removeprefix("synth "): one["default"] for one in synth_keys()}
    assert found == {key: default or {"n": "1", "lengths": None}.get(key, "none") for key, default in DEFAULTS.items()}


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("burst", "shape burst"),
        ("burst", "feature bursts"),
        ("burst", "router.burst"),
        ("lognormal", "synth prompt"),
        ("zipf", "synth prefix"),
        ("sarathi", "scheduler sarathi"),
        ("max_num_seqs", "scheduler.max_num_seqs"),
        ("sarathi", "scheduler.chunk_size"),
        ("keda", "scaler.target"),
        ("azure", "preset azure-conv-2023"),
        ("azure", "public trace azure-conv-2023"),
        ("sglang", "engine sglang"),
    ],
)
def test_any_word_finds_what_has_it(call: Call, words: str, key: str) -> None:
    code, said, _ = call(f"settings {words} --json")
    assert code == 0
    assert key in [one["key"] for one in json.loads(said)["settings"]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("stretch", "--shape stretch:factor=..."),
        ("zipf", "--trace synth:prefix=..."),
        ("conv-2023", "--trace preset:azure-conv-2023"),
        ("conv-2023", "servesim trace fetch azure-conv-2023"),
        ("servegen", "--trace preset:servegen-m-large:scale=...,start=...,seconds=..."),
        ("sarathi", "Parameters (--scheduler sarathi:max_num_seqs=...): max_num_seqs, chunk_size, watermark,"),
        ("tensorrt", "--engine tensorrt-llm"),
        ("low_chunk_size", "--scheduler.low-chunk-size, or --scheduler sarathi:low_chunk_size=..."),
    ],
)
def test_each_hit_says_what_to_write_on_the_command_line(call: Call, words: str, told: str) -> None:
    code, said, _ = call(f"settings {words}")
    assert code == 0
    assert told in " ".join(said.split())


def test_what_is_written_for_a_policy_a_preset_and_a_shape_is_taken(call: Call) -> None:
    words = "--model llama-3.2-1b --gpu h200 --requests 3 --json --scheduler sarathi:max_num_seqs=8"
    for trace in ("preset:azure-conv-2023", "synth:prompt=20"):
        assert call(f"run --trace {trace} {words} --shape stretch:factor=2")[0] == 0


def test_whole_words_are_listed_before_parts_of_words(call: Call) -> None:
    keys = [one["key"] for one in json.loads(call("settings think --json")[1])["settings"]]
    assert keys[0] == "shape think"
    keys = [one["key"] for one in json.loads(call("settings kv --json")[1])["settings"]]
    assert keys.index("kv paged") < keys.index("kv_dtype")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("sarahti", 'error: no setting has sarahti (did you mean "sarathi"?)'),
        ("max_num_sequs", 'error: no setting has max_num_sequs (did you mean "max_num_seqs"?)'),
        ("scheduler sarahti", 'error: no setting has sarahti (did you mean "sarathi"?)'),
        ("sarathi mooncake", "error: no setting contains all of these words: sarathi, mooncake"),
        ("xylophone", "error: no setting has xylophone; `servesim settings` lists all"),
    ],
)
def test_an_unknown_word_is_one_line_with_the_nearest_one(call: Call, words: str, told: str) -> None:
    assert call(f"settings {words}") == (2, "", f"{told}\n")


def test_a_word_that_nothing_has_is_refused_and_no_word_lists_settings_alone(call: Call) -> None:
    code, _, errors = call("settings xylophone")
    assert code == 2
    assert "no setting has xylophone" in errors
    parts = {one["key"] for one in all_parts()}
    assert not parts & {one["key"] for one in json.loads(call("settings --json")[1])["settings"]}


@pytest.mark.parametrize(
    ("words", "key", "option", "said"),
    [
        ("replicates", "option replicates", "--replicates of compare, sweep, capacity, worth", "seeds"),
        ("attainment", "option attainment", "--attainment of capacity, worth", "every SLO"),
        ("--best-by", "option best-by", "--best-by of sweep", "best"),
        ("tensor-parallel-size", "flag tensor-parallel-size", "--tp", "vLLM and SGLang"),
        ("tensor parallel size", "flag tensor-parallel-size", "--tp", "vLLM and SGLang"),
        ("mem_fraction_static", "flag mem-fraction-static", "--engine.gpu-memory-utilization", "SGLang"),
        ("--disable-radix-cache", "flag disable-radix-cache", "--kv paged", "SGLang"),
        ("kv-cache-dtype", "flag kv-cache-dtype", "--kv-dtype", "fp8_e5m2 is fp8"),
        ("speculative-config", "flag speculative-config", "--speculation", "vLLM"),
        ("VLLM_USE_V1", "flag VLLM_USE_V1", "--engine", "0 is vllm-v0"),
        ("enable-dp-attention", "flag enable-dp-attention", "--dp", "SGLang"),
        ("ep-size", "flag ep-size", "--ep", "SGLang and TensorRT-LLM"),
        ("disable-cuda-graph", "flag disable-cuda-graph", "--engine.enforce-eager true", "launch of PyTorch"),
        ("served-model-name", "flag served-model-name", "no setting", "no effect in the simulation"),
    ],
)
def test_options_of_experiments_and_flags_of_engines_are_found(
    call: Call, words: str, key: str, option: str, said: str
) -> None:
    found = {one["key"]: one for one in json.loads(call(f"settings --json -- {words}")[1])["settings"]}
    assert found[key]["option"] == option
    assert said in found[key]["doc"]


def test_a_flag_of_an_engine_does_not_repeat_the_setting_of_its_name(call: Call) -> None:
    assert "flag " not in call("settings max-num-seqs")[1]
    assert "flag " not in call("settings block size")[1]


def test_every_flag_of_an_engine_is_explained() -> None:
    settings = {one["option"] for one in all_settings()}
    for one in all_flags():
        assert one["option"] == "no setting" or one["option"].split(" ")[0] in settings, one["key"]
        assert one["doc"]


def test_replicas_and_replicates_name_each_other(call: Call) -> None:
    assert "replicates are runs" in call("settings replicas")[1]
    assert "replicas are servers" in call("settings replicates")[1]
