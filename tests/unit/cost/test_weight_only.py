"""FP8 weights on GPUs without fp8 arithmetic: one byte read per weight, computed in bf16."""

from __future__ import annotations

import pytest

import servesim
from servesim.contracts.cost import Batch
from servesim.cost import TableCostModel, build_cost_model
from servesim.cost.breakdown import breakdown
from servesim.cost.formula import format_on
from servesim.cost.operators import operator_work
from servesim.cost.support import support
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec
from servesim.reports.figures.roofline import roofline
from servesim.versions import engine_facts

MIXTURE = "qwen3-235b-a22b"


def cost(model: str, gpu: str, dtype: str, engine: str | None = None, tp: int = 1) -> TableCostModel:
    facts = engine_facts(engine, None, gpu) if engine is not None else None
    return build_cost_model(ModelSpec.load(model), Gpu.load(gpu), tp, dtype, engine=facts)


def prompt(tokens: int) -> Batch:
    return Batch(linear_tokens=tokens, prefill=[(tokens, 0)], sampled=1)


@pytest.mark.parametrize(
    ("gpu", "dtype", "priced"),
    [
        ("a100", "fp8", "int8_wo"),
        ("a100", "fp8_block", "int8_wo"),
        ("a10", "fp8", "int8_wo"),
        ("a100", "bf16", "bf16"),
        ("a100", "nvfp4", "nvfp4"),
        ("l40s", "fp8", "fp8"),
        ("h100", "fp8_block", "fp8_block"),
        ("m2-ultra", "fp8", "fp8"),
    ],
)
def test_what_fp8_means_depends_on_what_the_gpu_can(gpu: str, dtype: str, priced: str) -> None:
    assert format_on(Gpu.load(gpu), dtype) == priced


def test_dense_layers_in_fp8_on_an_a100_take_as_long_as_measured_for_8_bit_weights() -> None:
    for batch in (Batch.decodes(8, 4000, 2_000_000, 500), prompt(4096)):
        fp8, wo = (cost("llama-3.1-8b", "a100", dtype, "vllm").price(batch) for dtype in ("fp8", "int8_wo"))
        assert (fp8.ns, fp8.shares) == (wo.ns, wo.shares)
    few = Batch.decodes(8, 4000, 2_000_000, 500)
    assert cost("llama-3.1-8b", "a100", "fp8").price(few).ns < 0.8 * cost("llama-3.1-8b", "a100", "bf16").price(few).ns


def test_experts_in_fp8_on_an_a100_are_read_in_half_the_bytes_and_computed_no_faster_than_in_bf16() -> None:
    fp8, bf16 = (cost(MIXTURE, "a100", dtype, "vllm", tp=4) for dtype in ("fp8", "bf16"))
    few, many = (
        breakdown(fp8, prompt(tokens))["experts"] / breakdown(bf16, prompt(tokens))["experts"] for tokens in (8, 16384)
    )
    assert 0.5 <= few < 0.65
    assert many == pytest.approx(1.0)


@pytest.mark.parametrize(("dtype", "engine"), [("fp8", "vllm"), ("int4", "vllm"), ("int4", "sglang")])
def test_marlin_computes_at_most_at_the_rate_measured_on_an_a100(dtype: str, engine: str) -> None:
    # Of 4,096 tokens through 8 x 4,096 x 14,336 weights (llama-3.1-8b's gate and up): 141 TFLOP/s take 6.8 ms a layer.
    flops = 2.0 * 4096 * (2 * 14336) * 4096 * 32
    took = breakdown(cost("llama-3.1-8b", "a100", dtype, engine), prompt(4096))["up"]
    assert took == pytest.approx(flops / 141e12 * 1e9)
    bf16 = breakdown(cost("llama-3.1-8b", "a100", "bf16", engine), prompt(4096))["up"]
    assert 0.5 < bf16 / took < 0.7
    few, wide = (breakdown(cost("llama-3.1-8b", "a100", d, engine), prompt(16))["up"] for d in (dtype, "bf16"))
    assert few < 0.75 * wide  # half the bytes or fewer are read


@pytest.mark.parametrize("tables", ["ideal", "roofline"])
def test_a_price_by_formula_takes_no_measured_rate(tables: str) -> None:
    facts = [engine_facts(engine, None, "a100") for engine in ("vllm", "tensorrt-llm")]
    llama, a100 = ModelSpec.load("llama-3.1-8b"), Gpu.load("a100")
    marlin, plugin = (build_cost_model(llama, a100, 1, "int4", tables=tables, engine=each) for each in facts)
    assert marlin.price(prompt(4096)).ns == plugin.price(prompt(4096)).ns


def test_the_plugin_of_tensorrt_llm_keeps_its_measured_rows() -> None:
    ours, plugin = (
        breakdown(cost("llama-3.1-8b", "a100", "int4", engine), prompt(4096))["up"]
        for engine in ("vllm", "tensorrt-llm")
    )
    assert plugin < 0.7 * ours


def test_experts_of_four_bits_on_an_a100_compute_at_most_at_the_rate_of_marlin() -> None:
    model = ModelSpec.load("gpt-oss-120b")
    moe = model.experts
    assert moe is not None
    flops = 6.0 * 8192 * moe.per_token * model.hidden_size * moe.size * model.num_layers
    took = breakdown(cost("gpt-oss-120b", "a100", "bf16", "vllm"), prompt(8192))["experts"]
    assert took == pytest.approx(flops / 141e12 * 1e9)


def test_a_kernel_for_fp8_arithmetic_is_not_said_to_run_where_there_is_none() -> None:
    a100, h100 = (
        build_cost_model(ModelSpec.load(MIXTURE), Gpu.load(gpu), 4, "fp8", moe_backend="deepgemm").description
        for gpu in ("a100", "h100")
    )
    assert "DeepGEMM" in h100
    assert "DeepGEMM" not in a100


def test_an_engine_without_such_a_kernel_refuses_by_name() -> None:
    cost("llama-3.1-8b", "a100", "fp8", "sglang")
    with pytest.raises(
        UserError, match="a100 has no fp8 arithmetic, and sglang no weight-only kernel for experts in it"
    ):
        cost(MIXTURE, "a100", "fp8", "sglang", tp=4)
    with pytest.raises(UserError, match="and tensorrt-llm no weight-only kernel for linear layers in it"):
        cost("llama-3.1-8b", "a100", "fp8", "tensorrt-llm")
    assert support("llama-3.1-8b", "a100", "tensorrt-llm", "fp8").state == "refused"
    assert support("llama-3.1-8b", "a100", "vllm", "fp8").state == "partly"


def test_its_work_under_the_roofline_is_that_of_8_bit_weights_at_the_peak_of_bf16() -> None:
    model, gpu = ModelSpec.load("llama-3.1-8b"), Gpu.load("a100")
    fp8, wo = (operator_work(model, gpu, prompt(64), dtype) for dtype in ("fp8", "int8_wo"))
    assert fp8 == wo


def test_a_run_says_so_and_its_utilization_counts_the_peak_of_bf16() -> None:
    settings = {"trace": "synth:rate=4,prompt=900,output=60", "requests": 12, "model": "llama-3.1-8b"}
    summary = servesim.simulate(**settings, gpu="a100", dtype="fp8").summary
    (note,) = (note for note in summary["notes"] if note.startswith("dtype=fp8"))
    assert note.startswith("dtype=fp8: a100 has no fp8 arithmetic, so weights are read in 8 bits and computed in bf16")
    wo = servesim.simulate(**settings, gpu="a100", dtype="int8_wo").summary
    assert summary["engine"]["mfu"] == wo["engine"]["mfu"] > 0
    other = servesim.simulate(**settings, gpu="l40s", dtype="fp8").summary
    assert not any(note.startswith("dtype=fp8") for note in (*other["warnings"], *other["notes"]))


def test_its_roofline_is_drawn_at_the_peak_of_bf16() -> None:
    points = [("decode", 1.0, 1e12)]
    drawn = [roofline(Gpu.load("a100"), dtype, points) for dtype in ("fp8", "bf16")]
    assert drawn[0] is not None
    assert drawn[1] is not None
    assert (drawn[0].title, drawn[0].alt) == (drawn[1].title, drawn[1].alt)
