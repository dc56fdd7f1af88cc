"""Attention with sinks on GPUs without FlashAttention 3: Triton's unified kernel, at its own rate."""

from __future__ import annotations

import pytest

from servesim.contracts.cost import Batch
from servesim.cost import build_cost_model
from servesim.cost.breakdown import breakdown
from servesim.hardware import Gpu, ModelSpec
from servesim.versions import engine_facts


def attention_ns(model: str, gpu: str, tokens: int, engine: str | None = "vllm", tables: str | None = None) -> float:
    facts = engine_facts(engine, None, gpu) if engine is not None else None
    cost = build_cost_model(ModelSpec.load(model), Gpu.load(gpu), engine=facts, tables=tables)
    batch = Batch(linear_tokens=tokens, prefill=[(tokens, 0)], sampled=1)
    return breakdown(cost, batch)["attention_prefill"]


def test_a_long_prompt_of_gpt_oss_on_an_a100_computes_at_the_rate_of_tritons_kernel() -> None:
    # 18 of its layers attend to all tokens: n**2 / 2 pairs of 4 x 64 x 64 FLOPs. The others and all fixed work grow
    # with n, so a prompt of 2n takes n**2 pairs more than two of n: 1.83 s for 16,000 tokens at 41.2 TFLOP/s.
    twice, once = (attention_ns("gpt-oss-120b", "a100", n) for n in (32_000, 16_000))
    pairs = 18 * 16_000.0**2
    assert twice - 2 * once == pytest.approx(pairs * 4 * 64 * 64 / 41.2e12 * 1e9, rel=0.002)


def test_chunks_over_cached_tokens_compute_at_that_rate_too() -> None:
    cost = build_cost_model(ModelSpec.load("gpt-oss-120b"), Gpu.load("a100"), engine=engine_facts("vllm", None, "a100"))
    chunk = Batch(linear_tokens=2048, prefill=[(2048, 30_000)], sampled=1)
    pairs = 18 * (2048 * 30_000 + 2048**2 / 2) + 18 * 2048 * 128
    ns = pairs * 4 * 64 * 64 / 41.2e12 * 1e9
    assert breakdown(cost, chunk)["attention_prefill"] == pytest.approx(ns, rel=0.02)


@pytest.mark.parametrize(("model", "gpu"), [("gpt-oss-120b", "h100"), ("qwen3-14b", "a100")])
def test_other_gpus_and_models_without_sinks_keep_their_rows(model: str, gpu: str) -> None:
    assert attention_ns(model, gpu, 16_000) == attention_ns(model, gpu, 16_000, None)


def test_sglang_and_formulas_take_no_rate_of_vllms_kernel() -> None:
    assert attention_ns("gpt-oss-120b", "a100", 16_000, "sglang") < 0.5 * attention_ns("gpt-oss-120b", "a100", 16_000)
    assert attention_ns("gpt-oss-120b", "a100", 16_000, "vllm", "roofline") == attention_ns(
        "gpt-oss-120b", "a100", 16_000, None, "roofline"
    )
