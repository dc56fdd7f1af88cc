"""All-reduce by algorithm: the engine's own kernels up to a size, NCCL beyond; and which tables an engine takes."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from servesim.contracts import Batch
from servesim.cost import TableCostModel, build_cost_model
from servesim.cost.breakdown import breakdown
from servesim.cost.build import _own_all_reduce_below
from servesim.cost.curve import MEASURED, ROOFLINE
from servesim.cost.formula import Roofline
from servesim.cost.linear import collective_curve
from servesim.cost.tables import KernelTables
from servesim.hardware import Gpu, ModelSpec
from servesim.versions import engine_facts

H100 = Roofline(Gpu.load("h100"))
MIB = 2**20


def messages(own: dict[int, float], nccl: dict[int, float]) -> KernelTables:
    """Tables of all-reduces of two GPUs: microseconds by MiB."""
    tables = KernelTables.load("h100")
    for op, times in (("all_reduce", own), ("all_reduce_nccl", nccl)):
        columns = {"gpus": [2] * len(times), "bytes": [size * MIB for size in times], "time_us": list(times.values())}
        tables = tables.with_rows(op, "bf16", {name: np.array(values) for name, values in columns.items()})
    return tables


def at(tables: KernelTables, mib: int, below: float = inf) -> float:
    return collective_curve(tables, H100, "all_reduce", 2, MIB, below).at(mib) / 1e3


def test_the_engine_s_own_kernel_serves_small_messages_and_nccl_large_ones() -> None:
    tables = messages({1: 10.0, 4: 40.0, 8: 80.0, 16: 160.0}, {1: 30.0, 4: 45.0, 8: 60.0, 16: 90.0})
    assert [at(tables, mib, 8 * MIB) for mib in (1, 4, 8, 16)] == [10.0, 40.0, 60.0, 90.0]
    assert [at(tables, mib) for mib in (1, 4, 8, 16)] == [10.0, 40.0, 80.0, 160.0]


def test_a_table_of_nccl_alone_prices_messages_of_every_size() -> None:
    assert [at(messages({}, {1: 30.0, 8: 60.0}), mib, 8 * MIB) for mib in (1, 8)] == [30.0, 60.0]


def test_a_table_without_nccl_goes_on_with_the_engine_s_own_kernel() -> None:
    assert at(messages({1: 10.0, 16: 160.0}, {}), 16) == 160.0


def test_only_what_no_table_has_is_priced_by_formula() -> None:
    curve = collective_curve(messages({}, {}), H100, "all_reduce", 2, MIB)
    assert curve.source(4) == ROOFLINE
    assert collective_curve(messages({1: 1.0}, {}), H100, "all_reduce", 2, MIB).source(1) == MEASURED


@pytest.mark.parametrize(
    ("version", "gpu", "tp", "mib"),
    [
        ("0.24.0", "h100", 2, 64),
        ("0.24.0", "h200", 4, 32),
        ("0.24.0", "h100", 8, 64),
        ("0.14.0", "h100", 8, 8),
        ("0.24.0", "a100", 4, 8),
    ],
)
def test_vllm_s_own_kernels_end_where_its_limits_say(version: str, gpu: str, tp: int, mib: int) -> None:
    assert _own_all_reduce_below(engine_facts("vllm", version, gpu), tp) == mib * MIB


def test_an_engine_of_unknown_limits_is_priced_as_measured() -> None:
    assert _own_all_reduce_below(engine_facts("sglang", None, "h100"), 4) == inf
    assert _own_all_reduce_below(None, 4) == inf


@pytest.mark.parametrize(("engine", "tables"), [("sglang", "h200-sglang"), ("tensorrt-llm", "h200-trtllm")])
def test_an_engine_takes_its_own_kernels_where_they_were_measured(engine: str, tables: str) -> None:
    def taken(gpu: str, model: str = "qwen3-32b", **options: str) -> str:
        facts = engine_facts(engine, None, gpu)
        cost = build_cost_model(ModelSpec.load(model), Gpu.load(gpu), engine=facts, **options)  # type: ignore[arg-type]
        assert cost.tables is not None
        return cost.tables.folder.name

    assert (taken("h200"), taken("l40s"), taken("h200", tables="h100-trtllm")) == (tables, "l40s", "h100-trtllm")


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_latent_attention_is_of_the_engine_s_own_tables_which_have_it(engine: str) -> None:
    facts = engine_facts(engine, None, "h200")
    cost = build_cost_model(ModelSpec.load("deepseek-v2-lite"), Gpu.load("h200"), engine=facts)
    assert cost.tables is not None
    assert cost.tables.folder.name == facts.get("kernel_tables")


def test_a_norm_in_the_kernel_of_the_all_reduce_costs_nothing_up_to_the_engine_s_limit() -> None:
    """Qwen3-32B over eight H100: hidden states of 10,240 bytes, so 51 tokens fit into half a MiB."""
    model, gpu = ModelSpec.load("qwen3-32b"), Gpu.load("h100")
    new, old = (
        build_cost_model(model, gpu, 8, engine=engine_facts("vllm", version, "h100"))
        for version in ("0.18.0", "0.17.0")
    )
    apart = build_cost_model(model, gpu, 8, engine=engine_facts("vllm", "0.14.0", "h100"))

    def norms(cost: TableCostModel, tokens: int) -> float:
        return breakdown(cost, Batch.decodes(tokens, 1000 * tokens))["norm"]

    limit = 2**19 // (2 * model.hidden_size)
    assert limit == 51
    for fused in (new, old):
        assert norms(fused, limit) < 0.1 * norms(apart, limit)  # of the last norm alone
        assert norms(fused, limit + 1) == norms(apart, limit + 1)


def test_the_kernel_that_also_normalizes_has_times_of_its_own_up_to_its_limit() -> None:
    """On a B200 it is TensorRT-LLM's: 16 sequences of Llama-3.1-70B over eight GPUs (256 KiB) take 7.9 us in it and 2.5
    for the norm, and 25.8 in vLLM's own, whose two-shot algorithm starts there; its limit is 1 MiB."""
    model, gpu = ModelSpec.load("llama-3.1-70b"), Gpu.load("b200")
    fused, apart = (
        build_cost_model(model, gpu, 8, "fp8", engine=engine_facts("vllm", "0.11.0", "b200"), fuse_allreduce_rms=fuse)
        for fuse in (True, None)
    )

    def reductions(cost: TableCostModel, tokens: int) -> float:
        return breakdown(cost, Batch.decodes(tokens, 1000 * tokens))["all_reduce"] / 1e3 / (2 * model.num_layers + 1)

    within = 2.5 + 3 * 16 * 16_384 / (0.8 * 8e12) * 1e6
    assert reductions(fused, 16) == pytest.approx(7.9 + within, abs=0.1)
    assert reductions(apart, 16) == pytest.approx(25.8, abs=0.1)
    for tokens in (65, 128):
        assert reductions(fused, tokens) == pytest.approx(reductions(apart, tokens), rel=1e-6)
    newer = build_cost_model(model, gpu, 8, "fp8", engine=engine_facts("vllm", "0.16.0", "b200"))
    assert reductions(newer, 16) == reductions(fused, 16)


def test_vllm_does_not_fuse_with_pipeline_stages_or_ranks_or_when_told_not_to() -> None:
    model, gpu, engine = ModelSpec.load("qwen3-235b-a22b"), Gpu.load("b200"), engine_facts("vllm", None, "b200")

    def norm(**settings: int | bool) -> float:
        cost = build_cost_model(model, gpu, 2, engine=engine, **settings)  # type: ignore[arg-type]
        return breakdown(cost, Batch.decodes(8, 8_000))["norm"]

    assert norm() < 0.5 * min(norm(pp=2), norm(dp=2), norm(fuse_allreduce_rms=False))


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_kernels_of_a_b200_are_scaled_to_a_gb200(engine: str) -> None:
    model, times = ModelSpec.load("llama-3.1-8b"), {}
    for gpu in ("b200", "gb200"):
        cost = build_cost_model(model, Gpu.load(gpu), engine=engine_facts(engine, None, gpu))
        times[gpu] = breakdown(cost, Batch(linear_tokens=8192, prefill=[(8192, 0)], sampled=1))["up"]
    assert times["gb200"] == pytest.approx(times["b200"] * 2250 / 2500, rel=0.01)


def test_tensorrt_llm_normalizes_apart_where_the_code_of_a_model_does() -> None:
    engine = engine_facts("tensorrt-llm", None, "h100")
    for name, free in (("llama-3.1-8b", True), ("qwen3-32b", False)):
        model = ModelSpec.load(name)
        norm = breakdown(build_cost_model(model, Gpu.load("h100"), 2, engine=engine), Batch.decodes(64, 64_000))["norm"]
        assert (norm < 0.1 * model.num_layers * 2 * H100.launch_ns) == free


def test_tables_without_collectives_are_said_to_be_without(tmp_path: Path) -> None:
    for path in KernelTables.load("h100").folder.glob("*.parquet"):
        if path.name != "comm.parquet":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    model, gpu = ModelSpec.load("llama-3.1-8b"), Gpu.load("h100")
    lines = [build_cost_model(model, gpu, tp, tables=tmp_path).suspect for tp in (1, 2)]
    assert lines == [
        [],
        ["all_reduce over 2 GPUs was not measured, so it is priced by formula from the data sheet's link rate"],
    ]
    assert build_cost_model(model, gpu, 2).suspect == []


def test_a_norm_over_all_heads_is_added_up_over_the_gpus_in_every_layer() -> None:
    plain, gpu = ModelSpec.load("qwen3-32b"), Gpu.load("h100")
    model, step = replace(plain, qk_norm_all_heads=True), Batch.decodes(4, 4000)
    more = {}
    for tp in (1, 8):
        with_, without = (breakdown(build_cost_model(m, gpu, tp), step) for m in (model, plain))
        more[tp] = {name: with_[name] - without[name] for name in ("norm", "all_reduce") if name in with_}
    smallest = collective_curve(KernelTables.load("h100"), H100, "all_reduce", 8, 8).at(4)
    assert more[1] == {"norm": 0.0}
    assert more[8]["all_reduce"] == pytest.approx(model.num_layers * smallest)
    assert more[8]["norm"] == pytest.approx(model.num_layers * 2 * H100.launch_ns, rel=0.01)
