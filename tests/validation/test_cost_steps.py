"""The cost model against measurements it was not built from: package step tables and recorded vLLM servers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from servesim.contracts.cost import Batch
from servesim.cost import KernelTables, TableCostModel, build_cost_model
from servesim.cost.attention import TableAttention, decode_over_sum, prefill_ns
from servesim.cost.formula import LAUNCH_NS, Roofline
from servesim.cost.grid import HeadShape
from servesim.cost.linear import GemmTables
from servesim.hardware import Gpu, ModelSpec

SHARED = Path(__file__).resolve().parents[3] / "shared"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=f"reference data folder {SHARED} is not on this machine")

# file stem after aic_steps_, GPU, dtype, model; only operators with measured sources are compared
STEPS = [
    ("h100_sxm_vllm_bf16", "h100", "bf16", "llama-3.1-8b"),
    ("h100_sxm_vllm_fp8", "h100", "fp8", "llama-3.1-8b"),
    ("h200_sxm_vllm_bf16", "h200", "bf16", "llama-3.1-8b"),
    ("h200_sxm_vllm_fp8", "h200", "fp8", "llama-3.1-8b"),
    ("h200_sxm_vllm_bf16_qwen3-8b", "h200", "bf16", "qwen3-8b"),
    ("h200_sxm_vllm_bf16_qwen3-0.6b", "h200", "bf16", "qwen3-0.6b"),
    ("a100_sxm_vllm_bf16", "a100", "bf16", "llama-3.1-8b"),
    ("l40s_vllm_bf16", "l40s", "bf16", "llama-3.1-8b"),
]
SILICON = ("qkv_gemm", "proj_gemm", "gate_ffn1_gemm", "ffn2_gemm", "logits_gemm", "attention")
"""Columns the package takes from measurements (attention of decode rows only: it adds a formula to prefill)."""


def decode(count: int, context_sum: int) -> Batch:
    return Batch.decodes(count, context_sum)


@cache
def steps(stem: str) -> pd.DataFrame:
    return pd.read_csv(SHARED / "profiles" / "aic_steps" / f"aic_steps_{stem}.csv")


def mean_error(predicted: list[float], reference: pd.Series[float]) -> float:
    return float(np.mean(np.abs(np.array(predicted) / reference.to_numpy() - 1.0)))


def relative_errors(stem: str, gpu: str, dtype: str, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Errors of the columns measured, by column."""
    table, model, roofline = steps(stem), ModelSpec.load(name), Roofline(Gpu.load(gpu))
    kernels = KernelTables.load(gpu)
    gemms = GemmTables(kernels, roofline, roofline)
    hidden, inter, layers = model.hidden_size, model.intermediate_size, model.num_layers
    tokens = np.where(table.phase == "prefill", table.batch * table.context_or_isl, table.batch).tolist()
    errors = {}
    for column, n, k, weights, times, rows in (
        ("qkv_gemm", model.q_size + 2 * model.kv_size, hidden, dtype, layers, tokens),
        ("proj_gemm", hidden, model.q_size, dtype, layers, tokens),
        ("gate_ffn1_gemm", 2 * inter, hidden, dtype, layers, tokens),
        ("ffn2_gemm", hidden, inter, dtype, layers, tokens),
        ("logits_gemm", model.vocab_size, hidden, "bf16", 1, table.batch.tolist()),
    ):
        curve = gemms.curve(n, k, weights)
        errors[column] = np.array([curve.at(m) * times / 1e6 for m in rows]) / table[f"{column}_ms"].to_numpy() - 1.0
    attention = TableAttention(kernels, HeadShape(model.num_heads, model.num_kv_heads, model.head_dim), dtype)
    decodes = table[table.phase == "decode"]
    predicted = [
        decode_over_sum(attention, b, 1, False, layers).at(b * c) / 1e6
        for b, c in zip(decodes.batch.tolist(), decodes.context_or_isl.tolist(), strict=True)
    ]
    errors["attention"] = np.array(predicted) / decodes.attention_ms.to_numpy() - 1.0
    return errors


@pytest.mark.parametrize(("stem", "gpu", "dtype", "name"), STEPS)
def test_measured_columns_agree_with_the_package_s_own_lookup(
    stem: str, gpu: str, dtype: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = relative_errors(stem, gpu, dtype, name)
    assert tuple(errors) == SILICON
    every = np.abs(np.concatenate(list(errors.values())))
    parts = ", ".join(f"{c} {100 * np.median(np.abs(e)):.1f}" for c, e in errors.items())
    with capsys.disabled():
        print(f"\n{stem}: median {100 * np.median(every):.2f} %, p95 {100 * np.quantile(every, 0.95):.2f} % ({parts})")
    assert np.median(every) < 0.02
    assert np.quantile(every, 0.95) < 0.06
    assert all(np.median(np.abs(e)) < 0.02 for e in errors.values())


@pytest.mark.parametrize(("stem", "gpu", "dtype", "name"), STEPS)
def test_attention_agrees_with_the_package_s_own_lookup(stem: str, gpu: str, dtype: str, name: str) -> None:
    table, model = steps(stem), ModelSpec.load(name)
    shape = HeadShape(model.num_heads, model.num_kv_heads, model.head_dim)
    attention = TableAttention(KernelTables.load(gpu), shape, dtype)
    layers = model.num_layers
    rows = table[table.phase == "decode"]
    predicted = [
        decode_over_sum(attention, b, 1, False, layers).at(b * c) / 1e6
        for b, c in zip(rows.batch.tolist(), rows.context_or_isl.tolist(), strict=True)
    ]
    # The L40S reads a KV of less than 96 MB from its cache: a step in the table, which the package smooths.
    assert mean_error(predicted, rows.attention_ms) < (0.1 if gpu == "l40s" else 0.03)
    rows = table[(table.phase == "prefill") & (table.batch * table.context_or_isl <= 32_768)]
    predicted = [
        prefill_ns(attention, [(c, 0)] * b, False)[0] * layers / 1e6
        for b, c in zip(rows.batch.tolist(), rows.context_or_isl.tolist(), strict=True)
    ]
    # The package adds a constant by formula (rotary embedding, KV write, QK-norm) to the measured kernel.
    constant = float((rows.attention_ms - np.array(predicted)).median())
    assert 0.0 < constant < 10 * 1.5 * LAUNCH_NS * layers / 1e6
    assert mean_error([p + constant for p in predicted], rows.attention_ms) < 0.02


@pytest.mark.parametrize(("stem", "gpu", "dtype", "name"), STEPS)
def test_whole_steps_agree_with_the_package(
    stem: str, gpu: str, dtype: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = steps(stem)
    model = build_cost_model(ModelSpec.load(name), Gpu.load(gpu), 1, dtype, kv_dtype=dtype)
    predicted = []
    for phase, b, c in zip(table.phase, table.batch.tolist(), table.context_or_isl.tolist(), strict=True):
        batch = decode(b, b * c) if phase == "decode" else Batch(b * c, [(c, 0)] * b, sampled=b)
        predicted.append(model.price(batch).ns / 1e6)
    error = np.array(predicted) / table.latency_ms.to_numpy() - 1.0
    with capsys.disabled():
        print(
            f"\n{stem}: whole steps mean {100 * np.mean(np.abs(error)):.1f} %, median {100 * np.median(error):+.1f} %"
        )
    # Formula operators (rotary embedding, KV write, sampling) weigh most in the smallest model.
    assert np.mean(np.abs(error)) < (0.09 if name == "qwen3-0.6b" else 0.045)


@cache
def qwen() -> TableCostModel:
    return build_cost_model(ModelSpec.load("qwen3-14b"), Gpu.load("h100"))


@pytest.mark.parametrize(
    ("batch", "milliseconds"),
    [(decode(1, 1050), 11.25), (decode(10, 10_500), 12.06), (Batch(990, [(990, 0)], sampled=1), 40.6)],
)
def test_kernel_sums_are_close_to_the_steps_of_a_real_server(batch: Batch, milliseconds: float) -> None:
    # vLLM 0.23.0, H100, Qwen3-14B; what is missing is host time
    assert 0.95 * milliseconds < qwen().price(batch).ns / 1e6 < 1.01 * milliseconds


def test_recorded_decode_steps_of_a_real_server() -> None:
    recorded = pd.read_csv(SHARED / "groundtruth" / "residency_qwen3_14b_h100" / "derived_steps_2rps.csv.gz")
    rows = recorded[recorded.contiguous.eq(True) & (recorded.prefill_tokens_done == 0)].iloc[::20]
    predicted = [
        qwen().price(decode(int(n), int(s))).ns / 1e3 for n, s in zip(rows.n_tokens_out, rows.sum_ctx, strict=True)
    ]
    error = np.array(predicted) / rows.dt_us.to_numpy() - 1.0
    assert len(rows) > 5000
    assert np.mean(np.abs(error)) < 0.04
    assert abs(np.median(error)) < 0.03


@pytest.mark.parametrize(("run", "name", "tp"), [("llama-2-70b", "llama-2-70b", 4), ("codellama", "codellama-34b", 2)])
def test_recorded_decode_steps_under_tensor_parallelism(run: str, name: str, tp: int) -> None:
    # vLLM 0.15.1, H100; contexts are known only as blocks in use
    recorded = pd.read_csv(SHARED / "groundtruth" / "blis_stepml_h100" / "steps_sampled10pct.csv.gz")
    rows = recorded[
        recorded.experiment_id.str.contains(run)
        & (recorded.gap_steps == 1)
        & (recorded["batch.num_prefill_reqs"] == 0)
        & (recorded["batch.num_decode_reqs"] == recorded["queue.running_depth"])
        & (recorded["batch.num_decode_reqs"] > 0)
    ]
    model = build_cost_model(ModelSpec.load(name), Gpu.load("h100"), tp)
    tokens = 16 * (rows["kv.blocks_total_gpu"] - rows["kv.blocks_free_gpu"])
    predicted = [
        model.price(decode(int(n), int(s))).ns / 1e3 for n, s in zip(rows["batch.num_decode_reqs"], tokens, strict=True)
    ]
    error = np.array(predicted) / rows.to_next_start_us.to_numpy() - 1.0
    assert len(rows) > 100
    assert abs(np.median(error)) < 0.06
