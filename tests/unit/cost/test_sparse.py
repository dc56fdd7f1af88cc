"""Latent attention over chosen tokens: what is measured, what is taken off, and what grows with the context."""

from __future__ import annotations

from pathlib import Path

import pytest

from servesim.cost import KernelTables, build_cost_model
from servesim.cost.attention import prefill_ns
from servesim.cost.curve import EXTRAPOLATED, ROOFLINE
from servesim.cost.formula import Roofline
from servesim.cost.linear import GemmTables
from servesim.cost.roofline import decode_step
from servesim.cost.sparse import _by_formula, sparse_attention
from servesim.cost.tables import write_table
from servesim.hardware import Gpu, ModelSpec
from servesim.hardware.layers import Indexer, Latent

H200 = Gpu.load("h200")
LATENT = Latent(512, 64, 128, 128, 1536, Indexer(64, 128, 2048))
HIDDEN, HEADS = 7168, 16
PROJECTIONS = [
    (1536 + 576, HIDDEN),
    (16 * 192, 1536),
    (HIDDEN, 16 * 128),
    (64 * 128, 1536),
    (128, HIDDEN),
    (64, HIDDEN),
]
"""Those of 16 heads, and the indexer's, which are whole."""


@pytest.fixture
def gemms(tmp_path: Path) -> GemmTables:
    """A decode of one sequence of 1,000 and of 100,000 tokens; prompts of 64 (launching alone), 4,096 and 8,192."""
    shapes = [(1, 999, 400.0), (1, 99_999, 600.0), (64, 0, 800.0), (4096, 0, 3000.0), (8192, 0, 6000.0)]
    columns = {
        "op": ["dsa_decode"] * 2 + ["dsa_prefill"] * 3,
        "dtype": ["bf16"] * 5,
        "k": [HIDDEN] * 5,
        "heads": [HEADS] * 5,
        "batch": [1] * 5,
        "new_tokens": [new for new, _, _ in shapes],
        "past_tokens": [past for _, past, _ in shapes],
        "time_us": [us for *_, us in shapes],
    }
    write_table(tmp_path / "sparse.parquet", columns, {})
    return GemmTables(KernelTables.load(folder=tmp_path), Roofline(H200), Roofline(H200))


def test_a_module_is_what_was_measured_without_its_projections(gemms: GemmTables) -> None:
    attention = sparse_attention(gemms, LATENT, HIDDEN, HEADS, "bf16")

    def linears(tokens: int) -> float:
        return sum(gemms.curve(n, k, "fp8_block").at(tokens) for n, k in PROJECTIONS)

    assert attention.decode(1).at(1_000) == pytest.approx(400e3 - linears(1))
    assert attention.decode(1).at(100_000) == pytest.approx(600e3 - linears(1))
    assert prefill_ns(attention, [(8192, 0)], False)[0] == pytest.approx(6000e3 - linears(8192))


def test_prompts_that_show_launching_alone_are_left_out(gemms: GemmTables) -> None:
    """64 tokens lie near what a decode takes, not at the 800 us of their row."""
    attention = sparse_attention(gemms, LATENT, HIDDEN, HEADS, "bf16")
    floor = attention.decode(1).at(0.0)
    assert floor < prefill_ns(attention, [(64, 0)], False)[0] < floor + 64 / 4096 * 3000e3


def test_cached_tokens_add_the_scores_of_the_new_ones(gemms: GemmTables) -> None:
    attention = sparse_attention(gemms, LATENT, HIDDEN, HEADS, "bf16")
    (near, _), (far, source) = (prefill_ns(attention, [(4096, past)], False) for past in (10_000, 20_000))
    assert far - near == pytest.approx(4096 * 10_000 * 2 * 64 * 128 / gemms.roofline.peak("fp8"))
    assert source == EXTRAPOLATED


def test_by_formula_a_decode_grows_by_the_indexers_keys_alone_beyond_the_chosen_tokens() -> None:
    roofline = Roofline(H200)
    curve = sparse_attention(GemmTables(None, roofline, roofline), LATENT, HIDDEN, HEADS, "bf16").decode(1)
    assert curve.at(3048) - curve.at(2048) == pytest.approx(1000 * 132 / roofline.rate)
    assert curve.at(2048) - curve.at(1048) == pytest.approx(1000 * (132 + 1152) / roofline.rate)
    assert curve.source(5_000) == ROOFLINE


def test_a_token_keeps_its_latent_and_a_key_to_be_chosen_by() -> None:
    """576 numbers of 2 bytes, or 512 of 1, four scales and 64 of 2; 128 bytes of a key and a scale of 4."""
    assert LATENT.token_bytes("bf16") == 1152 + 132
    assert LATENT.token_bytes("fp8") == 656 + 132
    assert ModelSpec.load("deepseek-v3.2").kv_bytes_per_token() == 61 * (1152 + 132)
    assert ModelSpec.load("deepseek-v3").kv_bytes_per_token("fp8") == 61 * 576


def test_sparse_attention_makes_long_contexts_cheap() -> None:
    def grows(name: str) -> float:
        cost = build_cost_model(ModelSpec.load(name), H200, 8, "fp8")
        short, long = (cost.price(decode_step(8, n)).gpu_ns for n in (2_048, 131_072))
        return long / short

    assert grows("deepseek-v3.2") < 0.75 * grows("deepseek-v3")


def test_a_prompt_beyond_what_the_formula_was_drawn_for_goes_on_at_the_slope_of_its_last_piece() -> None:
    assert LATENT.indexer is not None
    _, prefill = _by_formula(Roofline(H200), LATENT, LATENT.indexer, HEADS, "bf16")
    for _, curve in prefill:
        (x, y), (beyond, more) = (curve.xs[-2], curve.ys[-2]), (curve.xs[-1], curve.ys[-1])
        assert curve.at(2 * beyond - x) == pytest.approx(2 * more - y)
