"""The cost model on small cases: what a step is made of, and what it must not forget."""

from __future__ import annotations

import numpy as np
import pytest

from servesim.contracts.cost import Batch
from servesim.cost import TableCostModel, build_cost_model
from servesim.cost.attention import TableAttention, prefill_ns, roofline_attention
from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED, Curve
from servesim.cost.curves import blend
from servesim.cost.formula import Roofline
from servesim.cost.grid import HeadShape, work
from servesim.cost.linear import GemmTables
from servesim.cost.tables import KernelTables
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec


def cost(model: str = "llama-3.1-8b", gpu: str = "h100", tp: int = 1, **options: str) -> TableCostModel:
    return build_cost_model(ModelSpec.load(model), Gpu.load(gpu), tp, **options)


def decode(count: int, context: int, **fields: object) -> Batch:
    queries = int(fields.get("queries_per_sequence", 1))  # type: ignore[call-overload]
    return Batch(
        count * queries,
        decode_count=count,
        decode_context_sum=count * context,
        decode_context_sumsq=count * context**2,
        decode_context_max=context,
        sampled=count * queries,
        **fields,  # type: ignore[arg-type]
    )


def test_a_curve_is_exact_at_its_knots_and_linear_between() -> None:
    curve = Curve([1.0, 3.0], [10.0, 20.0])
    assert [curve.at(x) for x in (0, 1, 2, 3, 6)] == [10.0, 10.0, 15.0, 20.0, 40.0]
    assert [curve.source(x) for x in (1, 2, 3, 4)] == [MEASURED, INTERPOLATED, MEASURED, EXTRAPOLATED]
    assert curve.at_many(np.array([0, 1, 2, 3, 6])).tolist() == [10.0, 10.0, 15.0, 20.0, 40.0]


def test_scaling_a_curve_scales_both_axes() -> None:
    curve = Curve([1.0, 3.0], [10.0, 20.0]).scaled(2.0, 4.0)
    assert [curve.at(x) for x in (4, 8, 12, 24)] == [20.0, 30.0, 40.0, 80.0]


def test_blending_keeps_the_knots_of_both() -> None:
    mixed = blend(Curve([0.0, 2.0], [0.0, 2.0]), Curve([0.0, 1.0], [0.0, 4.0]), 0.25)
    assert [mixed.at(x) for x in (0, 1, 2)] == [0.0, 1.75, 3.5]


def test_a_measured_gemm_is_the_row_of_the_table() -> None:
    tables, roofline = KernelTables.load("h100"), Roofline(Gpu.load("h100"))
    rows = tables.rows("gemm", "bf16")
    curve = GemmTables(tables, roofline, roofline).curve(4096, 4096, "bf16")
    at = (rows["n"] == 4096) & (rows["k"] == 4096) & (rows["m"] == 1024)
    assert curve.at(1024) == rows["time_us"][at][0] * 1e3
    assert curve.source(1024) == MEASURED
    assert curve.source(1100) == INTERPOLATED


def test_a_gemm_wider_than_the_table_is_extrapolated_and_no_faster_than_the_roofline() -> None:
    tables, roofline = KernelTables.load("h100"), Roofline(Gpu.load("h100"))
    curve = GemmTables(tables, roofline, roofline).curve(128_256, 4096, "bf16")
    assert curve.source(1) == EXTRAPOLATED
    assert curve.at(1) > roofline.gemm(1, 128_256, 4096, "bf16")


def test_prefill_of_a_measured_prompt_is_the_row_of_the_table() -> None:
    tables = KernelTables.load("h100")
    rows = tables.rows("attention_prefill", "bf16")
    attention = TableAttention(tables, HeadShape(32, 8, 128), "bf16")
    shape = (rows["heads"] == 32) & (rows["kv_heads"] == 8) & (rows["head_dim"] == 128)
    for batch, length in ((1, 2048), (8, 512)):
        at = shape & (rows["batch"] == batch) & (rows["new_tokens"] == length)
        ns, source = prefill_ns(attention, [(length, 0)] * batch, False)
        assert ns == pytest.approx(rows["time_us"][at][0] * 1e3, rel=1e-12)
        assert source == MEASURED


def test_cached_context_costs_what_its_query_key_pairs_cost() -> None:
    attention = TableAttention(KernelTables.load("h100"), HeadShape(32, 8, 128), "bf16")
    # 1024 * (1792 + 512 + 256) pairs are 2048 * (0 + 1024 + 256), the 256 being the fixed work of a token
    chunk, prompt = [(1024, 1792)], [(2048, 0)]
    assert work(*chunk[0]) == work(*prompt[0])
    assert prefill_ns(attention, chunk, False)[0] == prefill_ns(attention, prompt, False)[0]
    assert prefill_ns(attention, chunk, False)[1] == EXTRAPOLATED


def test_a_chunk_of_one_token_costs_a_decode_step() -> None:
    attention = TableAttention(KernelTables.load("h100"), HeadShape(32, 8, 128), "bf16")
    assert prefill_ns(attention, [(1, 32_767)], False)[0] == attention.decode(1).at(32_768)


def test_forty_kv_heads_are_five_times_the_sequences_of_eight() -> None:
    tables = KernelTables.load("h100")
    mha = TableAttention(tables, HeadShape(40, 40, 128), "bf16").decode(8).at(1024)
    assert mha == TableAttention(tables, HeadShape(8, 8, 128), "bf16").decode(40).at(1024)


@pytest.mark.parametrize("gpu", ["h100", "l40s"])
def test_a_mixed_step_is_cheaper_than_its_halves(gpu: str) -> None:
    model = cost(gpu=gpu)
    both = Batch(
        512 + 32,
        [(512, 0)],
        decode_count=32,
        decode_context_sum=32_000,
        decode_context_sumsq=32_000_000,
        decode_context_max=1000,
        sampled=33,
    )
    alone = model.price(Batch(512, [(512, 0)], sampled=1)).ns + model.price(decode(32, 1000)).ns
    assert model.price(both).ns < 0.9 * alone


def test_the_lm_head_runs_for_sampling_rows_only() -> None:
    model = cost()
    whole, chunk = Batch(2048, [(2048, 0)], sampled=1), Batch(2048, [(2048, 0)], sampled=0)
    weights = 128_256 * 4096 * 2
    difference = model.price(whole).ns - model.price(chunk).ns
    assert weights / 3.35e12 * 1e9 < difference < 2 * weights / 3.35e12 * 1e9


def test_padding_goes_through_the_linear_layers() -> None:
    model = cost()
    padded = decode(100, 500, padded_tokens=412)
    assert model.price(padded).ns > model.price(decode(100, 500)).ns


@pytest.mark.parametrize(("stages", "padded"), [(1, 0), (2, 0), (1, 412), (2, 412)])
def test_a_run_of_decode_steps_takes_what_they_take_one_by_one(stages: int, padded: int) -> None:
    model = build_cost_model(ModelSpec.load("llama-3.1-8b"), Gpu.load("h100"), pp=stages)
    batch = decode(100, 500, padded_tokens=padded)
    steps = [model.price(batch.advance(i) if i else batch) for i in range(4)]
    gpu_ns, ns, _, sources = model.decode_run(batch, 4, 1 << 60)
    assert [*gpu_ns] == [step.gpu_ns for step in steps]
    assert [*ns] == [step.ns for step in steps]
    assert sources.of(0, 4) == tuple(map(sum, zip(*(step.sources for step in steps), strict=True)))


def test_one_launch_per_request_costs_more_than_one_for_all() -> None:
    model = cost()
    assert model.price(decode(64, 500, attention="per_request")).ns > model.price(decode(64, 500)).ns
    pieces = [(256, 0)] * 8
    fused, split = (Batch(2048, pieces, attention=kind) for kind in ("fused", "per_request"))
    assert model.price(split).ns > model.price(fused).ns


def test_verifying_drafts_costs_more_than_a_token_and_less_than_as_many_steps() -> None:
    model = cost()
    one, five = model.price(decode(8, 2000)).ns, model.price(decode(8, 2000, queries_per_sequence=5)).ns
    assert one < five < 1.5 * one


def test_bytes_over_pcie_take_time() -> None:
    model = cost()
    moved = model.price(decode(8, 500, bytes_moved=2**30)).ns - model.price(decode(8, 500)).ns
    assert moved == pytest.approx(2**30 / (0.8 * 64e9) * 1e9, rel=1e-6)


def test_tensor_parallelism_shrinks_the_step_and_pays_for_all_reduce() -> None:
    one, four = (
        cost("llama-3.1-8b").price(decode(16, 1000)).ns,
        cost("llama-3.1-8b", tp=4).price(decode(16, 1000)).ns,
    )
    assert one / 4 < four < one


def test_shares_sum_to_one_and_say_formula_without_tables() -> None:
    assert sum(cost().price(decode(16, 1000)).shares) == pytest.approx(1.0)
    assert cost(tables="roofline").price(decode(16, 1000)).shares == (0.0, 0.0, 0.0, 1.0)
    assert cost().price(Batch(0)).shares == (0.0, 0.0, 0.0, 1.0)


def test_fp8_is_faster_where_measured_and_refused_where_there_is_none() -> None:
    assert cost(dtype="fp8").price(decode(8, 500)).ns < cost().price(decode(8, 500)).ns
    with pytest.raises(UserError, match="m2-ultra has no fp8 arithmetic"):
        cost(gpu="m2-ultra", dtype="fp8")
    with pytest.raises(UserError, match="unknown dtype 'fp9'"):
        cost(dtype="fp9")


def test_formats_without_a_table_are_priced_by_formula() -> None:
    shares = cost(dtype="int8").price(decode(8, 500)).shares
    assert shares[3] > 0.5


def test_a_slower_memory_makes_the_same_table_slower() -> None:
    assert cost(gpu="a100-40g").price(decode(8, 500)).ns > 1.15 * cost(gpu="a100").price(decode(8, 500)).ns


def test_host_time_is_not_part_of_the_kernel_sum() -> None:
    price = cost().price(decode(8, 500))
    assert (price.host, price.ns) == ((0, 0, 0), price.gpu_ns)


def test_roofline_attention_counts_pairs_and_kv_bytes() -> None:
    attention = roofline_attention(Roofline(Gpu.load("l40s")), HeadShape(32, 8, 128), 2.0)
    kv_bytes = 2 * 8 * 128 * 2 * 16 * 1000
    assert attention.decode(16).at(1000) == pytest.approx(3000 + kv_bytes / (0.8 * 864e9) * 1e9)
    flops = 4 * 32 * 128 * 500_000
    assert attention.prefill(1).at(500_000) == pytest.approx(3000 + flops / (0.6 * 362.05e12) * 1e9)
