"""Layers that are not all the same: experts, windows, latent attention, shared KV; pipeline stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servesim.contracts.cost import Batch
from servesim.cost import KernelTables, TableCostModel, build_cost_model
from servesim.cost.attention import TableAttention, prefill_ns, roofline_attention
from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED, ROOFLINE
from servesim.cost.curves import rise
from servesim.cost.formula import LAUNCH_NS, Roofline
from servesim.cost.graph import LayerGraph
from servesim.cost.grid import HeadShape, work
from servesim.cost.latent import latent_attention, token_linears
from servesim.cost.linear import GemmTables, collective_curve
from servesim.cost.moe import experts_curve
from servesim.cost.tables import write_table
from servesim.hardware import Experts, Gpu, Latent, ModelSpec


def gemms(gpu: str = "h100", tables: bool = True, engine: str = "") -> GemmTables:
    roofline = Roofline(Gpu.load(gpu))
    return GemmTables(KernelTables.load(gpu + engine) if tables else None, roofline, roofline)


def cost(model: str, gpu: str = "h100", **options: Any) -> TableCostModel:
    return build_cost_model(ModelSpec.load(model), Gpu.load(gpu), **options)


def decode(count: int, context: int) -> Batch:
    return Batch.decodes(count, count * context, count * context**2, context)


def test_measured_experts_are_the_row_of_the_table() -> None:
    rows = KernelTables.load("h100").rows("moe", "bf16")
    experts = ModelSpec.load("mixtral-8x7b").experts
    assert experts is not None
    curve = experts_curve(gemms(), experts, 4096, 2, "bf16")
    at = (rows["k"] == 4096) & (rows["n"] == 7168) & (rows["experts"] == 8) & (rows["m"] == 64)
    assert curve.look_up(64) == (rows["time_us"][at][0] * 1e3, MEASURED)


def test_without_tables_experts_read_the_weights_of_those_touched() -> None:
    few = Experts(count=4, per_token=1, size=1000)
    curve = experts_curve(gemms(tables=False), few, 2000, 1, "bf16")
    assert curve.source(1) == ROOFLINE
    # one token touches one expert: three matrices of 2000 x 1000 in 2 bytes
    weights = 3 * 2000 * 1000 * 2
    activations = (2000 + 1000) * 2 + (2 * 1000 + 2000) * 2
    assert curve.at(1) == pytest.approx(2 * LAUNCH_NS + (weights + activations) / (0.8 * 3.35e12) * 1e9)


def test_experts_published_in_one_format_keep_it() -> None:
    graph = LayerGraph(ModelSpec.load("gpt-oss-120b"), Gpu.load("h100"), 1, "bf16", "bf16", gemms(), None)
    (experts,) = (o.curve for o in graph.per_token(range(36)) if o.name == "experts")
    rows = KernelTables.load("h100").rows("moe", "mxfp4")
    at = (rows["experts"] == 128) & (rows["n"] == 2880) & (rows["k"] == 2880) & (rows["m"] == 32)
    assert experts.at(32) == pytest.approx(36 * rows["time_us"][at][0] * 1e3)


def test_work_inside_a_window_counts_the_keys_seen() -> None:
    fixed = 8 * 256
    assert work(8, 0) - fixed == 8 * 4
    assert work(8, 0, 4) - fixed == 4 * 2 + 4 * 4  # four tokens see up to four keys, four see four each
    assert work(8, 3, 4) - fixed == 1 * (3 + 0.5) + 7 * 4
    assert work(8, 100, 4) - fixed == 8 * 4
    assert work(8, 0, 1000) == work(8, 0)


def test_a_measured_window_is_the_row_of_the_table() -> None:
    tables = KernelTables.load("h100")
    attention = TableAttention(tables, HeadShape(64, 8, 64), "bf16", window=128)
    for op, column, query in (
        ("window_decode", "past_tokens", lambda x: attention.decode(8).look_up(x + 1)),
        ("window_prefill", "new_tokens", lambda x: prefill_ns(attention, [(x, 0)] * 8, False)),
    ):
        rows = tables.rows(op, "bf16")
        at = (rows["heads"] == 64) & (rows["kv_heads"] == 8) & (rows["head_dim"] == 64) & (rows["batch"] == 8)
        at &= rows["window"] == 128
        x, time = rows[column][at].tolist()[-1], rows["time_us"][at].tolist()[-1]
        assert query(x) == (pytest.approx(time * 1e3), MEASURED)


def test_context_beyond_a_window_costs_nothing() -> None:
    tables, shape = KernelTables.load("h100"), HeadShape(32, 8, 128)
    for window in (128, 4096):  # measured, and cut from full attention
        curve = TableAttention(tables, shape, "bf16", window=window).decode(16)
        assert curve.at(100_000) == curve.at(200_000)
    full, cut = (TableAttention(tables, shape, "bf16", window=w).decode(16) for w in (0, 4096))
    assert cut.at(4096) == cut.at(50_000) == full.at(4096)
    formula = roofline_attention(Roofline(Gpu.load("l40s")), shape, 2.0, 512).decode(2)
    assert formula.at(512) == formula.at(5000) > formula.at(100)


def test_half_the_layers_of_gpt_oss_do_not_see_long_contexts() -> None:
    stage = cost("gpt-oss-20b")._stages[0]
    short, long = (stage.decode_curve(decode(16, c)).at(16 * c) for c in (8192, 16_384))
    ((full, layers), (window, others)) = stage._attention
    assert (layers, others, full.window, window.window) == (12, 12, 0, 128)
    assert long - short == pytest.approx(12 * (full.decode(16).at(16_384) - full.decode(16).at(8192)), rel=0.01)


def test_latent_attention_and_its_projections_sum_to_the_measured_module() -> None:
    model, tables = ModelSpec.load("deepseek-v3"), gemms("h200")
    assert model.latent is not None
    attention = latent_attention(tables, model.latent, 16, "fp8")
    projections = [tables.curve(n, k, "bf16") for n, k in token_linears(model.latent, 7168, 16)]
    rows = KernelTables.load("h200").rows("mla_decode", "fp8")
    at = (rows["heads"] == 16) & (rows["batch"] == 64) & (rows["past_tokens"] == 8191)
    ns, source = attention.decode(64).look_up(8192)
    assert ns + sum(curve.at(64) for curve in projections) == pytest.approx(rows["time_us"][at][0] * 1e3)
    assert source == INTERPOLATED


def test_to_a_latent_kernel_measured_alone_the_expansion_is_added() -> None:
    """16 heads of 128 + 128 over a rank of 512: 4,194,304 bytes of weights, read in every decode."""
    model, tables = ModelSpec.load("deepseek-v3"), gemms("h200", engine="-sglang")
    assert model.latent is not None
    attention = latent_attention(tables, model.latent, 16, "bf16")
    rows = KernelTables.load("h200-sglang").rows("mla_kernel_decode", "bf16")
    at = (rows["heads"] == 16) & (rows["batch"] == 64) & (rows["past_tokens"] == 4095)
    expansion = 2 * LAUNCH_NS + 4_194_304 / (0.8 * 4.8e12) * 1e9 + 64 * 4_194_304 / (0.8 * 989e12) * 1e9
    ns, source = attention.decode(64).look_up(4096)
    assert ns == pytest.approx(rows["time_us"][at][0] * 1e3 + expansion, rel=0.01)
    assert source == INTERPOLATED
    rows = KernelTables.load("h200-sglang").rows("mla_kernel_prefill", "bf16")
    at = (rows["heads"] == 16) & (rows["batch"] == 1) & (rows["new_tokens"] == 4096)
    expansion = tables.curve(16 * 256, 512, "bf16").at(4096)
    whole, _ = prefill_ns(attention, [(4096, 0)], False)
    assert whole == pytest.approx(rows["time_us"][at][0] * 1e3 + expansion)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_vllm_decodes_latent_attention_by_the_kernel_alone_and_fills_prompts_by_the_module(gpu: str) -> None:
    """In 16 bits it is SGLang's kernel on the same chip; its own module was timed with operators no engine launches."""
    latent = ModelSpec.load("deepseek-v3").latent
    assert latent is not None
    vllm, sglang = (latent_attention(gemms(gpu, engine=engine), latent, 16, "bf16") for engine in ("", "-sglang"))
    assert vllm.decode(16).at(1500) == pytest.approx(sglang.decode(16).at(1500))
    assert prefill_ns(vllm, [(4096, 0)], False) != prefill_ns(sglang, [(4096, 0)], False)


def test_other_latent_widths_are_a_labelled_roofline() -> None:
    latent = Latent(kv_rank=256, rope_dim=32, nope_dim=64, v_dim=64)
    attention = latent_attention(gemms(), latent, 16, "bf16")
    ns, source = attention.decode(4).look_up(10_000)
    read = (
        (4 * 10_000 * 288 + 256 * 16 * (64 + 64)) * 2 / (0.8 * 3.35e12) * 1e9
    )  # latents, and their expansion's weights
    assert source == ROOFLINE
    assert ns == pytest.approx(2 * LAUNCH_NS + read)


def test_layers_that_share_kv_project_queries_alone() -> None:
    config = {
        "hidden_size": 4096,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 32_000,
        "max_position_embeddings": 8192,
        "num_kv_shared_layers": 3,
    }
    graph = LayerGraph(ModelSpec.from_config(config, "x"), Gpu.load("h100"), 1, "bf16", "bf16", gemms(), None)
    qkv = [o.curve.at(64) for o in graph.per_token(range(4)) if o.name == "qkv"]
    assert qkv == [gemms().curve(6144, 4096, "bf16").at(64), 3 * gemms().curve(4096, 4096, "bf16").at(64)]


@pytest.mark.parametrize(
    ("gpu", "dtype", "measured"),
    [("a100", "int4", True), ("a100", "int8", True), ("h100", "int8_wo", True), ("h100", "int4", False)],
)
def test_integer_weights_are_measured_where_tables_have_them(gpu: str, dtype: str, measured: bool) -> None:
    source = gemms(gpu).curve(4096, 4096, dtype).source(64)
    assert (source != ROOFLINE) == measured


def test_fp8_kv_is_measured_where_tables_have_it() -> None:
    batch = decode(32, 4000)
    assert cost("llama-3.1-8b", kv_dtype="fp8").price(batch).ns < cost("llama-3.1-8b").price(batch).ns
    roofline = cost("llama-3.1-8b", "a100", kv_dtype="fp8").price(batch).shares[3]
    assert roofline > cost("llama-3.1-8b", "a100").price(batch).shares[3] + 0.1


def test_stages_sum_to_the_step_and_cost_sending_besides() -> None:
    one, three = cost("llama-3.1-8b"), cost("llama-3.1-8b", pp=3)
    batch = Batch(
        512 + 16,
        [(512, 100)],
        decode_count=16,
        decode_context_sum=16_000,
        decode_context_sumsq=16_000_000,
        decode_context_max=1000,
        sampled=17,
    )
    stages = three.stages(batch)
    assert len(stages) == 3
    assert sum(stages) == three.price(batch).gpu_ns == three.gpu_run(batch, 1)[0]
    # hidden state and residual, 4 bytes a number, over NVLink, two times
    send = 2 * (10_000 + 528 * 4 * 4096 / (0.8 * 450e9) * 1e9)
    assert sum(stages) - one.price(batch).gpu_ns == pytest.approx(send, abs=3)


def test_the_last_stage_samples_and_has_no_layer_more_than_others() -> None:
    whole, part = (cost("llama-3.1-8b", pp=3).stages(Batch(64, [(64, 0)], sampled=n)) for n in (1, 0))
    assert [a - b for a, b in zip(whole, part, strict=True)][:2] == [0, 0]
    assert whole[2] > part[2]
    assert part[0] > part[1] > part[2]  # 11, 11 and 10 layers of 32; the first also looks up embeddings
    assert cost("llama-3.1-8b").stages(decode(4, 100)) == (cost("llama-3.1-8b").price(decode(4, 100)).gpu_ns,)


def test_experts_split_over_gpus_by_width() -> None:
    names = [o.name for o in _graph("mixtral-8x7b", 4).per_token(range(32))]
    assert {"all_reduce", "router", "experts"} <= set(names)
    assert not {"up", "down"} & set(names)
    assert "shared_up" in [o.name for o in _graph("deepseek-v3", 8).per_token(range(61))]


def _graph(model: str, tp: int) -> LayerGraph:
    return LayerGraph(ModelSpec.load(model), Gpu.load("h100"), tp, "bf16", "bf16", gemms(), None)


def test_tensor_parallelism_gathers_the_shards_of_the_lm_head() -> None:
    lm_head, sampler, gather = (o.curve for o in _graph("llama-3.1-8b", 4).per_sample())
    assert lm_head.at(8) == gemms().curve(128_256 // 4, 4096, "bf16").at(8)
    assert sampler.source(8) == ROOFLINE
    assert gather.source(8) in (MEASURED, INTERPOLATED)


def test_roofline_mode_uses_no_table_where_there_is_one() -> None:
    model = cost("llama-3.1-8b", tables="roofline")
    assert model.price(decode(16, 1000)).shares == (0.0, 0.0, 0.0, 1.0)
    assert (model.tables, model.extrapolated({16: 16_000})) == (None, [])
    assert model.price(decode(16, 1000)).ns == pytest.approx(cost("llama-3.1-8b").price(decode(16, 1000)).ns, rel=0.2)


def test_leaving_the_tables_is_noted_once_with_the_range_and_never_raises() -> None:
    model = cost("tiny-llama", "a100")
    assert model.extrapolated({}) == []
    for context in (1_000_000, 2_000_000):
        model.price(decode(4, context))
        model.price(Batch(200_000, [(200_000, 0)]))
        model.price(Batch(1, [(1, context)]))
    found = model.extrapolated({4: 8_000_000})
    assert "up: up to 200,000 rows, measured up to 8,192" in found
    assert "attention_decode: up to 4 sequences, a batch size that was not measured with these heads" in found
    assert "attention_prefill: prefill of new tokens over cached ones, up to 2,000,001 tokens attended to" in found
    assert len({note.partition(":")[0] for note in found}) == len(found)


def test_a_shape_the_tables_do_not_hold_is_noted_once_it_is_priced() -> None:
    model = cost("llama-3.1-8b")
    assert model.extrapolated({}) == []
    model.price(decode(4, 65_536))
    assert model.extrapolated({4: 4 * 65_536}) == ["lm_head: a shape that was not measured"]
    # a run of steps may be priced further than it is taken
    model.gpu_run(decode(4, 65_536), 100)
    assert len(model.extrapolated({4: 4 * 65_536})) == 1
    beyond = "attention_decode: contexts up to 70,000 of 4 sequences, measured up to 65,536"
    assert beyond in model.extrapolated({4: 4 * 70_000})


@pytest.mark.parametrize(("stated", "expected"), [([0.01, 0.02], 0.02), ([0.01, None], 0.01), ([None, None], None)])
def test_the_repeat_error_of_a_table_is_the_largest_stated(
    stated: list[float | None], expected: float | None, tmp_path: Path
) -> None:
    shipped = KernelTables.load("a100")
    for name, error in zip(("gemm", "attention"), stated, strict=True):
        rows = shipped.rows("gemm" if name == "gemm" else "attention_decode", "bf16")
        columns: dict[str, Any] = {c: v[:100] for c, v in rows.items()}
        columns |= {"op": ["gemm" if name == "gemm" else "attention_decode"] * 100, "dtype": ["bf16"] * 100}
        write_table(tmp_path / f"{name}.parquet", columns, {} if error is None else {"relative_error": error})
    tables = KernelTables.load(folder=tmp_path)
    assert (tables.relative_error, len(tables.without_error)) == (expected, stated.count(None))
    assert shipped.relative_error is None


def test_a_run_over_several_segments_is_its_steps_to_the_bit() -> None:
    curve = cost("llama-3.1-8b")._stages[0].decode_curve(decode(7, 1))
    for first, count in ((7 * 1000, 300), (7 * 500, 2000), (7 * 65_000, 900), (3, 40)):
        run = curve.rounded_run(1234.5, first, 7, count)
        single = [int(curve.rounded_run(1234.5, first + 7 * j, 7, 1)[0]) for j in range(count)]
        assert run.dtype == np.int64
        assert run.tolist() == single


def test_gemms_past_the_last_token_count_hold_the_middle_of_three_rates() -> None:
    curve = gemms().curve(4096, 4096, "bf16")
    roofline = Roofline(Gpu.load("h100"))
    shares = sorted(roofline.gemm(m, 4096, 4096, "bf16") / curve.at(m) for m in (8192, 16_384, 32_768))
    assert roofline.gemm(2**17, 4096, 4096, "bf16") / curve.at(2**17) == pytest.approx(shares[1], rel=0.01)
    assert curve.source(2**17) == EXTRAPOLATED


def test_collectives_beyond_the_table_go_on_at_their_rise() -> None:
    curve = collective_curve(KernelTables.load("h100"), Roofline(Gpu.load("h100")), "all_reduce", 4, 8192)
    a, b, c = (curve.at(bytes_ / 8192) for bytes_ in (2**28, 2**29, 2**30))
    slope = sorted([(b - a) / 2**28, (c - a) / (3 * 2**28), (c - b) / 2**29])[1]
    assert curve.at(2**31 / 8192) == pytest.approx(c + slope * 2**30)


def test_one_outlier_at_the_end_of_a_curve_does_not_set_its_rise() -> None:
    sizes = [1.0, 10.0, 25.0, 50.0, 90.0, 100.0]
    line = [5.0 + 2.0 * x for x in sizes]
    assert rise(sizes, line) == pytest.approx(2.0)
    # the points asked are at 25, 50 and 100
    assert rise(sizes, [*line[:4], 9000.0, line[5]]) == pytest.approx(2.0)
    assert rise(sizes, [*line[:3], 2.0 * line[3], *line[4:]]) == pytest.approx(2.0)
    assert rise([4.0], [12.0]) == 3.0
    assert rise([1.0, 2.0], [9.0, 3.0]) == 0.0  # larger is never faster
