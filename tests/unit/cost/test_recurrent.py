"""Layers that keep a state: what their convolution and recurrence cost, and what does not matter to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from servesim.cost import KernelTables, build_cost_model
from servesim.cost.attention import decode_over_sum, prefill_ns
from servesim.cost.breakdown import breakdown
from servesim.cost.curve import EXTRAPOLATED, MEASURED, ROOFLINE
from servesim.cost.formula import Roofline
from servesim.cost.linear import GemmTables
from servesim.cost.recurrent import CHUNK, CHUNK_NS, recurrent_attention
from servesim.cost.roofline import decode_step
from servesim.cost.tables import write_table
from servesim.hardware import Gpu, ModelSpec
from servesim.hardware.recurrent import MAMBA2, Recurrent

H200 = Gpu.load("h200")
LAYER = Recurrent("gdn", 2, 4, 128, 128, 4, "fp32")


@pytest.fixture
def gemms(tmp_path: Path) -> GemmTables:
    """One and four sequences of 4 heads: 10 and 20 us a token decoded; prompts of 64 and 128 tokens."""
    shapes = [("decode", 1, 1, 10.0), ("decode", 4, 1, 20.0)]
    shapes += [("prefill", b, n, b * n / 4 + 20.0) for b in (1, 4) for n in (64, 128)]
    columns = {
        "op": [f"gdn_{phase}" for phase, *_ in shapes],
        "dtype": ["bf16"] * 6,
        "batch": [b for _, b, _, _ in shapes],
        "new_tokens": [n for _, _, n, _ in shapes],
        "past_tokens": [0] * 6,
        "heads": [4] * 6,
        "kv_heads": [2] * 6,
        "head_dim": [128] * 6,
        "time_us": [us for *_, us in shapes],
    }
    write_table(tmp_path / "state.parquet", columns, {})
    return GemmTables(KernelTables.load(folder=tmp_path), Roofline(H200), Roofline(H200))


def test_a_decode_costs_what_was_measured_whatever_the_contexts(gemms: GemmTables) -> None:
    attention = recurrent_attention(gemms, LAYER, 1)
    assert [attention.decode(n).look_up(x) for n, x in ((1, 5), (4, 5), (4, 1e6))] == [
        (10e3, MEASURED), (20e3, MEASURED), (20e3, MEASURED)]  # fmt: skip
    assert attention.decode(2).at(77) == pytest.approx(40e3 / 3), "a third of the way from one to four"
    assert decode_over_sum(attention, 4, 1, False, 3).at(4000) == 60e3


def test_a_prompt_costs_its_tokens_and_not_those_before_it(gemms: GemmTables) -> None:
    attention = recurrent_attention(gemms, LAYER, 1)
    whole = prefill_ns(attention, [(128, 0)], False)
    assert whole == (pytest.approx(52e3), MEASURED)
    assert prefill_ns(attention, [(128, 100_000)], False) == whole
    assert prefill_ns(attention, [(96, 5)], False)[0] == pytest.approx(44e3)
    assert prefill_ns(attention, [(128, 0)] * 4, False)[0] == pytest.approx(148e3)


def test_another_number_of_heads_scales_what_is_above_the_least_and_says_so(gemms: GemmTables) -> None:
    attention = recurrent_attention(gemms, replace(LAYER, value_heads=8), 1)
    assert attention.decode(4).look_up(9) == (10e3 + 2 * 10e3, EXTRAPOLATED)
    assert recurrent_attention(gemms, replace(LAYER, value_heads=8, key_heads=4), 2).decode(4).at(9) == 20e3


def test_by_formula_states_are_read_and_written_and_chunks_wait_for_one_another() -> None:
    roofline = Roofline(H200)
    attention = recurrent_attention(GemmTables(None, roofline, roofline), LAYER, 1)
    one, two = (attention.decode(n).look_up(9) for n in (1, 2))
    moved = 4.0 * (2 * 256 + 512) + 4.0 * 512
    assert two[0] - one[0] == pytest.approx((2 * LAYER.state_bytes() + moved) / roofline.rate)
    assert one[1] == ROOFLINE
    chain = prefill_ns(attention, [(8192, 0)], False)[0]
    assert chain == pytest.approx(2 * roofline.launch_ns + 8192 / CHUNK * CHUNK_NS)
    mamba = recurrent_attention(GemmTables(None, roofline, roofline), replace(LAYER, kind=MAMBA2), 1)
    assert prefill_ns(mamba, [(8192, 0)], False)[0] < chain / 2


@pytest.mark.parametrize("name", ["qwen3.5-397b-a17b", "nemotron-3-nano-30b-a3b"])
def test_every_layer_of_a_hybrid_model_is_counted_once(name: str) -> None:
    """All-reduces and norms: one for each mixer and each MLP; no dense MLP where all have experts."""
    model = ModelSpec.load(name)
    cost = build_cost_model(model, H200, 2)
    runs = {op.name: op.runs for op in cost._stages[0]._per_token if op.name in ("all_reduce", "state_out", "experts")}
    halves = sum(layer.mixer + layer.mlp for layer in model.layers)
    states = sum(layer.recurrent for layer in model.layers)
    assert runs == {"all_reduce": halves + 1, "state_out": states, "experts": sum(x.experts for x in model.layers)}
    assert "up" not in breakdown(cost, decode_step(16, 1024))
    assert [layers for _, layers in cost._stages[0]._attention][-1] == states


def test_a_model_with_states_decodes_at_nearly_the_same_price_over_longer_contexts() -> None:
    def grows(name: str) -> float:
        cost = build_cost_model(ModelSpec.load(name), H200)
        short, long = (cost.price(decode_step(16, n)).gpu_ns for n in (1_024, 65_536))
        return long / short

    assert grows("qwen3.5-35b-a3b") < 1.6 < 2.5 < grows("qwen3-30b-a3b")


def test_a_query_projection_with_a_gate_makes_twice_the_queries() -> None:
    """32 x 256 queries and gates, 2 x 2 x 256 keys and values, over 2 GPUs."""
    model = ModelSpec.load("qwen3.5-397b-a17b")
    h, q, kv = 4096, 32 * 256, 2 * 256
    assert model.attention_params == h * (2 * q + 2 * kv) + q * h + 2 * h + 2 * 256


def test_a_step_of_prompt_and_decodes_pays_for_both_kernels_of_a_state(gemms: GemmTables) -> None:
    assert recurrent_attention(gemms, LAYER, 1).floor == 0.0


def test_where_decodes_alone_were_measured_prompts_are_by_formula() -> None:
    layer, a100 = Recurrent("gdn", 16, 32, 128, 128, 4, "fp32"), Gpu.load("a100")
    tables = KernelTables.load("a100")
    assert ("gdn_decode", "bf16") in tables.measured
    assert ("gdn_prefill", "bf16") not in tables.measured
    attention = recurrent_attention(GemmTables(tables, Roofline(a100), Roofline(a100)), layer, 1)
    assert attention.decode(1).look_up(1)[1] == MEASURED
    assert prefill_ns(attention, [(128, 0)], False)[1] == ROOFLINE
