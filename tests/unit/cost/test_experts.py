"""Experts of shapes no table has, Marlin's kernel, expert parallelism, and what a lowered clock leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servesim.contracts import Batch
from servesim.cost import build_cost_model
from servesim.cost.breakdown import LOWER_CLOCK, breakdown
from servesim.cost.curve import EXTRAPOLATED, MEASURED, Curve, monotone
from servesim.cost.formula import Roofline
from servesim.cost.host import HostTerms
from servesim.cost.linear import GemmTables
from servesim.cost.moe import experts_curve
from servesim.cost.tables import KernelTables
from servesim.errors import UserError
from servesim.hardware import Experts, Gpu, ModelSpec

GPT_OSS = Experts(128, 4, 2880, dtype="mxfp4")


def curve(experts: Experts, hidden: int, dtype: str, tp: int = 1, backend: str = "auto", ep: bool = False) -> Curve:
    h200 = Roofline(Gpu.load("h200"))
    return experts_curve(GemmTables(KernelTables.load("h200"), h200, h200), experts, hidden, tp, dtype, backend, ep)


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
    alone, dealt = curve(model, 4096, "bf16"), curve(model, 4096, "bf16", tp=4, ep=True)
    assert dealt.at(8192) / alone.at(8192) == pytest.approx(0.25, abs=0.01)
    assert dealt.at(1) > 0.25 * alone.at(1)


def test_expert_parallelism_keeps_wide_gemms_at_large_batches() -> None:
    model = Experts(128, 8, 1536)
    split, dealt = (curve(model, 4096, "bf16", tp=8, ep=ep) for ep in (False, True))
    assert dealt.at(16384) < split.at(16384)


def test_dense_layers_alone_are_held_to_the_sustained_rate() -> None:
    """Of 8,192 tokens: what each dense layer takes at the share, less what it takes by the table, for the part of the
    step beyond the first millisecond. Experts and small operators stay as they are."""
    terms = HostTerms(sustained_after=1e6, sustained_flops_share=0.2)  # below what any of these reaches
    batch, gpu = Batch(8192, [(8192, 0)], 0, 0, 0, 0, 1, 1), Gpu.load("h200")
    oss = ModelSpec.load("gpt-oss-120b")
    parts = breakdown(build_cost_model(oss, gpu, host=terms, moe_backend="marlin"), batch)
    weights = oss.num_layers * oss.hidden_size * oss.head_dim * (2 * oss.num_heads + 2 * oss.num_kv_heads)
    held = 2 * 8192 * weights / (0.2 * gpu.flops["bf16"]) * 1e9
    computing = sum(ns for name, ns in parts.items() if name not in ("lm_head", "sampler", LOWER_CLOCK))
    longer = held - parts["qkv"] - parts["attention_out"]
    assert parts[LOWER_CLOCK] == pytest.approx(longer * (1 - 1e6 / computing))


def test_rows_slower_than_the_sustained_rate_stay_as_they_are() -> None:
    model, gpu, batch = ModelSpec.load("qwen3-14b"), Gpu.load("h100"), Batch(8192, [(8192, 0)], 0, 0, 0, 0, 1, 1)
    plain, held = (
        breakdown(build_cost_model(model, gpu, host=HostTerms(sustained_flops_share=share)), batch)
        for share in (0.0, 0.99)
    )
    assert plain == held


def test_humps_of_experts_are_cut_off_where_gemms_are_monotone() -> None:
    """Mixtral's experts halved by TP 2 are measured at 607 us and more for 48 to 96 tokens and 582 us for 128."""
    model, gpu, sizes = ModelSpec.load("mixtral-8x7b"), Gpu.load("h100"), (32, 48, 64, 80, 96, 128)
    bare, smooth = (
        [breakdown(cost, Batch(n, [], n, n, 0, 0, 1, n))["experts"] for n in sizes]
        for cost in (build_cost_model(model, gpu, 2, host=HostTerms(monotone_gemms=held)) for held in (False, True))
    )
    assert max(bare) > bare[-1]
    assert smooth[0] == bare[0]
    assert max(smooth) <= bare[-1]
    assert smooth == sorted(smooth)


def test_a_curve_without_humps_takes_the_least_of_what_follows() -> None:
    cut = monotone(Curve([1, 2, 4, 8], [5.0, 9.0, 7.0, 8.0], last_slope=3.0))
    assert [cut.at(x) for x in (0, 1, 2, 4, 8, 9)] == [5, 5, 7, 7, 8, 11]


def test_host_terms_say_which_kernel_runs_unless_the_run_does() -> None:
    model, gpu = ModelSpec.load("gpt-oss-120b"), Gpu.load("h200")
    batch, terms = Batch(8192, [(8192, 0)], 0, 0, 0, 0, 1, 1), HostTerms(moe_backend="marlin")
    by_terms = build_cost_model(model, gpu, host=terms).price(batch)
    assert by_terms == build_cost_model(
        model, gpu, host=replace(terms, moe_backend="auto"), moe_backend="marlin"
    ).price(batch)
    assert build_cost_model(model, gpu, host=terms, moe_backend="triton").price(batch).ns < by_terms.ns
