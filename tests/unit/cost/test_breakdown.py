"""Operators of a step add up to its price; arithmetic and bytes are those counted by hand."""

from __future__ import annotations

import pytest

from servesim.contracts.cost import Batch
from servesim.cost import build_cost_model
from servesim.cost.breakdown import ATTENTION_DECODE, ATTENTION_PREFILL, DRAFTING, breakdown
from servesim.cost.host import HostTerms
from servesim.cost.work import step_work
from servesim.hardware import Gpu, ModelSpec

BATCHES = (
    Batch.decodes(8, 9000, longest=2000),
    Batch(2000, prefill=[(1500, 0), (500, 700)], sampled=1),
    Batch(
        1034,
        [(1024, 512)],
        decode_count=10,
        decode_context_sum=12_345,
        sampled=11,
        padded_tokens=6,
        bytes_moved=1 << 20,
        bytes_copied=1 << 24,
    ),
    Batch(32, decode_count=8, decode_context_sum=9000, queries_per_sequence=4, sampled=8),
)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("model", "gpu", "tp", "pp"),
    [("llama-3.1-8b", "h200", 1, 1), ("llama-3.1-70b", "h100", 4, 2), ("gpt-oss-20b", "h100", 1, 1)],
)
def test_operators_add_up_to_the_price(model: str, gpu: str, tp: int, pp: int, batch: Batch) -> None:
    host = HostTerms(pads_to_graphs=True, sustained_after=1e6, sustained_flops_share=0.4)
    cost = build_cost_model(ModelSpec.load(model), Gpu.load(gpu), tp, pp=pp, host=host)
    parts = breakdown(cost, batch)
    assert sum(parts.values()) == pytest.approx(cost.price(batch).gpu_ns, abs=pp)
    assert (ATTENTION_PREFILL in parts) == bool(batch.prefill)
    assert (ATTENTION_DECODE in parts) == bool(batch.decode_count)
    assert min(parts.values()) > 0


def test_drafts_are_an_operator_of_their_own_and_verified_in_the_head() -> None:
    from servesim.contracts import build_params, speculators

    model = ModelSpec.load("llama-3.1-8b")
    method, _ = speculators.resolve("eagle3")
    speculator = method(build_params("eagle3", method.Params, {"k": 3}), model)
    cost = build_cost_model(model, Gpu.load("h100"), speculator=speculator)
    batch = Batch(32, decode_count=8, decode_context_sum=9000, queries_per_sequence=4, sampled=8, drafts=24, draft_k=3)
    batch.sampled_context = 9000
    parts = breakdown(cost, batch)
    assert parts[DRAFTING] > 0
    assert sum(parts.values()) == pytest.approx(cost.price(batch).gpu_ns, abs=4)
    fewer = Batch.decodes(8, 9000)
    plain = build_cost_model(model, Gpu.load("h100"))
    assert parts["lm_head"] == breakdown(plain, batch)["lm_head"] > breakdown(plain, fewer)["lm_head"]
    assert breakdown(cost, fewer)[DRAFTING] < parts[DRAFTING]


TINY = ModelSpec(
    name="tiny", num_layers=2, hidden_size=4, num_heads=2, num_kv_heads=1, head_dim=2, intermediate_size=8,
    vocab_size=10, max_position=64,
)  # fmt: skip
LAYER = 4 * (4 + 2 * 2) + 4 * 4 + 3 * 4 * 8 + 2 * 4  # qkv, attention out, MLP, norms


def test_work_of_decode_steps_is_counted_by_hand() -> None:
    flops, data = step_work(TINY, Batch.decodes(3, 30))
    assert flops == 2 * 2 * LAYER * 3 + 2 * 4 * 10 * 3 + 2 * (4 * 4 * 30)
    weights = 2 * (2 * LAYER + 10 * 4 + 4)  # layers, LM head, final norm
    assert data == weights + 2 * (30 + 3) * 2 * 2 * 2


def test_work_of_prompts_counts_pairs_within_and_before_them() -> None:
    flops, data = step_work(TINY, Batch(5, prefill=[(5, 7)], sampled=0))
    assert flops == 2 * 2 * LAYER * 5 + 2 * (4 * 4 * (5 * 7 + 15))
    assert data == 2 * (2 * LAYER + 10 * 4 + 4) + 2 * (7 + 5) * 2 * 2 * 2


def test_experts_are_read_as_far_as_tokens_use_them() -> None:
    model = ModelSpec.load("gpt-oss-20b")
    few = step_work(model, Batch.decodes(1, 1))[1]
    many = step_work(model, Batch(4096, prefill=[(4096, 0)], sampled=1))[1]
    assert few < 0.45 * many
