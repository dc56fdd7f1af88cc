"""Engine-side figures from step records, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from servesim.contracts.request import State
from servesim.hardware import Gpu, ModelSpec
from servesim.metrics.engine_figures import ENGINE, KV, PREFIX_CACHE, PRICE, mbu, mfu
from servesim.metrics.measured import Deployment
from servesim.metrics.replicas import Whole
from servesim.metrics.requests import RequestColumns
from servesim.metrics.steps import StepTotals, exact_sum
from servesim.records.columns import STEP_COLUMNS, Rows
from tests.support.measured import measured

SECOND = 1_000_000_000
Make = Callable[..., RequestColumns]
# Llama-3.1-8B: QKV, output, gate, up and down projections and two norms of 32 layers, and the final norm
LAYER_WEIGHTS = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096) + 4096


def steps(*rows: dict[str, int]) -> Rows:
    rows = tuple({**row, "elapsed_ns": row["end_ns"] - row.get("start_ns", 0)} for row in rows)
    return np.array([[row.get(name, 0) for name in STEP_COLUMNS] for row in rows], dtype=np.int64)


PREFILL = {
    "k": 1,
    "end_ns": SECOND,
    "prefill_tokens": 100,
    "prefill_pieces": 2,
    "prefill_context": 40,
    "sampled": 1,
    "gpu_ns": SECOND // 2,
    "kv_used": 100,
    "kv_external": 5,
    "kv_peak": 112,
    "kv_used_ns": 100 * SECOND,
    "kv_internal_ns": 12 * SECOND,
    "measured_ns": SECOND // 2,
}
DECODES = {  # four steps of three sequences whose contexts sum to 60 at first
    "k": 4,
    "start_ns": SECOND,
    "end_ns": 3 * SECOND,
    "decode_count": 3,
    "decode_context": 60,
    "sampled": 3,
    "gpu_ns": 3 * SECOND // 2,
    "kv_peak": 128,
    "kv_used_ns": 220 * SECOND,
    "kv_internal_ns": 20 * SECOND,
    "measured_ns": 3 * SECOND // 4,
    "extrapolated_ns": 3 * SECOND // 4,
}
MIXED = {"k": 1, "start_ns": 3 * SECOND, "end_ns": 4 * SECOND, "prefill_tokens": 10, "prefill_pieces": 1} | {
    "decode_count": 1,
    "decode_context": 7,
    "preempted": 1,
}


@pytest.fixture
def totals() -> StepTotals:
    made = StepTotals()
    made.add(steps(PREFILL, DECODES))
    made.add(steps(MIXED))
    return made


@pytest.fixture
def deployment() -> Deployment:
    return Deployment(
        model=ModelSpec.load("llama-3.1-8b"),
        gpu=Gpu.load("h200"),
        replicas=2,
        tp=1,
        pp=1,
        dtype="bf16",
        kv_dtype="bf16",
        block_size=16,
        num_blocks=11,
        capacity_tokens=160,
        block_bytes=1000,
        prefix_caching=True,
        usd_per_gpu_hour=3.6,
    )


@pytest.fixture
def done(request_columns: Make) -> RequestColumns:
    """One request that ran for ten seconds: 100 prompt tokens, 40 of them found in the cache, 11 output tokens."""
    return request_columns(
        prompt_len=[100],
        output_len=[11],
        hit_tokens=[40],
        num_preemptions=[1],
        recomputed_tokens=[32],
        last_token_ns=[10 * SECOND],
    )


def test_a_row_counts_for_all_its_steps(totals: StepTotals) -> None:
    assert totals.steps == 6
    assert totals.steps_by_kind == {"prefill": 1, "decode": 4, "mixed": 1}
    assert totals.ns_by_kind == {"prefill": SECOND, "decode": 2 * SECOND, "mixed": SECOND}
    assert totals.sums["prefill_tokens"] == 110
    assert totals.sums["sampled"] == 13
    assert totals.decode_tokens == 13
    assert totals.decode_context == 60 + 63 + 66 + 69 + 7  # contexts grow by one a sequence and step


def test_batch_size_and_tokens_are_statistics_over_steps(totals: StepTotals) -> None:
    batch, tokens = totals.batch_size(), totals.tokens_per_step()
    assert batch is not None
    assert (batch["count"], batch["mean"], batch["max"]) == (6, (2 + 4 * 3 + 2) / 6, 3)
    assert tokens is not None
    assert (tokens["mean"], tokens["p50"], tokens["max"]) == ((100 + 12 + 11) / 6, 3, 100)


def test_cost_shares_weigh_by_gpu_time(totals: StepTotals) -> None:
    shares = totals.cost_shares()  # half a second measured, one and a half seconds half and half
    assert shares == {"measured": 0.625, "interpolated": 0.0, "extrapolated": 0.375, "roofline": 0.0}


def test_the_engine_s_figures(totals: StepTotals, deployment: Deployment, done: RequestColumns) -> None:
    found = ENGINE.values(measured(done, None, totals, [deployment]))
    assert found["gpu_busy_share"] == 2 / 20  # two GPU-seconds of two replicas in ten seconds
    assert (found["preemptions"], found["recomputed_tokens"], found["replicas_used"]) == (1, 32, 1)


def test_kv_memory_is_a_mean_over_time_and_replicas(
    totals: StepTotals, deployment: Deployment, done: RequestColumns
) -> None:
    found = KV.values(measured(done, None, totals, [deployment]))
    whole = 2 * 160 * 10  # token-seconds
    assert found["used_share"] == 320 / whole
    assert found["internal_share"] == 32 / whole
    assert found["external_share"] == 5 / whole
    assert found["free_share"] == pytest.approx(1 - 357 / whole)
    assert found["peak_share"] == 128 / 160


def test_prefix_hits_are_tokens_found_of_tokens_asked_for(deployment: Deployment, request_columns: Make) -> None:
    columns = request_columns(
        state=[State.FINISHED, State.REJECTED], prompt_len=[100, 999], hit_tokens=[40, 0], scheduled_ns=[0, -1]
    )
    assert PREFIX_CACHE.of(measured(columns, pools=[deployment])) == {
        "queried_tokens": 100,
        "hit_tokens": 40,
        "hit_rate": 0.4,
        "recent_hit_rate": 0.4,
    }


def test_the_price_of_a_run_is_that_of_all_its_gpus(deployment: Deployment, done: RequestColumns) -> None:
    found = PRICE.values(measured(done, pools=[deployment]))
    assert found["gpu_hours"] == 20 / 3600
    assert found["usd"] == pytest.approx(0.02)
    assert found["usd_per_million_input_tokens"] == pytest.approx(200.0)
    assert found["usd_per_million_tokens"] == pytest.approx(0.02 / 111 * 1e6)


def test_mfu_counts_what_the_answers_needed(deployment: Deployment, done: RequestColumns) -> None:
    # 110 tokens are computed in all, 40 of them were found: 70 through the layers, positions 41..110 attended
    pairs = sum(range(41, 111))
    flops = 2 * LAYER_WEIGHTS * 70 + 4 * 32 * 4096 * pairs + 2 * 4096 * 128256 * 11
    assert mfu(measured(done, pools=[deployment])) == pytest.approx(flops / (989e12 * 2 * 10))


def test_mbu_counts_weights_once_a_step_and_the_contexts_read(
    totals: StepTotals, deployment: Deployment, done: RequestColumns
) -> None:
    weights = 2 * (LAYER_WEIGHTS + 4096 * 128256)  # the table of input embeddings is looked up, not read
    kv_token = 2 * 32 * 8 * 128 * 2
    read = 6 * weights + (265 + 40) * kv_token
    assert mbu(measured(done, None, totals, [deployment])) == pytest.approx(read / (4.8e12 * 2 * 10))


def test_utilization_of_a_mixture_of_experts_is_not_claimed(
    totals: StepTotals, deployment: Deployment, done: RequestColumns
) -> None:
    sparse = replace(deployment, model=ModelSpec.load("mixtral-8x7b"))
    assert mfu(measured(done, pools=[sparse])) is None
    assert mbu(measured(done, None, totals, [sparse])) is None


def test_sums_do_not_overflow() -> None:
    column = np.full(8, 2**62, dtype=np.int64)
    assert exact_sum(column) == 2**65
    assert exact_sum(-column) == -(2**65)


def test_a_pool_pays_for_all_gpus_of_a_replica_while_it_is_up(deployment: Deployment) -> None:
    """40 minutes of replicas of 2 x 3 GPUs are 4 GPU-hours."""
    two_by_three = replace(deployment, tp=2, pp=3)
    assert Whole(two_by_three, [{"up_s": 1800.0}, {"up_s": 600.0}], 0).gpu_hours == 4.0
