"""FP8 weights on GPUs without fp8 arithmetic: one byte read per weight, computed in bf16."""

from __future__ import annotations

from dataclasses import replace

import pytest

import servesim
from servesim.contracts.cost import Batch
from servesim.cost import TableCostModel, build_cost_model, marlin
from servesim.cost.breakdown import breakdown
from servesim.cost.formula import WEIGHT_BYTES, Roofline, format_on
from servesim.cost.linear import GemmTables
from servesim.cost.moe import experts_curve
from servesim.cost.operators import operator_work
from servesim.cost.support import support
from servesim.cost.tables import KernelTables
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


def test_experts_in_fp8_on_an_a100_read_one_byte_a_weight_and_compute_no_faster_than_marlin() -> None:
    moe, layers = ModelSpec.load(MIXTURE).experts, ModelSpec.load(MIXTURE).num_layers
    assert moe is not None
    width, hidden = moe.size // 4, ModelSpec.load(MIXTURE).hidden_size
    one, many = (breakdown(cost(MIXTURE, "a100", "fp8", "vllm", tp=4), prompt(n))["experts"] for n in (1, 16384))
    read = moe.per_token * 3.0 * hidden * width / Roofline(Gpu.load("a100")).rate
    assert one / layers == pytest.approx(28_000.0 + read)
    flops = 6.0 * 16384 * moe.per_token * hidden * (width + 128)  # and the fixed work of each block
    assert 1.0 < many / layers / (flops / 141e12 * 1e9) < 1.25


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


def test_experts_of_four_bits_on_an_a100_compute_whole_blocks_at_the_rate_of_marlin() -> None:
    # One block of 64 rows for each of 128 experts, by hand: 3,072 x 2,944 padded weights three times, and the fixed
    # work of 128 more columns. No step can fill fewer blocks than its rows do.
    model = ModelSpec.load("gpt-oss-120b")
    moe = model.experts
    assert moe is not None
    took = breakdown(cost("gpt-oss-120b", "a100", "bf16", "vllm"), prompt(2048))["experts"] / model.num_layers
    full = 28_000.0 + 128 * 64 * 6.0 * 3072 * (2944 + 128) / 141e12 * 1e9
    assert 2048 * moe.per_token == 128 * 64
    assert full < took < 1.6 * full  # tokens spread unequally over experts leave blocks partly empty


def test_experts_compute_at_the_gpus_own_rate_where_that_is_lower_than_marlins() -> None:
    model, a100 = ModelSpec.load("gpt-oss-120b"), Gpu.load("a100")
    slow = replace(a100, flops={**a100.flops, "bf16": 50e12})
    own, slowed = (
        breakdown(build_cost_model(model, gpu, engine=engine_facts("vllm", None, "a100")), prompt(8192))["experts"]
        for gpu in (a100, slow)
    )
    assert slowed / own == pytest.approx(141 / 50, rel=0.02)


def test_few_rows_take_as_long_as_their_experts_weights_are_read_on_an_a100() -> None:
    model, a100 = ModelSpec.load("gpt-oss-120b"), Gpu.load("a100")
    one, two = (
        breakdown(cost("gpt-oss-120b", "a100", "bf16", "vllm"), Batch.decodes(n, n, 100 * n, 100))["experts"]
        for n in (1, 2)
    )
    read = 3.0 * 3072 * 2944 * WEIGHT_BYTES["mxfp4"] / Roofline(a100).rate
    row = 6.0 * 3072 * (2944 + 128) / 141e12 * 1e9
    assert one / model.num_layers == pytest.approx(28_000.0 + 4 * max(read, 8 * row))
    assert two > one


def test_blocks_of_narrow_experts_compute_more_slowly_as_measured_on_hopper_and_blackwell() -> None:
    # The rate of blocks of 64 rows 256 columns wide, relative to 2,048: .68 on H100, .69 on H200, .64 on RTX PRO 6000.
    narrow, wide = (marlin.unmeasured(7168, size, 0.5, 1e9, 141e12).each[64] / size for size in (256, 2048))
    assert 0.62 < wide / narrow < 0.75


def test_rows_measured_on_the_gpu_are_taken_before_the_rate_of_the_kernel() -> None:
    h100, model = Gpu.load("h100"), ModelSpec.load("gpt-oss-120b")
    rows = GemmTables(KernelTables.load("h100"), Roofline(h100), Roofline(h100))
    assert model.experts is not None
    known, limited = (
        experts_curve(gemms, model.experts, model.hidden_size, 1, "mxfp4", "marlin")
        for gemms in (rows, replace(rows, weight_only_flops=1e18))
    )
    assert [known.at(m) for m in (1, 64, 4096)] == [limited.at(m) for m in (1, 64, 4096)]


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
        UserError, match="a100 has no fp8 arithmetic, and sglang has no weight-only kernel for experts with it"
    ):
        cost(MIXTURE, "a100", "fp8", "sglang", tp=4)
    with pytest.raises(UserError, match="and tensorrt-llm has no weight-only kernel for linear layers with it"):
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
