"""DeepGEMM's grouped kernel: rows of its buffer, which versions run it, and its price by the dense rows of a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servesim.contracts.cost import Batch
from servesim.cost.breakdown import breakdown
from servesim.cost.build import build_cost_model
from servesim.cost.formula import Roofline
from servesim.cost.grouped import QUANTIZING, buffer_rows, filled_rows, grouped_curve
from servesim.cost.linear import GemmTables
from servesim.cost.tables import KernelTables
from servesim.hardware.gpu import Gpu
from servesim.hardware.layers import Experts
from servesim.hardware.model import ModelSpec
from servesim.versions import engine_facts

QWEN = Experts(128, 8, 1536)
HIDDEN = 4096


def gemms(gpu: str = "h200") -> GemmTables:
    roofline = Roofline(Gpu.load(gpu))
    return GemmTables(KernelTables.load(gpu), roofline, roofline)


def decode(count: int) -> Batch:
    return Batch.decodes(count, 1000 * count, longest=1000)


def experts_ns(
    version: str,
    tp: int,
    tokens: int,
    dtype: str = "fp8_block",
    expert_parallel: bool = False,
    model: str = "qwen3-235b-a22b",
) -> float:
    facts = engine_facts("vllm", version, "h200")
    spec = ModelSpec.load(model)
    built = build_cost_model(spec, Gpu.load("h200"), tp, dtype, engine=facts, ep=tp if expert_parallel else 1)
    return breakdown(built, decode(tokens))["experts"]


def test_the_buffer_is_as_long_as_if_every_expert_left_a_block_all_but_empty() -> None:
    """16 tokens of 8 experts: 128 rows, and 127 for each of 128 experts: 16,384, 128 blocks; one more token: 129."""
    assert buffer_rows(16, QWEN) == 16_384
    assert buffer_rows(17, QWEN) == 16_512
    assert buffer_rows(16, QWEN, share=0.5) == 8_320  # 128 rows all the same, and 127 for each of 64: 8,256


def test_one_token_fills_a_block_of_each_of_its_experts() -> None:
    assert filled_rows(1, QWEN) == pytest.approx(8 * 128)
    assert filled_rows(1, QWEN, share=0.25) == pytest.approx(2 * 128)
    everywhere = Experts(4, 4, 1536)  # 129 tokens in each of 4 experts: two blocks each
    assert filled_rows(129, everywhere) == pytest.approx(4 * 2 * 128)


def test_padded_decode_costs_the_dense_rows_of_the_whole_buffer_whatever_the_tokens() -> None:
    """16,384 rows through 4,096 -> 1,536 and 768 -> 4,096, without quantizing rows that are sorted in quantized."""
    tables = gemms()
    curve = grouped_curve(tables, QWEN, HIDDEN, 2, 1, every_block=True)
    dense = sum(tables.curve(n, k, "fp8_block").at(16_384) for n, k in ((1536, 4096), (4096, 768)))
    sorted_in = QUANTIZING * (16_384 - 16) * HIDDEN
    moved = (6 * 16_384 * 768 + 4 * 16 * 8 * HIDDEN) / (0.8 * 4.8)  # 4.8e12 bytes/s, 80 %
    assert curve.at(16) == pytest.approx(7 * 3000.0 + dense - sorted_in + moved * 1e-3, rel=1e-6)
    assert curve.at(1) == pytest.approx(curve.at(16), rel=0.01)


def test_blocks_without_a_token_cost_nothing_once_they_are_skipped() -> None:
    padded, skipped = (grouped_curve(gemms(), QWEN, HIDDEN, 2, 1, every) for every in (True, False))
    assert skipped.at(1) < 0.2 * padded.at(1)
    assert skipped.at(8192) == pytest.approx(padded.at(8192), rel=0.1)


def test_the_experts_touched_are_read_at_least() -> None:
    slow = gemms()
    reads = grouped_curve(
        replace(slow, roofline=Roofline(replace(slow.roofline.gpu, bandwidth=1e11))), QWEN, HIDDEN, 2, 1, True
    )
    assert reads.at(64) > QWEN.touched(64) * 3 * HIDDEN * 768 / (0.8 * 100)


@pytest.mark.parametrize(
    ("version", "padded"), [("0.11.0", False), ("0.11.1", True), ("0.12.0", True), ("0.18.0", False)]
)
def test_decode_is_flat_in_the_versions_that_compute_every_block(version: str, padded: bool) -> None:
    assert (experts_ns(version, 2, 32) < 1.05 * experts_ns(version, 2, 8)) == padded


def test_skipped_blocks_of_later_versions_grow_with_the_experts_touched() -> None:
    assert experts_ns("0.13.0", 2, 8) < 0.5 * experts_ns("0.12.0", 2, 8)


def test_over_8_gpus_experts_split_by_width_run_in_triton_and_whole_ones_do_not() -> None:
    assert experts_ns("0.12.0", 8, 8) == pytest.approx(experts_ns("0.18.0", 8, 8))
    assert experts_ns("0.12.0", 8, 8, expert_parallel=True) != pytest.approx(
        experts_ns("0.18.0", 8, 8, expert_parallel=True)
    )


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
def test_experts_in_other_formats_do_not_go_through_it(dtype: str) -> None:
    name = "RedHatAI/Qwen3-235B-A22B-FP8-dynamic"  # fp8 with one scale per channel
    assert experts_ns("0.12.0", 2, 8, dtype, model=name) == pytest.approx(experts_ns("0.18.0", 2, 8, dtype, model=name))
