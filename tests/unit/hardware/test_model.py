"""ModelSpec: published parameter counts, KV sizes, and configs it must refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.errors import UserError
from servesim.hardware import ModelSpec, bundled_models
from servesim.hardware.model import read_config

# Published sizes (model cards and papers), in billions.
ROUNDED = {
    "qwen3-coder-480b-a35b": 480,
    "kimi-k2": 1026,
    "kimi-k2.5": 1026,
    "kimi-k2.5-nvfp4": 1026,
    "minimax-m2.5": 229,
    "minimax-m2.5-nvfp4": 229,
    "glm-4.5-air": 106.9,
    "glm-4.5": 353,
    "qwen3.5-397b-a17b": 397,
    "qwen3.5-122b-a10b": 122,
    "qwen3.5-35b-a3b": 35,
    "qwen3.5-27b": 27,
    "qwen3.5-9b": 8.95,
    "nemotron-3-nano-30b-a3b": 31.6,
    "nemotron-h-56b": 56.3,
    "deepseek-v3.2": 671.9,
    "glm-5": 744,
    "llama-4-scout": 108,
    "llama-4-maverick": 400,
}
"""Billions of parameters that are published in round numbers, without the layers that predict further tokens."""
PUBLISHED = {
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "llama-68m": 0.068,
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
    "opt-175b": 174.6,
    "yi-34b-200k": 34.39,
    "tiny-llama": 0.00395,
    "mixtral-8x7b": 46.70,
    "gpt-oss-120b": 116.83,
    "gpt-oss-20b": 20.91,
    "qwen3-30b-a3b": 30.53,
    "deepseek-v3": 671.03,
    "deepseek-v3-nvfp4": 671.03,
    "deepseek-v2-lite": 15.706,
    "gemma-3-1b": 0.99989,
    "gemma-3-4b": 0.675 + 3.209,
    "gemma-3-12b": 1.012 + 10.759,
    "gemma-3-27b": 1.416 + 25.600,
    "mistral-7b": 7.242,
    "llama-3.1-405b": 405.8534,
    "llama-3.2-3b": 3.212750,
    "mistral-small-24b": 23.572403,
    "mixtral-8x22b": 140.620634,
    "qwen2.5-0.5b": 0.494033,
    "qwen2.5-1.5b": 1.543714,
    "qwen2.5-3b": 3.085939,
    "qwen2.5-7b": 7.615617,
    "qwen2.5-14b": 14.770034,
    "qwen2.5-32b": 32.763876,
    "qwen2.5-72b": 72.706204,
    "qwen3-1.7b": 1.7206,
    "qwen3-4b": 4.022468,
    "qwen3-235b-a22b": 235.093635,
    **ROUNDED,
}


def test_every_bundled_model_has_a_published_size_here() -> None:
    assert set(bundled_models()) == set(PUBLISHED)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert ModelSpec.load(name).num_params / 1e9 == pytest.approx(
        PUBLISHED[name], rel=1e-2 if name in ROUNDED else 1e-3
    )


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("opt-13b", 819_200),
        ("llama-3.1-8b", 131_072),
        ("llama-2-7b", 524_288),
        ("qwen3-14b", 163_840),
        ("deepseek-v3", 61 * 576 * 2),
    ],
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


def test_gpt_oss_alternates_windows_and_keeps_its_experts_in_mxfp4() -> None:
    model = ModelSpec.load("gpt-oss-120b")
    assert [layer.window for layer in model.layers[:4]] == [128, 0, 128, 0]
    assert model.experts is not None
    experts = 36 * model.experts.params(2880)
    rest = model.num_params - experts
    # 4 bits and a shared 8-bit scale for every 32 weights; the published checkpoint has 65.2 GB
    assert model.weight_bytes("bf16") == int(experts * 4.25 / 8 + 2 * rest)
    assert model.weight_bytes("bf16") / 1e9 == pytest.approx(65.2, rel=0.01)


def test_a_token_passes_only_the_experts_it_is_routed_to() -> None:
    mixtral, dense = ModelSpec.load("mixtral-8x7b"), ModelSpec.load("mistral-7b")
    expert, router = dense.mlp_params, 8 * 4096
    assert mixtral.layer_params == dense.layer_params + expert + router
    assert ModelSpec.load("deepseek-v3").layer_params * 61 / 1e9 == pytest.approx(37 - 1.85, rel=0.03)


def test_few_tokens_touch_few_experts_and_many_touch_all() -> None:
    experts = ModelSpec.load("mixtral-8x7b").experts
    assert experts is not None
    assert [experts.touched(t) for t in (1, 2)] == pytest.approx([2.0, 3.5])
    assert experts.touched(100) == pytest.approx(8.0)


def test_layers_that_share_kv_keep_none() -> None:
    config = {
        "hidden_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 64,
    }
    full = ModelSpec.from_config(config, "x").kv_bytes_per_token()
    assert ModelSpec.from_config({**config, "num_kv_shared_layers": 2}, "x").kv_bytes_per_token() == full * 4 // 6
    pairs = ModelSpec.from_config({**config, "use_cla": True, "cla_share_factor": 2}, "x")
    assert [layer.owns_kv for layer in pairs.layers] == [True, False] * 3
    assert pairs.kv_bytes_per_token() == full // 2


def test_a_layer_without_its_own_kv_has_no_weights_biases_and_norm_of_keys_and_values() -> None:
    """Two of four layers go without 2 projections of 64 x 32, a bias of 32 in each, and the norm of keys of 16."""
    shape = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    size = {"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 64}
    for more, each in (({}, 2 * 64 * 32), ({"attention_bias": True, "use_qk_norm": True}, 2 * 65 * 32 + 16)):
        config = {**shape, **size, **more}
        full = ModelSpec.from_config(config, "x")
        shared = ModelSpec.from_config({**config, "num_kv_shared_layers": 2}, "x")
        assert full.num_params - shared.num_params == 2 * each


def test_gemma_has_one_full_layer_in_six() -> None:
    windows = [layer.window for layer in ModelSpec.load("gemma-3-1b").layers]
    assert windows[:12] == [512] * 5 + [0] + [512] * 5 + [0]


def test_latent_attention_splits_heads_but_not_its_cache() -> None:
    model = ModelSpec.load("deepseek-v3")
    assert model.kv_bytes_per_token("bf16", tp=8) == model.kv_bytes_per_token("bf16")


def test_unknown_name_suggests_the_close_one() -> None:
    with pytest.raises(UserError, match=r'did you mean "llama-3.1-8b"'):
        ModelSpec.load("llama-3.1-8")


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("linear_num_key_heads", 16, "linear_num_value_heads must be a positive integer, not None"),
        ("moe_latent_size", 1024, "experts that work in a latent space"),
        ("index_topk", 2048, "sparse attention, which is not supported without kv_lora_rank"),
        ("index_topk_freq", 4, "sparse attention whose layers share an index"),
        ("layer_types", ["full_attention", "chunked_attention"], "'chunked_attention' are not supported"),
        ("layer_types", ["full_attention"], "lists 1 of 2 layers"),
        ("num_local_experts", 8, "num_experts_per_tok must be a positive integer"),
        ("kv_lora_rank", 512, "qk_rope_head_dim must be a positive integer"),
        ("num_kv_shared_layers", 2, "num_kv_shared_layers must be from 0 to 1"),
        ("is_encoder_decoder", True, "is_encoder_decoder"),
        ("hidden_size", None, "hidden_size must be a positive integer"),
        ("num_key_value_heads", -4, "num_key_value_heads must be a positive integer or null, not -4"),
        ("head_dim", "x", "head_dim must be a positive integer or null, not 'x'"),
        ("sliding_window", -5, "sliding_window must be a whole number or null, not -5"),
        ("sliding_window", True, "sliding_window must be a whole number or null, not True"),
        ("layer_types", 3, "layer_types must be a list or null, not 3"),
        ("model_type", ["x"], "model_type must be a str or null"),
        ("num_experts", [8, 8], "num_experts must be a whole number or null"),
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


JUNK = st.none() | st.booleans() | st.integers(-3, 300) | st.floats(allow_nan=False) | st.text(max_size=3)


@pytest.mark.medium
@given(
    st.data(),
    st.sampled_from(bundled_models()),
    JUNK | st.lists(JUNK, max_size=3) | st.dictionaries(st.text(max_size=3), JUNK),
)
def test_a_damaged_config_is_a_model_or_a_line(data: st.DataObject, name: str, junk: object) -> None:
    config = read_config(name)[0]
    key = data.draw(
        st.sampled_from(sorted({*config, "num_kv_shared_layers", "cla_share_factor", "use_cla", "layer_types"}))
    )
    try:
        model = ModelSpec.from_config({**config, key: junk}, name)
    except UserError:
        return
    assert model.num_params > 0
    assert model.weight_bytes("int4") > 0
    assert model.kv_bytes(1000) > 0


DEEPSEEK = {"hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"index_topk_freq": 4, "num_hidden_layers": 61, "n_routed_experts": 256} | DEEPSEEK,
            r"share an index, which is not supported: all 61 layers; deepseek-v3(-nvfp4|\.2)? is the supported",
        ),
        (
            {"moe_latent_size": 1024, "num_hidden_layers": 88, "n_routed_experts": 512},
            r"experts that work in a latent space \(Nemotron 3 Super and Ultra\), which is not supported; "
            ".* is the supported model nearest in size",
        ),
        (
            {"text_config": {"mamba_d_state": 128, "hidden_size": 5120, "num_hidden_layers": 48}},
            r"mamba_d_state indicates a state-space model, which is not supported; .* is the supported model nearest",
        ),
        (  # opt-13b is as large, and its config.json leaves out that each head has keys and values
            {"mamba_d_state": 128, "num_hidden_layers": 40},
            r"which is not supported; qwen3-14b is the supported model nearest",
        ),
    ],
)
def test_what_cannot_be_priced_is_refused_by_layer_with_the_nearest_model_that_can(
    more: dict[str, Any], said: str
) -> None:
    config = {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 151936}
    with pytest.raises(UserError, match=said):
        ModelSpec.from_config({**config, **more}, "x")


def test_llama_4_attends_chunks_in_three_of_four_layers_and_has_experts_where_it_says() -> None:
    scout, maverick = ModelSpec.load("llama-4-scout"), ModelSpec.load("llama-4-maverick")
    assert [layer.window for layer in scout.layers[:5]] == [8192, 8192, 8192, 0, 8192]
    assert [layer.experts for layer in maverick.layers[:4]] == [False, True, False, True]
    assert all(layer.experts for layer in scout.layers)
    assert maverick.experts is not None
    assert (maverick.experts.shared_size, maverick.intermediate_size) == (8192, 16384)
