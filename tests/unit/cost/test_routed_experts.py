"""Experts of a model whose router is less unequal than the one that the tables were measured with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servesim.contracts.cost import Batch
from servesim.cost import build_cost_model
from servesim.cost.breakdown import breakdown
from servesim.cost.expert_load import touched
from servesim.hardware import Gpu, ModelSpec

B200 = Gpu.load("b200")


def experts_ns(model: ModelSpec, tokens: int) -> float:
    cost = build_cost_model(model, B200, 4, "fp8")
    return breakdown(cost, Batch.decodes(tokens, 1000 * tokens))["experts"] / model.num_layers


def test_one_token_touches_its_experts_and_many_touch_all() -> None:
    assert touched(256, 8, 1, 0.8) == pytest.approx(8)
    assert touched(256, 8, 1e6, 0.8) == pytest.approx(256)
    assert touched(256, 8, 32, 0) == pytest.approx(256 * (1 - (1 - 8 / 256) ** 32))
    unequal = [touched(256, 8, 32, skew) for skew in (0, 0.8, 1.2)]
    assert unequal == sorted(unequal, reverse=True)


def test_more_touched_experts_are_more_weights_to_read() -> None:
    """32 tokens of MiniMax-M2.5 over four GPUs touch 110 of 256 experts, 78 under the tables' loads; a quarter of each
    takes 3.54 MB in FP8, at .8 of 8 TB/s."""
    model = ModelSpec.load("minimax-m2.5")
    more = touched(256, 8, 32, 0.8) - touched(256, 8, 32, 1.2)
    assert more == pytest.approx(110 - 78, abs=1)
    read = 3 * 3072 * 1536 / 4 / (0.8 * 8e12) * 1e9
    assert experts_ns(model, 32) - experts_ns(replace(model, model_type=""), 32) == pytest.approx(more * read, rel=1e-6)


def test_a_model_whose_router_is_not_known_keeps_the_loads_of_the_tables() -> None:
    model = ModelSpec.load("qwen3-235b-a22b")
    assert experts_ns(model, 32) == experts_ns(replace(model, model_type=""), 32)


def test_loads_that_are_equal_already_get_no_more_experts() -> None:
    """Formulas and DeepGEMM's grouped kernel assume equal loads, so the ideal stays a lower bound."""
    model, h100 = ModelSpec.load("minimax-m2.5"), Gpu.load("h100")
    for settings in ({"tables": "ideal"}, {"tables": "roofline"}, {"moe_backend": "deepgemm"}):
        times = [
            breakdown(build_cost_model(one, h100, 4, "fp8", **settings), Batch.decodes(32, 32_000))["experts"]  # type: ignore[arg-type]
            for one in (model, replace(model, model_type=""))
        ]
        assert times[0] == times[1], settings
