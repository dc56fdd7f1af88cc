"""Layers that keep a state, by hand: weights, bytes of a state, length of a block, groups of layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from servesim.errors import UserError
from servesim.hardware import Gpu, KvGroup, ModelSpec, kv_groups, memory_budget
from servesim.hardware.footprint import Load, fit, footprint
from servesim.hardware.kv import state_block_size
from servesim.hardware.layers import STATE_WINDOW, Layer
from servesim.hardware.recurrent import KDA, MAMBA2, Recurrent

SMALL = Recurrent("gdn", 2, 4, 8, 16, 4)
QWEN_NEXT = Recurrent("gdn", 16, 32, 128, 128, 4)
"""The layer of Qwen3-Next-80B-A3B."""
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


def test_a_state_is_a_matrix_for_each_head_and_the_tokens_the_convolution_reaches_back() -> None:
    """4 heads of 8 x 16 numbers; 3 tokens of 16 + 16 + 64 channels: two bytes each."""
    assert SMALL.state_bytes() == 2 * (4 * 8 * 16 + 3 * 96)
    assert SMALL.state_bytes(2) * 2 == SMALL.state_bytes()
    assert replace(SMALL, state_dtype="fp32").state_bytes() == 4 * 4 * 8 * 16 + 2 * 3 * 96


def test_states_of_32_heads_in_float32_take_what_sglang_allocates() -> None:
    """24 x (8192 x 3 x 2 + 32 x 128 x 128 x 4) bytes."""
    assert 24 * replace(QWEN_NEXT, state_dtype="fp32").state_bytes() == 51_511_296


@pytest.mark.parametrize(
    ("kind", "linears"),
    [
        ("gdn", [(160, 64), (8, 64), (64, 64)]),
        (KDA, [(96, 64), (16, 64), (16, 16), (16, 64), (64, 16), (4, 64), (64, 64)]),
        (MAMBA2, [(164, 64), (64, 64)]),
    ],
)
def test_projections_make_queries_keys_values_gate_and_numbers_by_head(kind: str, linears: list[Any]) -> None:
    layer = replace(SMALL, kind=kind)
    assert layer.linears(64) == linears
    assert layer.params(64) > sum(n * k for n, k in linears)


def test_blocks_of_qwen3_next_are_as_long_as_vllm_says_at_its_start() -> None:
    """Its log: "Setting attention block size to 544 tokens": a state of 1,097,728 bytes, 2,048 a token, whole
    sixteens."""
    model = _model(num_attention_heads=16, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=32,
                   linear_key_head_dim=128, linear_value_head_dim=128)  # fmt: skip
    assert model.recurrent == QWEN_NEXT
    assert state_block_size(model, 16) == 544
    assert state_block_size(model, 1024) == 1024
    assert state_block_size(ModelSpec.load("llama-3.1-8b"), 16) == 16


def test_three_of_four_layers_keep_a_state_and_make_three_groups_beside_that_of_attention() -> None:
    model = ModelSpec.load("qwen3.5-397b-a17b")
    assert [layer.recurrent for layer in model.layers[:8]] == [True, True, True, False] * 2
    assert kv_groups(model.layers) == [KvGroup(15), *[KvGroup(15, STATE_WINDOW)] * 3]
    assert [group.blocks(100_000, 528) for group in kv_groups(model.layers)] == [190, 2, 2, 2]


def test_the_layers_of_nemotron_h_are_attention_states_or_mlps_alone() -> None:
    model = ModelSpec.load("nemotron-3-nano-30b-a3b")
    mamba, experts, attention = (model.layers[i] for i in (0, 1, 5))
    assert mamba == Layer(0, False, False, True, True, False)
    assert experts == Layer(0, True, False, False, False, True)
    assert attention == Layer(0, False, True, False, True, False)
    assert model.layer_params * model.num_layers == pytest.approx(3.2e9, rel=0.15), "3.2 B with embeddings, A3B"


def test_memory_without_groups_sets_a_pool_of_states_beside_that_of_keys_and_values() -> None:
    model, gpu = ModelSpec.load("qwen3.5-35b-a3b"), Gpu.load("h200")
    limits = {"max_num_batched_tokens": 8192, "max_num_seqs": 256}
    apart = memory_budget(model, gpu, **limits)
    rest = apart.usable - apart.weights - apart.activations - apart.non_torch - apart.cuda_graphs
    assert apart.state_slots == int(rest * 0.9 / 1.9) // model.state_bytes()
    assert apart.num_blocks == (rest - int(rest * 0.9 / 1.9)) // apart.block_bytes
    assert memory_budget(model, gpu, **limits, hybrid=True, block_size=1056).state_slots == 0


def test_sizes_of_a_model_with_states_count_them_once_a_sequence() -> None:
    model, gpu = ModelSpec.load("qwen3.5-35b-a3b"), Gpu.load("h200")
    short, long = (footprint(model, [gpu], Load(context=n), ["fp8"])["kv"]["bytes"] for n in (1_000, 2_000))
    assert long - short == 1_000 * model.kv_bytes_per_token()
    assert short - 1_000 * model.kv_bytes_per_token() == model.state_bytes()
    assert fit(model, gpu, 1, "fp8", Load(context=1_056)).sequences > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"full_attention_interval": None}, "but the config does not list which ones"),
        ({"linear_key_head_dim": -1}, "linear_key_head_dim must be a positive integer, not -1"),
        ({"linear_num_value_heads": 3}, "the number of heads with a state, 3, is not a multiple of 2"),
        ({"mamba_ssm_dtype": "int8"}, "unsupported state format 'int8'"),
        ({"linear_num_key_heads": None, "linear_attn_config": 3}, "linear_attn_config must be an object"),
        ({"linear_num_key_heads": None, "hybrid_override_pattern": "MX*-", "n_groups": 2, "mamba_num_heads": 4,
          "ssm_state_size": 8, "mamba_head_dim": 16, "conv_kernel": 4}, "must have M, "),
        ({"linear_num_key_heads": None, "linear_attn_config": {"num_heads": 4, "head_dim": 16, "kda_layers": [1, 9],
          "short_conv_kernel_size": 4}}, "listed as keeping a state are not among the 4 layers"),
    ],
)  # fmt: skip
def test_states_that_a_config_leaves_open_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        _model(**changes)


def test_kimi_delta_attention_is_read_from_one_on() -> None:
    config = {"linear_num_key_heads": None, "linear_attn_config": {"num_heads": 4, "head_dim": 16,
              "kda_layers": [1, 2, 3], "full_attn_layers": [4], "short_conv_kernel_size": 4}}  # fmt: skip
    model = _model(**config)
    assert model.recurrent == Recurrent(KDA, 4, 4, 16, 16, 4, "fp32")
    assert [layer.recurrent for layer in model.layers] == [True, True, True, False]


def _model(**changes: Any) -> ModelSpec:
    return ModelSpec.from_config({**CONFIG, **changes}, "small")


def test_weights_of_a_layer_with_a_state_by_hand() -> None:
    """Keys of 2 x 8 twice and values of 4 x 16: 96 channels of a convolution over 4 tokens, with a bias in Mamba-2."""
    gdn = (2 * 16 + 2 * 64) * 32 + 2 * 4 * 32 + 64 * 32 + 96 * 4 + 2 * 4 + 16
    assert SMALL.params(32) == gdn
    mamba = (2 * 16 + 2 * 64 + 4) * 32 + 64 * 32 + 96 * (4 + 1) + 3 * 4 + 64
    assert replace(SMALL, kind=MAMBA2).params(32) == mamba
