"""CPU time of a price: run with `pytest benchmarks -m benchmark`."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts.cost import Batch
from servesim.cost import TableCostModel, build_cost_model
from servesim.hardware import Gpu, ModelSpec

pytestmark = pytest.mark.benchmark

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama-3.1-8b", {}),
    "windows-and-experts": ("gpt-oss-120b", {}),
    "two-stages": ("llama-3.1-70b", {"tp": 2, "pp": 2}),
}


def decode(count: int, context: int) -> Batch:
    return Batch.decodes(count, count * context, count * context**2, context)


@pytest.fixture(params=CASES)
def cost(request: pytest.FixtureRequest) -> TableCostModel:
    model, options = CASES[request.param]
    return build_cost_model(ModelSpec.load(model), Gpu.load("h100"), **options)


def test_a_decode_step(benchmark: Any, cost: TableCostModel) -> None:
    benchmark(cost.price, decode(64, 2000))


def test_a_mixed_step(benchmark: Any, cost: TableCostModel) -> None:
    batch = decode(64, 2000)
    batch.prefill, batch.linear_tokens = [(512, 1024)], 64 + 512
    benchmark(cost.price, batch)


def test_a_mixed_step_of_three_prompts(benchmark: Any, cost: TableCostModel) -> None:
    batch = decode(64, 2000)
    batch.prefill, batch.linear_tokens = [(200, 1000), (100, 0), (212, 0)], 64 + 512
    benchmark(cost.price, batch)


def test_a_run_of_100_decode_steps(benchmark: Any, cost: TableCostModel) -> None:
    benchmark(cost.gpu_run, decode(64, 2100), 100)


def test_a_run_of_100_decode_steps_over_a_knot(benchmark: Any, cost: TableCostModel) -> None:
    benchmark(cost.gpu_run, decode(64, 2000), 100)
