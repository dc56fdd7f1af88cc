"""The step clock of Dynamo's simulator, by hand."""

from __future__ import annotations

import pytest

from servesim.contracts.cost import Batch
from servesim.errors import UserError
from servesim_lab.dynamo.cost import Fixed, MockerCost, Polynomial, timing_of

KV = 10_000


def decodes(contexts: list[int], **more: object) -> Batch:
    n = len(contexts)
    return Batch(n, sampled=n, sampled_context=sum(contexts), **more)  # type: ignore[arg-type]


def test_prompts_and_decodes_are_added() -> None:
    cost = MockerCost(Fixed(10.0, 2.0), KV)
    prompt = Batch(100, sampled=1, sampled_context=100, prompts=[(100, 0, 100, 100)])
    mixed = Batch(102, sampled=3, sampled_context=600, prompts=[(100, 0, 100, 100)])
    assert [cost.price(batch).gpu_ns for batch in (prompt, decodes([50]), mixed)] == [10_000_000, 2_000_000, 12_000_000]


def test_a_chunk_that_leaves_its_prompt_unfinished_is_no_decode() -> None:
    assert MockerCost(Fixed(10.0, 2.0), KV).price(Batch(64, prompts=[(64, 0, 100, 100)])).gpu_ns == 10_000_000


def test_the_polynomials() -> None:
    cost = MockerCost(Polynomial(), KV)
    prompt = Batch(1000, sampled=1, sampled_context=1000, prompts=[(1000, 0, 1000, 1000)])
    assert cost.price(prompt).gpu_ns == 32_105_859  # 0.4209989 + 15.18344 + 16.50142 ms
    assert cost.price(decodes([2000, 3000])).gpu_ns == 26_310_000  # half of the memory: -6.435 + 27.005 + 5.74 ms
    assert cost.price(decodes([9000, 9000])).gpu_ns == 34_010_000  # never more than all of it


def test_means_of_prompts_are_rounded_down() -> None:
    """Prompts of 101 and 50 tokens, 16 of which are cached: means 75 and 8, so 2 x 67 tokens instead of 135."""
    cost = MockerCost(Polynomial(), KV)
    both = Batch(135, sampled=2, sampled_context=151, prompts=[(101, 0, 101, 101), (34, 16, 50, 50)])
    assert cost.price(both).gpu_ns == int(Polynomial().prefill_ms(134) * 1e6 + 0.5)


def test_what_was_lost_is_paid_by_its_prompt_and_as_a_decode() -> None:
    """Of 53 tokens known, 50 of them the prompt, 32 are cached: 18 of the prompt, and a decode of 53."""
    cost = MockerCost(Polynomial(), KV)
    again = Batch(21, sampled=1, sampled_context=53, prompts=[(21, 32, 50, 53)])
    prompt_ns, decode_ns = Polynomial().prefill_ms(18) * 1e6, cost.price(decodes([53])).gpu_ns
    assert cost.price(again).gpu_ns == int(prompt_ns + decode_ns + 0.5)
    generated = Batch(5, sampled=1, sampled_context=53, prompts=[(5, 48, 48, 53)])
    assert cost.price(generated).gpu_ns == decode_ns
    assert cost.price(Batch(3, prompts=[(3, 48, 48, 53)])).gpu_ns == 1  # not yet to the end, and no prompt: an instant


def test_where_batches_are_separate_all_that_is_computed_again_is_a_prompt() -> None:
    cost = MockerCost(Polynomial(), KV, separate=True)
    again = Batch(21, sampled=1, sampled_context=53, prompts=[(21, 32, 50, 53)])
    assert cost.price(again).gpu_ns == int(Polynomial().prefill_ms(21) * 1e6 + 0.5)


def test_a_run_of_decodes_costs_what_its_steps_do() -> None:
    cost, batch = MockerCost(Polynomial(), KV), Batch(2, sampled=2, sampled_context=4000, decode_count=2)
    each = []
    for _ in range(40):
        each.append(cost.price(batch).gpu_ns)
        batch = batch.advance(1)
    first = Batch(2, sampled=2, sampled_context=4000, decode_count=2)
    assert cost.gpu_run(first, 40).tolist() == each


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"type": "external"},
        {"type": "polynomial", "prefill_ms": 1},
        {"type": "fixed", "prefill_ms": 1},
        {"type": "fixed", "prefill_ms": -1, "decode_ms": 1},
        {"type": "fixed", "prefill_ms": "soon", "decode_ms": 1},
    ],
)
def test_other_times_are_refused(model: dict[str, object]) -> None:
    with pytest.raises(UserError, match="timing_model"):
        timing_of(model)
