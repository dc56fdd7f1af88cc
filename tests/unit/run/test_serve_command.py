"""Commands that start a server, as scenarios; settings by their common names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import servesim
from servesim.cli.app import main
from servesim.contracts.warn import Warn
from servesim.errors import UserError
from servesim.experiments.axes import product
from servesim.run.flag_meanings import serve_flags
from servesim.run.scenario import Scenario
from servesim.run.serve_command import environment, parsed, served
from servesim.run.server import experts_over
from servesim.run.setting_names import full_name, override

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
COMMANDS: dict[str, dict[str, Any]] = {
    f"vllm serve {LLAMA} --tensor-parallel-size 4 --max-num-seqs 64": {
        "preset": "vllm",
        "tp": 4,
        "scheduler": {"name": "vllm", "max_num_seqs": 64},
    },
    f"VLLM_USE_V1=1 python3 -m vllm.entrypoints.openai.api_server --model {LLAMA} -tp=2": {"preset": "vllm", "tp": 2},
    f"vllm serve {LLAMA} --max-model-len 32K --gpu_memory_utilization 0.85": {
        "preset": "vllm",
        "engine": {"max_model_len": 32768, "gpu_memory_utilization": 0.85},
    },
    f"vllm serve --enable-prefix-caching {LLAMA} --kv-cache-dtype fp8 --dtype auto": {
        "preset": "vllm",
        "kv": "prefix-hash",
        "kv_dtype": "fp8",
    },
    f"vllm serve {LLAMA} --no-enable-prefix-caching --quantization fp8": {
        "preset": "vllm",
        "kv": "paged",
        "dtype": "fp8",
    },
    f'vllm serve {LLAMA} --speculative-config \'{{"method": "eagle3", "num_speculative_tokens": 3}}\'': {
        "preset": "vllm",
        "speculation": "eagle3:k=3",
    },
    f"vllm serve {LLAMA} \\\n  --data-parallel-size 2 \\\n  --async-scheduling": {
        "preset": "vllm",
        "replicas": 2,
        "engine": {"async_scheduling": True},
    },
    f"python -m sglang.launch_server --model-path {LLAMA} --tp 2 --chunked-prefill-size -1": {
        "preset": "sglang",
        "tp": 2,
        "scheduler": {"name": "sglang", "chunked_prefill_size": -1},
    },
    f"vllm serve {LLAMA} --performance-mode=throughput": {
        "preset": "vllm",
        "scheduler": {"name": "vllm", "performance_mode": "throughput"},
    },
    f"trtllm-serve {LLAMA} --enable_chunked_prefill": {
        "preset": "tensorrt-llm",
        "scheduler": {
            "name": "selective",
            "fused_attention": True,
            "max_bs": 2048,
            "max_num_tokens": 8192,
            "enable_chunked_context": True,
        },
    },
    f"trtllm-serve {LLAMA} --tp_size 2 --max_num_tokens=16384": {
        "preset": "tensorrt-llm",
        "tp": 2,
        "scheduler": {"name": "selective", "fused_attention": True, "max_bs": 2048, "max_num_tokens": 16384},
    },
}


DOCKER = "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/models"
WRAPPED = {
    f"{DOCKER} --env 'HF_TOKEN=x' -p 8000:8000 --ipc=host vllm/vllm-openai:latest --model {LLAMA} -tp 2": "vllm",
    f"sudo docker run -d --rm -it -p8000:8000 -m 64g vllm/vllm-openai {LLAMA} --tensor-parallel-size 2": "vllm",
    f"podman run --device nvidia.com/gpu=all --rm=true vllm/vllm-openai:v0.9 vllm serve {LLAMA} -tp 2": "vllm",
    f"docker run --gpus '\"device=0,1\"' --entrypoint vllm my/image:1 serve {LLAMA} -tp 2": "vllm",
    f"docker run --entrypoint=bash my/image -lc 'pip list && vllm serve {LLAMA} -tp 2'": "vllm",
    f"HF_HOME=/x docker run --shm-size 32g --gpus all lmsysorg/sglang:latest \\\n  python3 -m sglang.launch_server "
    f"--model-path {LLAMA} --tp 2": "sglang",
    f"docker container run nvcr.io/nvidia/tensorrt-llm/release:1.0 trtllm-serve {LLAMA} --tp_size 2": "tensorrt-llm",
    f"bash -c 'export A=1; exec vllm serve {LLAMA} -tp 2'": "vllm",
}


@pytest.mark.parametrize("command", WRAPPED)
def test_a_command_in_a_container_or_a_shell_is_read(command: str) -> None:
    found = served(command)
    assert found.settings.items() >= {"preset": WRAPPED[command], "model": LLAMA, "tp": 2}.items()
    assert not found.unknown


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_become_settings(command: str) -> None:
    found = served(command)
    assert found.settings == {"model": LLAMA, **COMMANDS[command]}
    assert not found.unknown
    Scenario.of({**found.settings, "trace": "synth:rate=1", "gpu": "h100"})


CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
SGLANG = f"python -m sglang.launch_server --model-path {LLAMA}"
TRT = "cat <<EOF > /tmp/drafts.yml\nspeculative_config: {{{}}}\nEOF\ntrtllm-serve {} --config /tmp/drafts.yml"
DRAFTS = {
    f"{SGLANG} --speculative-algorithm EAGLE3 --speculative-draft-model-path x/y {CHAIN}": "eagle3:k=3",
    f"{SGLANG} --speculative-algorithm EAGLE {CHAIN}": "mtp:k=3",  # the model's own head
    f"{SGLANG} --speculative-algorithm STANDALONE --speculative-draft-model-path llama-3.2-1b {CHAIN}": (
        "draft-model:k=3,model=llama-3.2-1b"
    ),
    TRT.format("decoding_type: Eagle, max_draft_len: 3, speculative_model_dir: /x", LLAMA): "eagle3:k=3",
    TRT.format("decoding_type: MTP, num_nextn_predict_layers: 2", LLAMA): "mtp:k=2",
    f"""vllm serve {LLAMA} --speculative-config '{{"method": "qwen3_next_mtp", """
    """"num_speculative_tokens": 2}'""": "mtp:k=2",
    f"""vllm serve {LLAMA} --speculative-config '{{"method": "ngram", "num_speculative_tokens": 2, """
    """"prompt_lookup_max": 4}'""": "ngram:k=2,prompt_lookup_min=4,prompt_lookup_max=4",
}


@pytest.mark.parametrize("command", DRAFTS)
def test_drafts_of_every_engine_are_a_speculator(command: str) -> None:
    found = served(command)
    assert (found.settings["speculation"], found.unknown) == (DRAFTS[command], [])


@pytest.mark.parametrize(
    "flags",
    [
        "--speculative-algorithm EAGLE3 --speculative-num-steps 3",  # the engine chooses how many per step
        f"--speculative-algorithm EAGLE3 {CHAIN.replace('topk 1', 'topk 4')}",  # a tree
        f"--speculative-algorithm NGRAM {CHAIN}",
        f"--speculative-algorithm STANDALONE --speculative-draft-model-path no/such-model {CHAIN}",
    ],
)
def test_drafts_that_are_no_chain_of_a_known_model_are_not_modeled(flags: str) -> None:
    found = served(f"{SGLANG} {flags}")
    assert "speculation" not in found.settings
    assert len(found.unknown) == flags.count("--")


def test_drafts_that_no_scheduler_of_the_engine_verifies_are_left_out_of_a_run_with_a_warning() -> None:
    for command, flag in [(SGLANG + f" --speculative-algorithm NEXTN {CHAIN}", "--speculative-algorithm NEXTN")]:
        found = served(command).simulated()
        assert "speculation" not in found.settings
        assert flag in found.notes()[0]
    assert served(next(reversed(DRAFTS))).simulated().settings["speculation"]


def test_flags_without_a_meaning_are_named_by_what_they_lack() -> None:
    found = served(f"vllm serve {LLAMA} --port 8000 --enable-lora --served-model-name x --kv-cache-dtype nvfp4")
    assert found.nothing == ["--port 8000", "--served-model-name x"]
    assert found.unknown == ["--enable-lora", "--kv-cache-dtype nvfp4"]
    assert [note.partition(":")[0] for note in found.notes()] == ["--serve", "--serve"]
    assert [isinstance(note, Warn) for note in found.notes()] == [True, False]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vllm serve m --max-num-seq 64", "--max-num-seq 64 (did you mean --max-num-seqs?)"),
        ("vllm serve m --max_num_batch_tokens=9", "--max-num-batch-tokens 9 (did you mean --max-num-batched-tokens?)"),
        ("vllm serve m --speculative-conf x", "--speculative-conf x (did you mean --speculative-config?)"),
        ("sglang.launch_server --model m --mem-fraction 1", "--mem-fraction 1 (did you mean --mem-fraction-static?)"),
        ("trtllm-serve m --tp-sise 2", "--tp-sise 2 (did you mean --tp-size?)"),
        ("VLLM_USE_V2=0 vllm serve m", "VLLM_USE_V2=0 (did you mean VLLM_USE_V1?)"),
        ("vllm serve m --frobnicate 3", "--frobnicate 3"),
    ],
)
def test_an_unknown_flag_is_a_warning_with_the_name_that_it_resembles(command: str, said: str) -> None:
    (warning,) = served(command).notes()
    assert isinstance(warning, Warn)
    assert warning == f"--serve: flags that are NOT MODELED and have no effect: {said}"


def test_a_switch_after_no_is_turned_off() -> None:
    found = served("vllm serve m --no-enable-eplb --no-trust-remote-code --no-enable-expert-parallel")
    assert found.settings["engine"] == {"enable_eplb": False, "enable_expert_parallel": False}
    assert (found.nothing, found.unknown) == (["--no-trust-remote-code"], [])


def test_eager_mode_is_a_setting_of_every_engine_and_its_price_is_said_to_be_rough(tmp_path: Path) -> None:
    (tmp_path / "off.yaml").write_text("cuda_graph_config: null\n")
    (tmp_path / "on.yaml").write_text("cuda_graph_config: {max_batch_size: 64}\n")
    for command in (
        f"vllm serve {LLAMA} --enforce-eager",
        f"vllm serve {LLAMA} --enforce-eager true",
        f"vllm serve {LLAMA} -cc.cudagraph_mode=NONE",
        f"sglang.launch_server --model-path {LLAMA} --disable-cuda-graph",
        f"trtllm-serve {LLAMA} --extra_llm_api_options {tmp_path / 'off.yaml'}",
    ):
        found = served(command)
        assert (found.settings["engine"]["enforce_eager"], found.unknown) == (True, []), command
        assert "one model on one H100" in found.notes()[-1]
    for command in (f"vllm serve {LLAMA} --port 1", f"trtllm-serve {LLAMA} --config {tmp_path / 'on.yaml'}"):
        assert not served(command).hints
        assert "engine" not in served(command).settings


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--attention-backend fa3", "attention is priced by the kernels measured for this engine and GPU"),
        ("--cuda-graph-max-bs 512", "decode steps are priced as CUDA graphs at every batch size"),
        ("--enable-torch-compile", "priced by the kernels measured without it"),
    ],
)
def test_a_flag_that_only_picks_kernels_changes_no_setting_and_says_by_what_it_is_priced(flag: str, said: str) -> None:
    found = served(f"python3 -m sglang.launch_server --model-path {LLAMA} {flag}")
    assert found.unknown == []
    assert found.settings == {"preset": "sglang", "model": LLAMA}
    assert any(note.startswith(f"--serve: {flag.partition(' ')[0]}: {said}") for note in found.notes())


def test_performance_mode_throughput_doubles_the_limits_that_are_not_given() -> None:
    run = {"trace": "synth:rate=4,prompt=90,output=6", "requests": 2, "gpu": "h100", "model": "llama-3.1-8b"}
    for given, limits in (({}, (2048, 16384)), ({"max_num_seqs": 512}, (512, 16384)),
                          ({"max_num_batched_tokens": 4096}, (2048, 4096))):  # fmt: skip
        scheduler = {"name": "vllm", "performance_mode": "throughput", **given}
        resolved = servesim.simulate(**run, scheduler=scheduler).summary["scenario"]["scheduler"]
        assert (resolved["max_num_seqs"], resolved["max_num_batched_tokens"]) == limits
    assert served("vllm serve m --performance-mode interactivity").unknown == ["--performance-mode interactivity"]


def test_chunks_of_tensorrt_llm_bound_its_steps() -> None:
    run = {"trace": "synth:prompt=20000,output=4", "rate": "inf", "requests": 4, "gpu": "a100", "model": "qwen3-14b"}
    settings = served("trtllm-serve Qwen/Qwen3-14B --max_seq_len=40960 --enable_chunked_prefill").settings
    chunked, whole = (
        servesim.simulate(**{**settings, **run, **more}).summary["engine"]["tokens_per_step"]["max"]
        for more in ({}, {"scheduler": {"name": "selective", "max_num_tokens": 8192}})
    )
    assert 8192 - 32 < chunked <= 8192  # whole blocks, beside at most 3 decodes
    assert whole >= 20000


def test_the_memory_fraction_of_tensorrt_llm_is_read() -> None:
    found = served(f"trtllm-serve {LLAMA} --kv_cache_free_gpu_memory_fraction 0.8")
    assert found.settings["engine"] == {"gpu_memory_utilization": 0.8}
    assert found.notes() == []


def test_the_cache_of_tensorrt_llm_s_options_is_read(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(
        "kv_cache_config: {free_gpu_memory_fraction: 0.7, enable_block_reuse: false, dtype: fp8, host_cache_size: 1}"
    )
    found = served(f"trtllm-serve {LLAMA} --extra_llm_api_options {file}")
    assert found.settings["engine"] == {"gpu_memory_utilization": 0.7}
    assert (found.settings["kv"], found.settings["kv_dtype"]) == ("paged", "fp8")
    assert found.unknown == ["--kv-cache-host-cache-size 1"]


def test_batch_waiting_of_tensorrt_llm_s_options_is_read_unless_attention_is_data_parallel(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("batch_wait_timeout_iters: 20\nbatch_wait_max_tokens_ratio: 0.5\n")
    command = f"trtllm-serve {LLAMA} --extra_llm_api_options {file}"
    found = served(command)
    assert found.unknown == []
    assert (
        found.settings["scheduler"].items()
        >= {"batch_wait_timeout_iters": 20, "batch_wait_max_tokens_ratio": 0.5}.items()
    )
    assert "batch_wait_timeout_iters" not in served(f"{command} --enable_attention_dp true").settings["scheduler"]


def test_variables_in_front_of_a_command_are_settings_or_named() -> None:
    found = served(f"env VLLM_USE_V1=0 CUDA_VISIBLE_DEVICES=0,1 VLLM_ATTENTION_BACKEND='A B' vllm serve {LLAMA} -tp 2")
    assert found.settings == {"preset": "vllm-v0", "model": LLAMA, "tp": 2}
    assert found.nothing == ["CUDA_VISIBLE_DEVICES=0,1"]
    assert found.unknown == ["VLLM_ATTENTION_BACKEND=A B"]
    assert Scenario.of({**found.settings, "trace": "synth:rate=1", "gpu": "h100"}).scheduler["name"] == "continuous"
    other = served(f"VLLM_USE_V1=0 python -m sglang.launch_server --model-path {LLAMA}")
    assert (other.settings["preset"], other.nothing) == ("sglang", ["VLLM_USE_V1=0"])
    marlin = served("VLLM_MXFP4_USE_MARLIN=1 vllm serve openai/gpt-oss-120b")
    assert marlin.settings["engine"] == {"moe_backend": "marlin"}


def test_words_before_the_server_s_are_skipped_only_there() -> None:
    command = f"sudo env VLLM_USE_V1=1 python3 -m vllm.entrypoints.openai.api_server --model {LLAMA}"
    for word in ("env", "python", "exec"):
        found = served(f"{command} --served-model-name {word} -tp 2")
        assert found.settings["tp"] == 2
        assert f"--served-model-name {word}" in (*found.nothing, *found.unknown)
        assert served(f"vllm serve {word}").settings["model"] == word
    assert served(f"{command} -m x").unknown == ["--m x"]


def test_a_flag_that_a_file_sets_to_null_is_not_given(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"model: {LLAMA}\nquantization: null\nmax-model-len: ~\ndtype:\n")
    found = served(f"vllm serve --config {tmp_path / 'c.yaml'}")
    assert found.settings == {"preset": "vllm", "model": LLAMA}
    assert (found.nothing, found.unknown) == ([], [])
    (tmp_path / "o.yaml").write_text("kv_cache_config: {free_gpu_memory_fraction: null}\nmax_batch_size: null\n")
    other = served(f"trtllm-serve {LLAMA} --extra_llm_api_options {tmp_path / 'o.yaml'}")
    assert (other.settings.get("engine"), other.unknown, other.hints) == (None, [], [])


def test_versions_before_v1_are_not_given_its_scheduler() -> None:
    base = {**SMALL, "engine": {"version": "0.3.1"}}
    for preset in (None, "vllm"):
        with pytest.raises(UserError, match=r"0\.3\.1 is vLLM's V0 engine.*scheduler=continuous"):
            servesim.simulate(**base, preset=preset)
    older = servesim.simulate(**base, scheduler="continuous", kv="paged")
    assert older.summary["requests"]["completed"] == 3
    assert servesim.simulate(**{**base, "engine": {"version": "0.8.0"}}).summary["requests"]["completed"] == 3


GLM = "zai-org/GLM-4.5-Air"


@pytest.mark.feature("data_parallel", "view_lag")
@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (f"vllm serve {GLM} -tp 1 -dp 8 --enable-expert-parallel", {"tp": 1, "dp": 8, "ep": 8}),
        (f"vllm serve {GLM} --data-parallel-size 4 -tp 2", {"tp": 2, "dp": 4, "ep": 1}),
        (f"sglang.launch_server --model-path {GLM} --tp-size 4 --ep-size 4", {"tp": 4, "dp": 1, "ep": 4}),
        (f"sglang.launch_server --model-path {GLM} --tp-size 4 --ep-size 2", {"tp": 4, "dp": 1, "ep": 2}),
        (
            f"sglang.launch_server --model-path {GLM} --tp 8 --dp 4 --enable-dp-attention --ep 8",
            {"tp": 2, "dp": 4, "ep": 8},
        ),
        (f"trtllm-serve {GLM} --tp_size 8 --ep_size 8 --enable_attention_dp true", {"tp": 1, "dp": 8, "ep": 8}),
        (f"sglang.launch_server --model-path {GLM} --tp 2 --dp 4", {"tp": 2, "dp": 1, "ep": 1, "replicas": 4}),
        (f"vllm serve {LLAMA} -dp 4", {"tp": 1, "dp": 1, "ep": 1, "replicas": 4}),
    ],
)
def test_ranks_and_experts_are_what_each_engine_means_by_its_flags(command: str, settings: dict[str, int]) -> None:
    found = served(command)
    assert not found.unknown
    scenario = Scenario.of({**found.settings, "trace": "synth:rate=1", "gpu": "h100"})
    known = {"tp": scenario.tp, "dp": scenario.dp, "ep": experts_over(scenario), "replicas": scenario.replicas}
    assert known == {"replicas": 1, **settings}


def test_files_of_flags_go_under_the_command(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        f"model: {LLAMA}\ntensor-parallel-size: 2\nmax_num_seqs: 8\nasync-scheduling: false\n"
    )
    found = served(f"vllm serve --config {tmp_path / 'c.yaml'} --max-num-seqs 16")
    assert found.settings["model"] == LLAMA
    assert found.settings["tp"] == 2
    assert found.settings["scheduler"]["max_num_seqs"] == 16
    assert found.settings["engine"] == {"async_scheduling": False}
    (tmp_path / "serve.sh").write_text(f"# our server\nvllm serve {LLAMA} \\\n  -tp 2\n")
    assert served(f"@{tmp_path / 'serve.sh'}").settings == {"preset": "vllm", "model": LLAMA, "tp": 2}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("ollama run llama3", "must start with one of vllm serve"),
        ("", "must start with one of"),
        ("docker run --gpus all", "no image found; specify the command that the container runs"),
        (
            "docker run --gpus all my/image",
            "'my/image' has no command after it; specify the command that its container",
        ),
        ("docker compose up", "only `docker run` starts a server"),
        ("docker run ollama/ollama serve", "must start with one of vllm serve"),
        ("bash -c ''", "must start with one of vllm serve"),
        ("vllm serve --port 3", "has no model"),
        ("vllm serve 'x", "not a command line"),
        (f"vllm serve {LLAMA} --speculative-config x", "is not JSON"),
        (f"vllm serve {LLAMA} --config /nowhere.yaml", "cannot be read"),
        ("@/nowhere", "cannot be read"),
    ],
)
def test_what_starts_no_server_is_refused_in_a_line(command: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        served(command)
    assert len(str(error.value)) < 300


def test_every_flag_of_the_table_leads_to_a_setting() -> None:
    for engine, flags in serve_flags().items():
        for meaning in flags.values():
            for key in [meaning] if isinstance(meaning, str) else meaning or ():
                if key.partition(".")[0] in Scenario.model_fields:
                    assert full_name(key) == key, (engine, key)
                    assert "." not in key or full_name(key.partition(".")[2]) == key, (engine, key)
                else:
                    raise AssertionError((engine, key))


def test_common_names_stand_for_the_part_that_has_them() -> None:
    assert full_name("max_num_seqs") == "scheduler.max_num_seqs"
    assert full_name("block-size") == "engine.block_size"
    assert full_name("rate") == "rate"
    with pytest.raises(
        UserError, match=r"write speculation.table or acceptance.table|write acceptance.table or speculation.table"
    ):
        full_name("table")
    with pytest.raises(UserError, match='did you mean "max_num_seqs"'):
        full_name("max_nums_seqs")


SMALL: dict[str, Any] = {
    "trace": "synth:rate=20,prompt=30,output=2",
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "requests": 3,
}


def test_common_names_are_taken_from_python_from_set_and_as_axes() -> None:
    result = servesim.simulate(**SMALL, max_num_seqs=64, block_size=32)
    assert result.scenario.scheduler["max_num_seqs"] == 64
    assert result.scenario.engine.block_size == 32
    assert override({}, ["max_num_seqs=64"])["scheduler"]["max_num_seqs"] == 64
    variants = product(SMALL, {"max_num_seqs": "8,16"})
    assert [v.settings["scheduler"]["max_num_seqs"] for v in variants] == [8, 16]
    with pytest.raises(UserError, match="unknown setting 'max_num_sequences'"):
        servesim.simulate(**SMALL, max_num_sequences=64)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["servesim", *arguments])
    with pytest.raises(SystemExit) as error:
        main()
    return int(error.value.code or 0)


def test_a_command_is_run_and_saved_as_a_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = ["--trace", SMALL["trace"], "--requests", "3", "--gpu", "h200"]
    command = "vllm serve meta-llama/Llama-3.2-1B-Instruct --max-num-seqs 32 --port 1 --enable-lora"
    saved = tmp_path / "s.yaml"
    assert (
        run(monkeypatch, "run", *workload, "--serve", command, "--max-num-seqs", "16", "--save-scenario", str(saved))
        == 0
    )
    printed = capsys.readouterr()
    assert "flags that have no effect here: --port 1" in printed.err
    assert "warning: --serve: flags that are NOT MODELED and have no effect: --enable-lora\n" in printed.err
    scenario = yaml.safe_load(saved.read_text())
    assert scenario["scheduler"]["max_num_seqs"] == 16
    assert scenario["model"] == "meta-llama/Llama-3.2-1B-Instruct"
    assert run(monkeypatch, "run", str(saved)) == 0


def test_several_commands_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = ["--trace", SMALL["trace"], "--requests", "3", "--gpu", "h200", "--replicates", "2", "--jobs", "1"]
    one = "vllm serve meta-llama/Llama-3.2-1B-Instruct"
    assert run(monkeypatch, "compare", *workload, "--serve", one, "--serve", f"{one} --max-num-seqs 2") == 0
    assert "scenario 2: vllm serve" in capsys.readouterr().err
    assert run(monkeypatch, "sweep", *workload[:6], "--jobs", "1", "--serve", one, "--max-num-seqs", "2,4") == 0
    assert run(monkeypatch, "sweep", *workload[:6], "--serve", one, "--serve", one) == 2


def test_variables_of_a_container_are_those_of_its_command() -> None:
    command = "docker run --gpus all -e VLLM_USE_V1=0 --env HF_TOKEN=x -p 8000:8000 vllm/vllm-openai:v0.8.5 --model m/Q"
    assert environment(command) == [("VLLM_USE_V1", "0"), ("HF_TOKEN", "x")]
    assert parsed(command)[:2] == ("vllm", "m/Q")


@pytest.mark.parametrize(
    "script",
    [
        "vllm serve m/Q --tensor-parallel-size 2 2>&1 | tee log",
        "cd /app && vllm serve m/Q --tensor-parallel-size 2 > out.txt 2> err.txt",
        "pip install x; vllm serve m/Q --tensor-parallel-size 2 & wait",
        "vllm serve m/Q --tensor-parallel-size 2 &>> log",
    ],
)
def test_what_surrounds_a_server_in_a_shell_is_left_out(script: str) -> None:
    for shell in ("bash -c", "/usr/bin/bash -lc", "docker run --rm image/x bash -c"):
        assert parsed(f"{shell} '{script}'") == ("vllm", "m/Q", (("tensor-parallel-size", "2"),)), shell


def test_a_variable_written_without_a_blank_is_read() -> None:
    assert environment("docker run -eVLLM_USE_V1=0 -p8000:8000 vllm/vllm-openai --model m/Q") == [("VLLM_USE_V1", "0")]
