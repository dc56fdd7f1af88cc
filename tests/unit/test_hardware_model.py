"""ModelSpec: published parameter counts, KV sizes, and configs it must refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servesim.errors import UserError
from servesim.hardware import ModelSpec, bundled_models

# Published sizes (model cards and papers), in billions.
PUBLISHED = {
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "llama-2-7b": 6.74,
    "llama-2-13b": 13.02,
    "llama-2-70b": 68.98,
    "codellama-34b": 33.74,
    "llama-3.2-1b": 1.236,
    "qwen3-0.6b": 0.596,
    "qwen3-8b": 8.19,
    "qwen3-14b": 14.77,
    "qwen3-32b": 32.76,
    "opt-13b": 12.85,
    "tiny-llama": 0.00395,
}


def test_every_bundled_model_has_a_published_size_here() -> None:
    assert set(bundled_models()) == set(PUBLISHED)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert ModelSpec.load(name).num_params / 1e9 == pytest.approx(PUBLISHED[name], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "size"),
    [("opt-13b", 819_200), ("llama-3.1-8b", 131_072), ("llama-2-7b", 524_288), ("qwen3-14b", 163_840)],
)
def test_kv_bytes_per_token(name: str, size: int) -> None:
    model = ModelSpec.load(name)
    assert model.kv_bytes_per_token("bf16") == size
    assert model.kv_bytes_per_token("fp8") == size // 2


def test_tensor_parallelism_keeps_at_least_one_kv_head() -> None:
    model = ModelSpec.load("llama-3.1-70b")  # 8 KV heads
    assert model.kv_bytes_per_token("bf16", tp=16) == model.kv_bytes_per_token("bf16", tp=8)


def test_embeddings_and_lm_head_stay_in_two_bytes_under_fp8() -> None:
    model = ModelSpec.load("llama-3.1-8b")
    unquantised = 2 * model.vocab_size * model.hidden_size + model.hidden_size
    assert model.weight_bytes("fp8") == model.num_params + unquantised


def test_a_folder_with_a_config_json_is_a_model(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen2",
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "use_sliding_window": False,
    }
    folder = tmp_path / "qwen2-0.5b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    model = ModelSpec.load(str(folder))
    assert model.name == "qwen2-0.5b"
    assert model.num_params == 494_032_768  # the size of Qwen2-0.5B, with its QKV biases
    assert (model.head_dim, model.sliding_window, model.qkv_bias, model.output_bias) == (
        64,
        None,
        True,
        False,
    )


def test_unknown_name_suggests_the_close_one() -> None:
    with pytest.raises(UserError, match=r'did you mean "llama-3.1-8b"'):
        ModelSpec.load("llama-3.1-8")


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("num_local_experts", 8, "mixture of experts"),
        ("kv_lora_rank", 512, "latent attention"),
        ("is_encoder_decoder", True, "is_encoder_decoder"),
        ("hidden_size", None, "hidden_size must be a positive integer"),
    ],
)
def test_unsupported_configs_are_refused_by_name(key: str, value: object, what: str) -> None:
    config = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 64,
        key: value,
    }
    with pytest.raises(UserError, match=what):
        ModelSpec.from_config(config, "x")
