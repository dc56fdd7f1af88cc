"""Widths that engines refuse to split, because quantization has one scale per block of weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servesim.errors import UserError
from servesim.hardware import ModelSpec
from servesim.hardware.blocks import check_blocks
from servesim.hardware.layers import Experts
from servesim.hardware.model import check_tp

DENSE = ModelSpec(
    "dense",
    num_layers=2,
    hidden_size=1024,
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    intermediate_size=1536,
    vocab_size=1000,
    max_position=4096,
    block_scaled=True,
)
MIXED = replace(DENSE, experts=Experts(64, 4, 1536), layer_kinds=(DENSE.layers[0]._replace(experts=True),) * 2)


def check(model: ModelSpec, tp: int, dtype: str = "fp8", **parallel: int) -> None:
    check_blocks(model, dtype, 128, "vLLM", tp=tp, **parallel)


def test_experts_of_1536_split_over_8_gpus_are_192_wide_which_blocks_of_128_do_not_divide() -> None:
    check(MIXED, 4)  # 384 = 3 x 128
    with pytest.raises(UserError) as refused:
        check(MIXED, 8)
    said = str(refused.value)
    assert "192 is not divisible by weight quantization block_n = 128" in said
    assert "engine.enable_expert_parallel" in said
    assert said.endswith("or choose tp from: 1, 2, 4")


def test_whole_experts_are_not_split() -> None:
    check(MIXED, 8, ep=8)
    with pytest.raises(UserError, match="192"):
        check(MIXED, 8, ep=1)
    with pytest.raises(UserError, match="192"):
        check(MIXED, 4, dp=2)  # ranks split experts together


def test_experts_over_more_gpus_than_there_are_are_whole() -> None:
    check(MIXED, 4, ep=8)  # check_ranks refuses it in a scenario


def test_dense_layers_are_split_by_tp_alone_and_expert_parallelism_is_no_way_out() -> None:
    check(DENSE, 4)
    with pytest.raises(UserError, match=r"MLP of dense.*output_partition_size = 192") as refused:
        check(DENSE, 8)
    assert "expert" not in str(refused.value)


def test_a_shared_expert_is_split_even_if_experts_are_whole() -> None:
    assert MIXED.experts is not None
    shared = replace(MIXED, experts=replace(MIXED.experts, shared_size=512))
    check(shared, 4, ep=4)
    with pytest.raises(UserError, match=r"shared expert.*= 64 is") as refused:
        check(shared, 8, ep=8)
    assert "expert_parallel" not in str(refused.value)


def test_heads_narrower_than_a_block_are_refused() -> None:
    narrow = replace(DENSE, head_dim=64)
    check(narrow, 1)
    with pytest.raises(UserError, match=r"attention of dense.*= 64 is"):
        check(narrow, 2)  # one KV head of 64


@pytest.mark.parametrize(("dtype", "block_scaled"), [("bf16", True), ("fp8", False), ("int4", True)])
def test_other_formats_are_split_at_any_width(dtype: str, block_scaled: bool) -> None:
    check(replace(MIXED, block_scaled=block_scaled), 8, dtype)


def test_fp8_block_is_in_blocks_for_any_model() -> None:
    with pytest.raises(UserError, match="192"):
        check(replace(MIXED, block_scaled=False), 8, "fp8_block")


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8", True),
        ("Qwen/Qwen3-32B-FP8", True),
        ("qwen3-235b-a22b", True),
        ("deepseek-ai/DeepSeek-R1", True),
        ("MiniMaxAI/MiniMax-M2.5", True),
        ("RedHatAI/Qwen3-235B-A22B-FP8-dynamic", False),
        ("RedHatAI/Qwen3-32B-FP8", False),
        ("qwen3-32b", False),
        ("zai-org/GLM-4.5-Air-FP8", False),
        ("llama-3.1-70b", False),
    ],
)
def test_names_say_whether_fp8_weights_have_scales_of_blocks(name: str, blocks: bool) -> None:
    assert ModelSpec.load(name).block_scaled is blocks


def test_tp_divides_the_width_of_a_dense_mlp() -> None:
    check_tp(DENSE, 8)
    with pytest.raises(UserError, match="tp = 8 does not divide the 1540 columns of the MLP of dense"):
        check_tp(replace(DENSE, intermediate_size=1540), 8)
