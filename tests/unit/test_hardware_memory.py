"""Memory budgets and vLLM's defaults."""

from __future__ import annotations

import pytest

from servesim.errors import UserError
from servesim.hardware import Gpu, MemoryBudget, ModelSpec, gpu_names, memory_budget, vllm_defaults


def budget(model: str, gpu: str, tp: int = 1, **options: object) -> MemoryBudget:
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 128, **options}
    return memory_budget(ModelSpec.load(model), Gpu.load(gpu), tp, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "tp", "tokens", "seqs", "utilization", "recorded"),
    [
        ("llama-2-7b", 1, 2048, 128, 0.90, 7462),  # vLLM 0.15.1
        ("llama-2-70b", 4, 2048, 128, 0.90, 31356),  # vLLM 0.15.1
        ("codellama-34b", 2, 2048, 128, 0.90, 26602),  # vLLM 0.15.1, not used to set the constants
        ("qwen3-14b", 1, 8192, 256, 0.92, 18038),  # vLLM 0.23.0
    ],
)
def test_block_counts_of_recorded_h100_servers(
    model: str, tp: int, tokens: int, seqs: int, utilization: float, recorded: int
) -> None:
    got = budget(
        model,
        "h100",
        tp,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        gpu_memory_utilization=utilization,
    )
    assert got.num_blocks == pytest.approx(recorded, rel=0.01)


def test_the_parts_add_up_to_the_usable_memory() -> None:
    b = budget("llama-3.1-8b", "h100")
    rest = b.usable - b.weights - b.activations - b.non_torch - b.cuda_graphs
    assert b.num_blocks == rest // b.block_bytes
    assert b.block_bytes == 16 * 131_072


def test_a_model_that_does_not_fit_is_an_error_with_numbers_and_hints() -> None:
    with pytest.raises(
        UserError, match=r"weights 131\.4 GiB.*72\.8 GiB usable.*larger tp, dtype fp8, --ignore-memory"
    ):
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


def test_unknown_gpu_suggests_the_close_one() -> None:
    with pytest.raises(UserError, match=r'did you mean "h100"'):
        Gpu.load("h1000")


@pytest.mark.parametrize("name", ["a100", "a100-40g", "h100", "h200", "l40s"])
def test_data_sheets_are_numbers(name: str) -> None:
    gpu = Gpu.load(name)
    assert name in gpu_names()
    assert all(isinstance(rate, float) for rate in (gpu.bandwidth, gpu.pcie_bandwidth, *gpu.flops.values()))
