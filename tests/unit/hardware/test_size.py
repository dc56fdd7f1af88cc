"""`servesim size`: bytes computed by hand, what fits where, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import servesim
from servesim.cli.app import app
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec, bundled_models
from servesim.hardware.footprint import Load, changed, fit, fits, footprint

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
HUNYUAN_LARGE: dict[str, Any] = {
    "model_type": "hunyuan",
    "hidden_size": 6400,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "intermediate_size": 18304,
    "vocab_size": 128512,
    "max_position_embeddings": 131072,
    "num_experts": 16,
    "num_shared_expert": 1,
    "moe_topk": 1,
    "use_cla": True,
    "cla_share_factor": 2,
    "use_qk_norm": True,
    "tie_word_embeddings": True,
}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


def sized(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["size", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found["models"][0]


@pytest.mark.parametrize(
    ("settings", "kind", "elements", "bytes_per_token"),
    [
        ({}, "GQA with 8 KV heads", 2 * 8 * 128, 80 * 2048 * 2),
        ({"num_key_value_heads": 64}, "MHA", 2 * 64 * 128, 80 * 16384 * 2),
        ({"num_key_value_heads": 1}, "MQA", 2 * 128, 80 * 256 * 2),
        (MLA, "MLA, a latent of 512 + 64 numbers", 576, 80 * 576 * 2),
        ({"use_cla": True, "cla_share_factor": 2}, "GQA with 8 KV heads", 2048, 40 * 2048 * 2),
        ({"num_kv_shared_layers": 30}, "GQA with 8 KV heads", 2048, 50 * 2048 * 2),
    ],
)
def test_kv_of_a_token_by_kind_of_attention(
    settings: dict[str, Any], kind: str, elements: int, bytes_per_token: int
) -> None:
    found = footprint(changed("llama-2-70b", settings), [], Load())
    assert found["attention"] == kind
    assert found["kv"]["elements_per_token_per_layer"] == elements
    assert found["kv"]["bytes_per_token"] == bytes_per_token


def test_layers_with_a_window_keep_their_window_and_the_others_everything() -> None:
    gemma = ModelSpec.load("gemma-3-1b")  # 22 layers of 512 tokens and 4 of all, one KV head of 256
    assert gemma.kv_bytes(32_000) == (22 * 512 + 4 * 32_000) * 2 * 256 * 2
    assert gemma.kv_bytes(100) == 26 * 100 * 2 * 256 * 2
    kinds = footprint(gemma, [], Load())["kv"]["layers"]
    assert {(kind["layers"], kind["window"]) for kind in kinds} == {(22, 512), (4, 0)}


def test_layers_that_share_kv_have_no_projections_of_keys_and_values() -> None:
    full, shared = (ModelSpec.from_config({**SMALL, **more}, "x") for more in ({}, {"num_kv_shared_layers": 2}))
    assert full.num_params - shared.num_params == 2 * 2 * 64 * 64
    assert full.weight_bytes("bf16") - shared.weight_bytes("bf16") == 2 * 2 * 2 * 64 * 64


def test_hunyuan_large_shares_kv_between_pairs_of_layers() -> None:
    model = ModelSpec.from_config(HUNYUAN_LARGE, "hunyuan-large")
    assert model.num_params / 1e9 == pytest.approx(389, rel=2e-3)  # as published
    assert model.kv_bytes_per_token() == 32 * 2 * 8 * 80 * 2
    every_head = 64 * 2 * 80 * 80 * 2
    assert 1 - model.kv_bytes_per_token() / every_head == pytest.approx(0.95, abs=0.01)  # "nearly 95 %"


@pytest.mark.parametrize("key", ["altup_num_inputs", "hidden_size_per_layer_input", "global_head_dim"])
def test_what_else_models_with_shared_kv_have_is_refused_by_name(key: str) -> None:
    with pytest.raises(UserError, match=f"{key} indicates a model"):
        ModelSpec.from_config({**SMALL, "num_kv_shared_layers": 2, key: 4}, "x")


def test_weights_by_format() -> None:
    rows = {row["format"]: row for row in footprint(ModelSpec.load("llama-2-7b"), [], Load())["weights"]}
    params, wide = 6_738_415_616, 2 * 32_000 * 4096 + 4096  # embedding, LM head and final norm stay in 16 bits
    assert rows["bf16"]["all_bytes"] == rows["bf16"]["loaded_bytes"] == 2 * params
    assert rows["int4"]["all_bytes"] == params // 2
    assert rows["int4"]["loaded_bytes"] == (params - wide) // 2 + 2 * wide
    assert rows["ternary"]["all_bytes"] / 1e9 == pytest.approx(1.58 / 8 * 6.7384, rel=1e-4)
    # llama-2-7b.Q4_K_M.gguf has 4.08 GB
    assert rows["q4_k_m"]["loaded_bytes"] == rows["q4_k_m"]["all_bytes"]
    assert rows["q4_k_m"]["loaded_bytes"] / 1e9 == pytest.approx(4.08, rel=0.015)


def test_a_sequence_takes_blocks_of_every_group_of_layers() -> None:
    assert footprint(ModelSpec.load("llama-3.1-8b"), [], Load(1000, 3))["kv"]["blocks"] == 3 * 63
    # Gemma's 26 layers: groups of 4 (one of full attention, five of 4 and one of 2 with the window of 512)
    gemma = footprint(ModelSpec.load("gemma-3-1b"), [], Load(1000))["kv"]
    assert gemma["blocks"] == 63 + 6 * 33


def test_a_gpu_holds_what_the_memory_budget_leaves() -> None:
    model, gpu, load = ModelSpec.load("llama-3.1-8b"), Gpu.load("h100"), Load(8192, block_size=32)
    found = fit(model, gpu, 1, "bf16", load)
    assert found.kv_tokens == 32 * found.num_blocks
    assert found.sequences == found.num_blocks // 256
    assert found.weight_bytes == model.weight_bytes("bf16")
    taken = found.weight_bytes + found.kv_tokens * 131_072
    assert 0.92 * gpu.memory_bytes * 0.93 < taken < 0.92 * gpu.memory_bytes


def test_a_simulated_server_has_as_many_blocks() -> None:
    settings = {"trace": "synth:rate=1,prompt=10,output=10", "requests": 2, "gpu": "h100", "kv": "prefix-hash"}
    for model, dtype, tp in (("llama-3.1-8b", "bf16", 1), ("llama-3.1-70b", "fp8", 2)):
        kv = servesim.simulate({**settings, "model": model, "dtype": dtype, "tp": tp}).summary["kv"]
        found = fit(ModelSpec.load(model), Gpu.load("h100"), tp, dtype, Load())
        assert found.num_blocks == kv["num_blocks"] - 1  # the null block is never handed out
        assert found.kv_tokens == kv["capacity_tokens"]


@given(model=st.sampled_from(bundled_models()), tokens=st.integers(1, 200_000), more=st.integers(0, 5000))
def test_a_longer_sequence_never_keeps_less_nor_more_than_without_windows(model: str, tokens: int, more: int) -> None:
    spec = ModelSpec.load(model)
    longest = (tokens + more) * spec.kv_bytes_per_token() + spec.state_bytes()
    assert spec.kv_bytes(tokens) <= spec.kv_bytes(tokens + more) <= longest
    assert spec.kv_bytes(1) == spec.kv_bytes_per_token() + spec.state_bytes()


def test_the_fewest_gpus_that_hold_the_load_are_named() -> None:
    model, gpus = ModelSpec.load("llama-3.1-70b"), [Gpu.load("h100"), Gpu.load("h200")]
    assert [one.tp for one in fits(model, gpus, ["bf16", "fp8"], Load())] == [2, 1, 2, 1]
    many = fits(model, gpus[:1], ["bf16"], Load(32_768, 8))[0]
    assert many.tp == 4
    assert fit(model, gpus[0], 2, "bf16", Load(32_768, 8)).sequences < 8 <= many.sequences


def test_four_bits_of_70_billion_weights_exceed_a_consumer_card() -> None:
    for name in ("rtx-4090", "rtx-5090"):
        found = fit(ModelSpec.load("llama-2-70b"), Gpu.load(name), 1, "int4", Load())
        assert found.weight_bytes > Gpu.load(name).memory_bytes
        assert (found.num_blocks, found.sequences) == (0, 0)
        assert "needs 3" in found.reason


def test_degrees_that_are_asked_for_are_all_shown() -> None:
    rows = sized("llama-3.1-8b", "--gpu", "h100,l40s", "--weights", "bf16", "--tp", "1,2")["fits"]
    assert [(row["gpu"], row["tp"]) for row in rows] == [("h100", 1), ("h100", 2), ("l40s", 1), ("l40s", 2)]


def test_a_config_file_and_a_what_if(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert sized(str(tmp_path), "--gpu", "h100")["kv"]["bytes_per_token"] == 6 * 2 * 64 * 2
    fewer = sized(str(tmp_path), "--gpu", "h100", "--kv-heads", "1", "--kv-dtype", "fp8")
    assert fewer["kv"]["bytes_per_token"] == 6 * 2 * 16
    assert fewer["attention"] == "MQA"


def test_the_tables_say_what_the_json_says() -> None:
    done = CliRunner().invoke(app, ["size", "llama-2-70b", "--kv-heads", "64", "--context", "32000", "--gpu", "h100"])
    assert "MHA" in done.output
    assert "2,621,440 B" in done.output
    assert "83.89 GB" in done.output
    assert "supports 4,096 positions" in done.output


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["llama"], "unknown model 'llama'"),
        (["llama-2-70b", "--gpu", "h100x"], "unknown GPU"),
        (["llama-2-70b", "--weights", "int5"], "unknown dtype 'int5'"),
        (["llama-2-70b", "--kv-dtype", "q2_k"], "unknown kv_dtype 'q2_k'"),
        (["llama-2-70b", "--context", "0"], "context must be at least 1"),
        (["llama-2-70b", "--sequences", "-1"], "sequences must be at least 1"),
        (["llama-2-70b", "--memory-utilization", "1.5"], "memory_utilization must be"),
        (["llama-2-70b", "--tp", "3"], "tp = 3 does not divide"),
        (["llama-2-70b", "--tp", "two"], "--tp two: must be whole numbers"),
        (["llama-2-70b", "--kv-heads", "7"], "not a multiple of 7 KV heads"),
        (["deepseek-v3", "--kv-heads", "8"], "deepseek-v3 has latent attention"),
        (["llama-2-70b", "--kv-heads", "0"], "must be a positive integer or null, not 0"),
        (["llama-2-70b", "--gpu", ","], "--gpu: specify a value"),
        (["llama-2-70b", "--set", "window"], "--set window: write KEY=VALUE"),
        (["llama-2-70b", "--set", "windows=5"], "windows is not a key"),
        (["llama-2-70b", "--set", "use_cla=true"], "use_cla is not a key"),
        (["llama-2-70b", "--set", "num_kv_shared_layers=80"], "must be from 0 to 79"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from servesim.cli.app import main

    monkeypatch.setattr("sys.argv", ["servesim", "size", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    printed = capsys.readouterr()
    assert (left.value.code, printed.out) == (2, "")
    assert told in printed.err
    assert printed.err.count("\n") == 1
