"""Memory budgets and vLLM's defaults."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servesim.errors import UserError
from servesim.hardware import (
    Gpu,
    KvGroup,
    Layer,
    MemoryBudget,
    ModelSpec,
    block_bytes,
    gpu_names,
    kv_groups,
    max_concurrency,
    memory_budget,
    page_bytes,
    pipeline_layers,
    vllm_defaults,
)
from servesim.hardware.memory import padding_bytes, stage_weight_bytes


def budget(model: str, gpu: str, tp: int = 1, **options: object) -> MemoryBudget:
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 128, **options}
    return memory_budget(ModelSpec.load(model), Gpu.load(gpu), tp, **limits)  # type: ignore[arg-type]


def test_releases_count_memory_differently() -> None:
    """0.15 sorts to sample and subtracts no graphs, at 90 %; the latest subtracts an estimate and takes 92 %."""
    old, new = (budget("qwen3-0.6b", "h100", max_num_seqs=1024, version=version) for version in ((0, 15), None))
    hidden = (2048 + 1024) * 1024 * 2
    assert old.activations == hidden + int(1024 * 151_936 * 38.3)
    assert new.activations == hidden + 1024 * 151_936 * 18
    assert (old.cuda_graphs, new.cuda_graphs) == (0, int(0.15 * 2**30))
    assert old.usable == math.ceil(Gpu.load("h100").memory_bytes * 0.9)
    assert new.usable == math.ceil(Gpu.load("h100").memory_bytes * 0.92)
    assert budget("qwen3-0.6b", "h100", version=(0, 21)) == budget("qwen3-0.6b", "h100", version=(0, 33))
    assert vllm_defaults(Gpu.load("h100"), version=(0, 20)).gpu_memory_utilization == 0.9


def test_tensorrt_llm_s_share_is_that_of_what_everything_else_leaves() -> None:
    """Qwen3-32B on an A100: a tenth of the weights, activations and buffers more than with a share of all memory."""
    share = {"gpu_memory_utilization": 0.9, "block_size": 32}
    of_all, of_free = (budget("qwen3-32b", "a100", of_free=free, **share) for free in (False, True))
    total, taken = Gpu.load("a100").memory_bytes, of_free.taken
    assert of_free.usable - taken == math.ceil((total - taken) * 0.9)
    assert of_free.num_blocks == (of_free.usable - taken) // (64 * 32 * 4096)
    assert of_free.usable - of_all.usable == pytest.approx(0.1 * taken, abs=2)


def test_the_mlp_is_the_peak_where_few_sequences_are_sampled() -> None:
    """8,192 tokens: three times the MLP's width and twice the hidden state, 2 bytes each."""
    got = budget("qwen3-14b", "h100", max_num_batched_tokens=8192, max_num_seqs=64)
    assert got.activations == 8192 * (3 * 17_408 + 2 * 5120) * 2


def test_experts_in_mxfp4_are_padded_to_whole_tiles() -> None:
    """A hidden size of 2880 becomes 3072, in experts alone."""
    model = ModelSpec.load("gpt-oss-20b")
    experts = 24 * 32 * 3 * 2880 * 2880 * 0.53125
    assert padding_bytes(model, range(24)) == pytest.approx(experts * (3072 / 2880 - 1))
    assert budget("gpt-oss-20b", "h100").weights == model.weight_bytes("bf16") + padding_bytes(model, range(24))
    assert padding_bytes(ModelSpec.load("mixtral-8x7b"), range(32)) == 0


def test_the_parts_add_up_to_the_usable_memory() -> None:
    b = budget("llama-3.1-8b", "h100")
    rest = b.usable - b.weights - b.activations - b.non_torch - b.cuda_graphs
    assert b.num_blocks == rest // b.block_bytes
    assert b.block_bytes == 16 * 131_072


def test_a_model_that_does_not_fit_is_an_error_with_numbers_and_hints() -> None:
    with pytest.raises(UserError, match=r"weights 131\.4 GiB.*72\.8 GiB .*larger tp, --dtype fp8, --ignore-memory"):
        budget("llama-3.1-70b", "h100")


def test_ignoring_memory_gives_the_blocks_one_asks_for() -> None:
    assert budget("llama-3.1-70b", "h100", ignore_memory=True, num_blocks=1000).num_blocks == 1000
    assert budget("llama-3.1-70b", "h100", ignore_memory=True).num_blocks == 2**31


def test_a_block_count_beyond_the_memory_is_refused() -> None:
    assert budget("llama-3.1-8b", "h100", num_blocks=500).num_blocks == 500
    with pytest.raises(UserError, match="500000 KV blocks need"):
        budget("llama-3.1-8b", "h100", num_blocks=500_000)


def test_tp_must_divide_the_heads() -> None:
    with pytest.raises(UserError, match="tp = 3 does not divide"):
        budget("llama-3.1-8b", "h100", 3)


@pytest.mark.parametrize(
    ("gpu", "usage", "tokens", "seqs"),
    [
        ("h100", "server", 8192, 1024),
        ("h100", "offline", 16384, 1024),
        ("h200", "server", 8192, 1024),
        ("a100", "server", 2048, 256),
        ("a100", "offline", 8192, 256),
        ("l40s", "server", 2048, 256),
    ],
)
def test_vllm_defaults_by_gpu(gpu: str, usage: str, tokens: int, seqs: int) -> None:
    defaults = vllm_defaults(Gpu.load(gpu), usage)
    assert (defaults.max_num_batched_tokens, defaults.max_num_seqs) == (tokens, seqs)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H-200", "h200"),
        ("rtxpro6000", "rtx-pro-6000"),
        ("RTX PRO 6000", "rtx-pro-6000"),
        ("A100 40G", "a100-40g"),
    ],
)
def test_a_gpu_spelt_otherwise_is_told_its_name(name: str, known: str) -> None:
    with pytest.raises(UserError, match=f'did you mean "{known}"'):
        Gpu.load(name)


@pytest.mark.parametrize("name", ["b100", "gh200", "h2000", "h1000", "a16", "mi300x", "l40", "5090"])
def test_a_gpu_without_a_data_sheet_is_never_taken_for_one_spelt_alike(name: str) -> None:
    with pytest.raises(UserError, match=r"no data sheet is bundled for it .* describe the GPU in a YAML file") as error:
        Gpu.load(name)
    assert "did you mean" not in str(error.value)


@pytest.mark.parametrize("name", ["a100", "a100-40g", "h100", "h200", "l40s"])
def test_data_sheets_are_numbers(name: str) -> None:
    gpu = Gpu.load(name)
    assert name in gpu_names()
    assert all(isinstance(rate, float) for rate in (gpu.bandwidth, gpu.pcie_bandwidth, *gpu.flops.values()))


def test_pipeline_stages_split_as_in_vllm() -> None:
    # what remains goes to the stages before the last one, from the back
    assert [len(r) for r in pipeline_layers(10, 4)] == [2, 3, 3, 2]
    assert [len(r) for r in pipeline_layers(61, 4)] == [15, 15, 16, 15]
    assert [r.start for r in pipeline_layers(32, 2)] == [0, 16]
    with pytest.raises(UserError, match="pp = 5 must be from 1 to the 4 layers"):
        pipeline_layers(4, 5)


def test_stages_together_hold_the_model() -> None:
    model = ModelSpec.load("llama-3.1-70b")
    stages = pipeline_layers(model.num_layers, 3)
    assert sum(stage_weight_bytes(model, s, "bf16") for s in stages) == model.weight_bytes("bf16")
    tied = ModelSpec.load("llama-3.2-1b")  # the last stage has a copy of the embedding for its LM head
    extra = 2 * tied.vocab_size * tied.hidden_size
    halves = pipeline_layers(tied.num_layers, 2)
    assert sum(stage_weight_bytes(tied, s, "bf16") for s in halves) == tied.weight_bytes("bf16") + extra


def test_blocks_under_pipeline_parallelism_are_those_of_the_fullest_stage() -> None:
    got = budget("llama-3.1-70b", "h100", pp=4, max_num_seqs=1024)
    assert got.block_bytes == 16 * 20 * 2 * 8 * 128 * 2
    # the last stage: an LM head as large as the first one's embedding, and the logits of 1024 sequences besides
    assert got.weights == stage_weight_bytes(ModelSpec.load("llama-3.1-70b"), range(60, 80), "bf16")
    assert got.activations == (2048 + 1024) * 8192 * 2 + 1024 * 128_256 * 18


def case(component: str, shared_data: Callable[[str], Path]) -> dict[str, Any]:
    cases = json.loads(shared_data("conformance/cases.json").read_text())["cases"]
    return next(c for c in cases if c["component"] == component)  # type: ignore[no-any-return]


def test_pages_and_blocks_have_the_recorded_sizes(shared_data: Callable[[str], Path]) -> None:
    recorded = case("kv_page_bytes", shared_data)
    for row in recorded["table"]:
        config: dict[str, Any] = {
            "hidden_size": 64,
            "num_hidden_layers": row["layers"],
            "num_attention_heads": row.get("kv_heads", 1),
            "head_dim": row.get("head_size", 64),
            "intermediate_size": 64,
            "vocab_size": 64,
            "max_position_embeddings": 64,
        }
        if row["kind"] == "mla":
            config |= {"kv_lora_rank": row["latent"] - 64, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64}
            config |= {"v_head_dim": 64}
        model = ModelSpec.from_config(config, "case")
        page = page_bytes(model, recorded["config"]["block_size"])
        assert block_bytes(kv_groups(model.layers), page) == row["expect_bytes_per_block"]


def test_concurrency_is_the_recorded_one(shared_data: Callable[[str], Path]) -> None:
    recorded = case("max_concurrency", shared_data)
    config = recorded["config"]
    for row in recorded["table"]:
        groups = [KvGroup(1, 0 if kind == "full" else config["sliding_window"]) for kind in row["groups"]]
        got = max_concurrency(
            row["num_blocks"], groups, config["block_size"], config["max_model_len"], config["max_in_flight_tokens"]
        )
        assert got == row["expect"]


def test_layers_of_two_kinds_form_groups_of_one_size() -> None:
    full, window = Layer(), Layer(window=1024)
    assert kv_groups([full] * 10 + [window] * 20) == [KvGroup(10), KvGroup(10, 1024), KvGroup(10, 1024)]
    assert kv_groups([full] * 12 + [window] * 13) == [KvGroup(12), KvGroup(13, 1024)]
    assert kv_groups([full, Layer(owns_kv=False)]) == [KvGroup(1)]


def test_a_hybrid_model_has_more_and_smaller_blocks() -> None:
    one, groups = budget("gpt-oss-20b", "h100"), budget("gpt-oss-20b", "h100", hybrid=True)
    assert one.block_bytes == 2 * groups.block_bytes
    assert groups.num_blocks == pytest.approx(2 * one.num_blocks, abs=1)
