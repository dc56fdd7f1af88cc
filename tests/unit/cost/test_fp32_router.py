"""Routers in float32: which models and engines keep them so, and what the three kernels cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from servesim.contracts.cost import Batch
from servesim.cost import build_cost_model
from servesim.cost.breakdown import breakdown
from servesim.hardware import Gpu, ModelSpec
from servesim.run.scenario import Scenario
from servesim.run.serve_command import served
from servesim.run.server import cost_model_of
from servesim.versions import engine_facts

B200 = Gpu.load("b200")


def router_ns(model: str, tokens: int, engine: str | None = "vllm", precision: str = "highest") -> float:
    facts = engine_facts(engine, None, "b200") if engine is not None else None
    cost = build_cost_model(
        ModelSpec.load(model), B200, 4, "fp8", engine=facts, ep=4, float32_matmul_precision=precision
    )
    return breakdown(cost, Batch(linear_tokens=tokens, prefill=[(tokens, 0)], sampled=1))["router"]


def test_a_long_prompt_of_minimax_pays_for_a_product_on_cuda_cores() -> None:
    # per layer: 6 bytes of each of 3,072 inputs converted at .8 of 8 TB/s, 2 x 3,072 x 256 FLOPs at .6 of 75 TFLOP/s
    per_token = 6 * 3072 / (0.8 * 8e12) + 2 * 3072 * 256 / (0.6 * 75e12)
    long, short = (router_ns("minimax-m2.5", n) for n in (16_000, 8_000))
    assert long - short == pytest.approx(62 * 8_000 * per_token * 1e9, rel=1e-6)


def test_tf32_takes_half_the_rate_of_bf16_and_one_kernel_less() -> None:
    per_token = 6 * 3072 / (0.8 * 8e12) + 2 * 3072 * 256 / (0.6 * 2250e12 / 2)
    long, short = (router_ns("minimax-m2.5", n, precision="high") for n in (16_000, 8_000))
    assert long - short == pytest.approx(62 * 8_000 * per_token * 1e9, rel=1e-6)
    few = router_ns("minimax-m2.5", 1) - router_ns("minimax-m2.5", 1, precision="high")
    assert few == pytest.approx(62 * 3_000, rel=1e-6)


def test_a_pair_of_measured_servers_differs_as_much() -> None:
    """MiniMax-M2.5 in FP8 on four B200, vLLM 0.19.0, 8,192 and 1,024 tokens at most, 4 clients (InferenceX): 204 and
    208 ms to the first token before VLLM_FLOAT32_MATMUL_PRECISION=high was set, 188 ms after."""
    measured = (203.53 + 207.52) / 2 - 188.25
    saved = router_ns("minimax-m2.5", 7_373) - router_ns("minimax-m2.5", 7_373, precision="high")
    assert saved / 1e6 == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("model", "engine"), [("qwen3-235b-a22b", "vllm"), ("minimax-m2.5", "sglang"), ("minimax-m2.5", None)]
)
def test_other_models_and_engines_keep_16_bits(model: str, engine: str | None) -> None:
    assert router_ns(model, 8_000, engine) < 0.1 * router_ns("minimax-m2.5", 8_000)
    assert router_ns(model, 8_000, engine) == router_ns(model, 8_000, engine, "high")


def test_a_scenario_hands_both_settings_to_the_cost_model() -> None:
    base = {"model": "minimax-m2.5", "gpu": "b200", "tp": 4, "dtype": "fp8", "trace": "synth:prompt=100,output=10"}

    def step_ns(**engine: Any) -> dict[str, float]:
        scenario = Scenario.of(base | {"engine": {"version": "0.19.0", **engine}})
        return breakdown(cost_model_of(scenario), Batch.decodes(32, 32_000))

    plain = step_ns()
    assert step_ns(float32_matmul_precision="high")["router"] < plain["router"]
    assert step_ns(fuse_allreduce_rms=False)["norm"] > 2 * plain["norm"]


def test_a_gpu_whose_rate_in_float32_is_not_known_keeps_16_bits() -> None:
    gpu = replace(B200, name="mine", flops={"bf16": 2250e12, "fp8": 4500e12})
    model, facts = ModelSpec.load("minimax-m2.5"), engine_facts("vllm", None, "b200")
    batch = Batch.decodes(4, 4_000)
    routers = [breakdown(build_cost_model(model, gpu, 4, "fp8", engine=e), batch)["router"] for e in (facts, None)]
    assert routers[0] == routers[1]


def test_a_command_states_the_precision_in_a_variable() -> None:
    found = served("VLLM_FLOAT32_MATMUL_PRECISION=high vllm serve MiniMaxAI/MiniMax-M2.5 --tensor-parallel-size 4")
    assert found.settings["engine"]["float32_matmul_precision"] == "high"


def test_medium_precision_is_priced_as_high_and_says_so() -> None:
    found = served("VLLM_FLOAT32_MATMUL_PRECISION=medium vllm serve MiniMaxAI/MiniMax-M2.5 --tensor-parallel-size 4")
    assert found.settings["engine"]["float32_matmul_precision"] == "high"
    assert found.notes() == [
        "--serve: VLLM_FLOAT32_MATMUL_PRECISION=medium: priced like high: PyTorch lets cuBLAS use TF32 under both"
    ]
