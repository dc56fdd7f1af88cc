"""Experts of shapes no table has, Marlin's kernel, expert parallelism, and what a lowered clock leaves alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servesim.contracts import Batch
from servesim.cost import build_cost_model
from servesim.cost.breakdown import LOWER_CLOCK, breakdown
from servesim.cost.curve import EXTRAPOLATED, MEASURED, Curve
from servesim.cost.curves import monotone
from servesim.cost.formula import Roofline
from servesim.cost.host import HostTerms
from servesim.cost.linear import GemmTables
from servesim.cost.moe import experts_curve
from servesim.cost.tables import KernelTables
from servesim.errors import UserError
from servesim.hardware import Experts, Gpu, ModelSpec
from servesim.versions import engine_facts

GPT_OSS = Experts(128, 4, 2880, dtype="mxfp4")


TABLES = GemmTables(KernelTables.load("h200"), Roofline(Gpu.load("h200")), Roofline(Gpu.load("h200")))


def curve(experts: Experts, hidden: int, dtype: str, tp: int = 1, backend: str = "auto", ep: int = 1) -> Curve:
    h200, tables = Roofline(Gpu.load("h200")), KernelTables.load("h200")
    for measured in tables.dtypes("moe_ep") if ep > 1 else ():
        tables = tables.with_rows("moe_ep", measured, {})  # the mean GPU
    return experts_curve(GemmTables(tables, h200, h200), experts, hidden, tp, dtype, backend, ep)


def test_a_measured_shape_takes_its_own_times() -> None:
    mixtral = curve(Experts(8, 2, 14336), 4096, "bf16")
    assert mixtral.source(64) == MEASURED


def test_an_unmeasured_shape_close_to_a_measured_one_takes_about_its_time_per_work() -> None:
    near, known = curve(Experts(8, 2, 14000), 4096, "bf16"), curve(Experts(8, 2, 14336), 4096, "bf16")
    assert near.source(64) == EXTRAPOLATED
    for tokens in (1, 64, 4096):
        assert near.at(tokens) / known.at(tokens) == pytest.approx(14000 / 14336, abs=0.01)


def test_as_many_tokens_an_expert_are_compared_not_as_many_tokens() -> None:
    """Twice the experts need twice the tokens to be loaded alike, and then take twice the time."""
    once, twice = curve(Experts(64, 4, 1500), 4000, "bf16"), curve(Experts(128, 4, 1500), 4000, "bf16")
    assert twice.at(16384) / once.at(8192) == pytest.approx(2.0, rel=0.15)


def test_marlin_reaches_less_arithmetic_than_the_triton_kernel_and_as_much_bandwidth() -> None:
    triton, marlin = (curve(GPT_OSS, 2880, "mxfp4", backend=b) for b in ("triton", "marlin"))
    assert triton.source(64) == MEASURED
    assert marlin.source(64) == EXTRAPOLATED
    assert 1.7 < marlin.at(8192) / triton.at(8192) < 2.1
    assert marlin.at(4) / triton.at(4) == pytest.approx(1.0, abs=0.1)  # nearly every choice is another expert's


def test_a_backend_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="moe_backend 'marlim'"):
        curve(GPT_OSS, 2880, "mxfp4", backend="marlim")


def test_expert_parallel_gpus_share_work_and_weights_but_not_routing() -> None:
    model = Experts(128, 8, 1536)
    alone, dealt = curve(model, 4096, "bf16"), curve(model, 4096, "bf16", tp=4, ep=4)
    assert dealt.at(8192) / alone.at(8192) == pytest.approx(0.25, abs=0.01)
    assert dealt.at(1) > 0.25 * alone.at(1)


def test_expert_parallelism_keeps_wide_gemms_at_large_batches() -> None:
    model = Experts(128, 8, 1536)
    split, dealt = (curve(model, 4096, "bf16", tp=8, ep=ep) for ep in (1, 8))
    assert dealt.at(16384) < split.at(16384)


def test_dense_layers_alone_are_held_to_the_sustained_rate() -> None:
    """Of 8,192 tokens: what each dense layer takes at the share, less what it takes by the table, for the part of the
    step beyond the first millisecond. Experts and small operators stay as they are."""
    terms = HostTerms(sustained_after=1e6, sustained_flops_share=0.2)  # below what any of these reaches
    batch, gpu = Batch(8192, [(8192, 0)], sampled=1), Gpu.load("h200")
    oss = ModelSpec.load("gpt-oss-120b")
    parts = breakdown(build_cost_model(oss, gpu, host=terms, moe_backend="marlin"), batch)
    weights = oss.num_layers * oss.hidden_size * oss.head_dim * (2 * oss.num_heads + 2 * oss.num_kv_heads)
    held = 2 * 8192 * weights / (0.2 * gpu.flops["bf16"]) * 1e9
    computing = sum(ns for name, ns in parts.items() if name not in ("lm_head", "sampler", LOWER_CLOCK))
    longer = held - parts["qkv"] - parts["attention_out"]
    assert parts[LOWER_CLOCK] == pytest.approx(longer * (1 - 1e6 / computing))


def test_rows_slower_than_the_sustained_rate_stay_as_they_are() -> None:
    model, gpu, batch = ModelSpec.load("qwen3-14b"), Gpu.load("h100"), Batch(8192, [(8192, 0)], sampled=1)
    plain, held = (
        breakdown(build_cost_model(model, gpu, host=HostTerms(sustained_flops_share=share)), batch)
        for share in (0.0, 0.99)
    )
    assert plain == held


def test_humps_of_experts_are_cut_off_where_gemms_are_monotone() -> None:
    """Mixtral's experts halved by TP 2 are measured at 607 us and more for 48 to 96 tokens and 582 us for 128."""
    model, gpu, sizes = ModelSpec.load("mixtral-8x7b"), Gpu.load("h100"), (32, 48, 64, 80, 96, 128)
    bare, smooth = (
        [breakdown(cost, Batch.decodes(n, n))["experts"] for n in sizes]
        for cost in (build_cost_model(model, gpu, 2, host=HostTerms(monotone_gemms=held)) for held in (False, True))
    )
    assert max(bare) > bare[-1]
    assert smooth[0] == bare[0]
    assert max(smooth) <= bare[-1]
    assert smooth == sorted(smooth)


def test_a_curve_without_humps_takes_the_least_of_what_follows() -> None:
    cut = monotone(Curve([1, 2, 4, 8], [5.0, 9.0, 7.0, 8.0], last_slope=3.0))
    assert [cut.at(x) for x in (0, 1, 2, 4, 8, 9)] == [5, 5, 7, 7, 8, 11]


def test_the_engine_s_version_says_which_kernel_runs_unless_the_run_does() -> None:
    model, gpu = ModelSpec.load("gpt-oss-120b"), Gpu.load("h200")
    batch, engine = Batch(8192, [(8192, 0)], sampled=1), engine_facts("vllm", "0.22.0", "h200")
    by_version = build_cost_model(model, gpu, engine=engine).price(batch)
    assert by_version == build_cost_model(model, gpu, moe_backend="marlin").price(batch)
    assert build_cost_model(model, gpu, engine=engine, moe_backend="triton").price(batch).ns < by_version.ns


def with_kernels(dealt: int = 1, **kernels: dict[tuple[int, int, int, int], float]) -> GemmTables:
    """Tables in which an expert shape (width, hidden, experts, top-k) takes its microseconds a token; the rows of
    kernels called `ep_...` are of experts `dealt` out to GPUs."""
    h200, tables = Roofline(Gpu.load("h200")), KernelTables.load("h200")
    for op, prefix in (("moe", ""), ("moe_ep", "ep_")):
        for dtype in tables.dtypes("moe"):
            given = kernels.get(prefix + dtype, {})
            points = [(*shape, m, m * us, dealt) for shape, us in given.items() for m in (1, 64, 4096)]
            names = ("n", "k", "experts", "topk", "m", "time_us", "gpus")
            columns = {name: np.array([point[i] for point in points]) for i, name in enumerate(names)}
            tables = tables.with_rows(op, dtype, columns if points else {})
    return GemmTables(tables, h200, h200)


SLOW, FAST = 10.0, 3.0


def test_a_shape_nearby_takes_the_kernel_that_the_shape_itself_would_take() -> None:
    at, beside = (1536, 4096, 128, 8), (1500, 4096, 128, 8)
    gemms = with_kernels(fp8={at: SLOW, beside: SLOW}, fp8_block={at: FAST})
    alone = experts_curve(gemms, Experts(128, 8, 1536), 4096, 1, "fp8")
    assert alone.at(64) == 64 * FAST * 1e3
    near = experts_curve(gemms, Experts(128, 8, 1490), 4096, 1, "fp8")  # beside it only the slow kernel was measured
    assert near.at(4096) == pytest.approx(alone.at(4096) * 1490 / 1536, rel=0.02)
    dealt = experts_curve(gemms, Experts(128, 8, 1536), 4096, 4, "fp8", ep=4)
    assert dealt.at(4096) == pytest.approx(alone.at(4096) / 4, rel=0.02)


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8_block", "int4"])
def test_expert_parallelism_on_one_gpu_is_tensor_parallelism(dtype: str) -> None:
    for experts, hidden in ((Experts(128, 8, 1536), 4096), (Experts(100, 6, 1000), 3000)):
        one, other = curve(experts, hidden, dtype), experts_curve(TABLES, experts, hidden, 1, dtype, "auto", 1, 3.0)
        assert (one.xs, one.ys) == (other.xs, other.ys)


def test_experts_with_scales_of_blocks_never_take_the_kernel_of_one_scale_where_theirs_was_measured() -> None:
    at = (1536, 4096, 128, 8)
    gemms = with_kernels(fp8={at: FAST}, fp8_block={(2048, 4096, 128, 8): SLOW})
    blocks = experts_curve(gemms, Experts(128, 8, 1536), 4096, 1, "fp8_block")
    assert blocks.at(4096) == pytest.approx(4096 * SLOW * 1e3 * 1536 / 2048, rel=0.02)
    assert experts_curve(with_kernels(fp8={at: FAST}), Experts(128, 8, 1536), 4096, 1, "fp8_block").at(64) > 0


def test_a_checkpoint_of_block_scales_is_priced_in_their_kernels() -> None:
    blocks, gpu = ModelSpec.load("qwen3-30b-a3b"), Gpu.load("h200")
    model = replace(blocks, block_scaled=False)
    assert blocks.block_scaled
    step = Batch.decodes(1, 1000)
    parts = [breakdown(build_cost_model(spec, gpu, dtype="fp8"), step) for spec in (model, blocks)]
    assert parts[0]["qkv"] != parts[1]["qkv"]
    without = build_cost_model(blocks, gpu, dtype="bf16")
    assert without.price(step) == build_cost_model(model, gpu, dtype="bf16").price(step)


def test_dealt_out_experts_take_the_times_of_the_most_loaded_gpu_where_those_were_measured() -> None:
    at = (1536, 4096, 128, 8)
    gemms = with_kernels(4, fp8_block={at: FAST}, ep_fp8_block={at: 0.5 * FAST})
    dealt = experts_curve(gemms, Experts(128, 8, 1536), 4096, 4, "fp8_block", ep=4)
    assert (dealt.at(64), dealt.source(64)) == (64 * 0.5 * FAST * 1e3, MEASURED)
    other = experts_curve(gemms, Experts(128, 8, 1536), 4096, 2, "fp8_block", ep=2)
    assert other.source(64) == EXTRAPOLATED  # four GPUs were measured, not two


def test_shapes_not_measured_dealt_out_are_as_unequal_as_the_nearest_one_that_was() -> None:
    at = (1536, 4096, 128, 8)
    gemms, mean = (with_kernels(4, fp8_block={at: FAST}, ep_fp8_block=rows) for rows in ({at: 0.5 * FAST}, {}))
    nearby = Experts(128, 8, 1400)
    loaded, fair = (experts_curve(tables, nearby, 4096, 4, "fp8_block", ep=4) for tables in (gemms, mean))
    known, its_mean = (
        experts_curve(tables, Experts(128, 8, 1536), 4096, 4, "fp8_block", ep=4) for tables in (gemms, mean)
    )
    for m in (1, 64, 4096):
        assert loaded.at(m) / fair.at(m) == pytest.approx(known.at(m) / its_mean.at(m))
    assert loaded.at(4096) > 1.5 * fair.at(4096)
