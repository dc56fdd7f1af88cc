"""Errors of the memory model on servers whose start-up is known: weights, the peak of the profile run, KV blocks.

Set on some of these rows (the sampler on Llama-3.1-8B and Qwen3-0.6B, memory outside torch on Llama-3.1-8B, the buffers
of two GPUs on Llama-3.3-70B, padded experts on gpt-oss-20b, graphs on Qwen3-14B), judged on the others.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from servesim.hardware import Gpu, ModelSpec, memory_budget
from servesim.hardware.memory import GIB, MemoryBudget
from servesim.run.scenario import Scenario
from servesim.run.setup import set_up

STARTED = [
    # model, tp, dtype, utilization; GiB: weights, activations, KV cache; used to set a constant
    ("llama-3.1-8b", 1, "bf16", 0.90, 14.99, 4.76, 51.38, True),
    ("qwen3-0.6b", 1, "bf16", 0.90, 1.12, 5.56, 64.45, True),
    ("llama-3.1-70b", 2, "fp8", 0.90, 33.88, 4.84, 32.00, True),  # Llama-3.3-70B, of the same shape
    ("gpt-oss-20b", 1, "bf16", 0.90, 13.47, 7.38, 50.28, True),
    ("gpt-oss-120b", 1, "bf16", 0.95, 64.38, 7.38, 3.33, False),
    ("qwen3-32b", 1, "bf16", 0.90, 61.03, 5.64, 4.45, False),
    ("qwen3-32b", 2, "bf16", 0.90, 30.59, 5.64, 34.49, False),
]
"""vLLM on an H100 of 79.18 GiB, an earlier release, default limits: 8,192 tokens and 1,024 sequences."""
RECORDED = [
    # model, GPU, tp, release; tokens, sequences, utilization; blocks; used to set a constant
    ("llama-2-7b", "h100", 1, (0, 15), 2048, 128, 0.90, 7462, False),
    ("llama-2-70b", "h100", 4, (0, 15), 2048, 128, 0.90, 31356, False),
    ("codellama-34b", "h100", 2, (0, 15), 2048, 128, 0.90, 26602, False),
    ("mixtral-8x7b", "h100", 2, (0, 15), 2048, 128, 0.90, 27510, False),
    ("qwen3-14b", "h100", 1, (0, 23), 8192, 256, 0.92, 18038, True),
    ("gpt-oss-120b", "h200", 1, (0, 22), 8192, 1024, 0.90, 103690, False),
]
"""Block counts that servers stated."""


def started(model: str, tp: int, dtype: str, utilization: float) -> MemoryBudget:
    gpu = replace(Gpu.load("h100"), memory_bytes=int(79.18 * GIB))
    return memory_budget(
        ModelSpec.load(model),
        gpu,
        tp,
        dtype=dtype,
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
        gpu_memory_utilization=utilization,
        hybrid=True,
        version=(0, 14),
    )


@pytest.mark.parametrize(("model", "tp", "dtype", "utilization", "weights", "activations", "kv", "fitted"), STARTED)
def test_weights_activations_and_kv_cache_are_those_a_server_reports(
    model: str, tp: int, dtype: str, utilization: float, weights: float, activations: float, kv: float, fitted: bool
) -> None:
    """The KV cache within 0.15 GiB: what is left of much else, its own error says little where it is small."""
    got = started(model, tp, dtype, utilization)
    cache = got.num_blocks * got.block_bytes / GIB
    errors = (got.weights / GIB / weights - 1, got.activations / GIB / activations - 1, cache / kv - 1)
    print(
        f"{model} tp {tp}{' (set on it)' if fitted else ''}: weights, activations, KV", *(f"{e:+.2%}" for e in errors)
    )
    assert abs(errors[0]) <= 0.01
    assert abs(errors[1]) <= 0.005
    assert abs(cache - kv) <= 0.15


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "version", "tokens", "seqs", "utilization", "recorded", "fitted"), RECORDED
)
def test_block_counts_are_those_of_recorded_servers(
    model: str,
    gpu: str,
    tp: int,
    version: tuple[int, int],
    tokens: int,
    seqs: int,
    utilization: float,
    recorded: int,
    fitted: bool,
) -> None:
    got = memory_budget(
        ModelSpec.load(model),
        Gpu.load(gpu),
        tp,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        gpu_memory_utilization=utilization,
        hybrid=True,
        version=version,
    )
    error = got.num_blocks / recorded - 1
    print(f"{model} {gpu} tp {tp}{' (set on it)' if fitted else ''}: {got.num_blocks} of {recorded} {error:+.2%}")
    assert abs(error) <= (0.0001 if fitted else 0.011)


def test_a_default_run_of_gpt_oss_has_the_blocks_its_server_had() -> None:
    """No layout of memory is asked for: window layers give back what has slid out, as in vLLM."""
    settings = {"model": "gpt-oss-120b", "gpu": "h200", "trace": "synth:prompt=100,output=10", "requests": 1}
    server = {"version": "0.22.0", "gpu_memory_utilization": 0.9}
    resolved = set_up(Scenario.of({**settings, "engine": server})).scenario
    assert resolved.kv["name"] == "hybrid"
    assert resolved.engine.num_gpu_blocks == pytest.approx(103_690, rel=0.03)
