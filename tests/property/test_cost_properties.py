"""Laws of the cost model, over random batches."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts.cost import Batch
from servesim.cost import TableCostModel, build_cost_model
from servesim.cost.host import HostTerms
from servesim.hardware import Gpu, ModelSpec

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3.1-8b", "h100", {}),
    ("opt-13b", "a100-40g", {}),
    ("llama-3.1-70b", "h200", {"tp": 4}),
    ("qwen3-8b", "l40s", {"tables": "roofline"}),
    ("gpt-oss-120b", "h100", {}),
    ("mixtral-8x7b", "a100", {"tp": 2}),
    ("mistral-7b", "h100", {"kv_dtype": "fp8"}),
    ("gemma-3-1b", "l40s", {"tables": "roofline"}),
    ("deepseek-v3", "h200", {"tp": 8, "dtype": "fp8_block"}),
    ("llama-3.1-70b", "h100", {"tp": 2, "pp": 3}),
    ("gpt-oss-20b", "h200", {"pp": 2}),
    ("qwen3-14b", "h100", {"host": HostTerms.load("vllm-0.23-h100")}),
    ("gpt-oss-120b", "h200", {"host": HostTerms.load("vllm-0.23-h100"), "tp": 2}),
]


@cache
def cost(case: int) -> TableCostModel:
    model, gpu, options = CASES[case]
    return build_cost_model(ModelSpec.load(model), Gpu.load(gpu), **options)


@st.composite
def decodes(draw: st.DrawFn) -> tuple[Batch, list[int]]:
    contexts = draw(st.lists(st.integers(1, 20_000), min_size=1, max_size=40))
    queries = draw(st.sampled_from([1, 1, 3]))
    n = len(contexts)
    return (
        Batch(
            n * queries,
            decode_count=n,
            decode_context_sum=sum(contexts),
            decode_context_sumsq=sum(c * c for c in contexts),
            decode_context_max=max(contexts),
            queries_per_sequence=queries,
            sampled=n * queries,
            padded_tokens=draw(st.integers(0, 64)),
            bytes_moved=draw(st.sampled_from([0, 0, 12_345])),
            attention=draw(st.sampled_from(["fused", "per_request"])),
        ),
        contexts,
    )


@st.composite
def mixed(draw: st.DrawFn) -> Batch:
    batch, _ = draw(decodes())
    pieces = st.tuples(st.integers(1, 4096), st.integers(0, 16_384))
    batch.prefill = draw(st.lists(pieces, max_size=5))
    batch.linear_tokens += sum(new for new, _ in batch.prefill)
    return batch


models = st.integers(0, len(CASES) - 1).map(cost)


@given(models, mixed(), st.integers(0, 10**7), st.booleans())
def test_price_is_the_first_step_of_a_run_of_one(
    model: TableCostModel, batch: Batch, host: int, asynchronous: bool
) -> None:
    price = model.price(batch)
    assert price.ns == model.price_run(batch, 1)[0]
    assert abs(sum(price.shares) - 1.0) < 1e-9
    assert price == model.price(batch)
    assert sum(model.stages(batch)) == price.gpu_ns


@given(models, decodes(), st.integers(1, 80))
def test_a_run_is_the_steps_one_by_one(model: TableCostModel, drawn: tuple[Batch, list[int]], steps: int) -> None:
    batch, _ = drawn
    run = model.price_run(batch, steps)
    assert run.dtype == np.int64
    assert run.tolist() == [model.price(batch.advance(j)).ns for j in range(steps)]


@given(decodes(), st.integers(0, 1000))
def test_advancing_moments_is_advancing_contexts(drawn: tuple[Batch, list[int]], steps: int) -> None:
    batch, contexts = drawn
    later = batch.advance(steps)
    grown = [c + steps for c in contexts]
    assert later.decode_context_sum == sum(grown)
    assert later.decode_context_sumsq == sum(c * c for c in grown)
    assert later.decode_context_max == max(grown)


@given(models, st.integers(1, 256), st.integers(1, 20_000), st.integers(0, 20_000))
def test_longer_contexts_never_cost_less(model: TableCostModel, count: int, context: int, more: int) -> None:
    def price(c: int) -> int:
        return model.price(Batch.decodes(count, count * c, count * c * c, c)).ns

    # two measurements of nearly the same kernel may differ by noise
    assert price(context + more) >= 0.99 * price(context)


@given(models, st.integers(1, 8192), st.integers(0, 8192))
def test_more_tokens_cost_more_up_to_tile_effects(model: TableCostModel, tokens: int, more: int) -> None:
    def price(m: int) -> int:
        return model.price(Batch(m, [(m, 0)], sampled=1)).ns

    # kernels just past a tile edge are slower than larger ones measured: up to 20 % of a step
    assert price(tokens + more) >= 0.79 * price(tokens)
