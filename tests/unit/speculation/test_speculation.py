"""Speculation: what drafts bring, what they cost, and that every policy meets the same luck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import servesim
from servesim.contracts import Batch, CostModel, Request, acceptance_models, build_params, speculators
from servesim.cost import build_cost_model
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec
from servesim.policies.speculation._length import Goodput, SglangAdaptive, parse_table, verification
from servesim.traces.acceptance import _delivered, luck
from servesim.traces.acceptance.independent import expected_tokens
from tests.support.examples import examples
from tests.support.worlds import World, toy_trace

TARGET = ModelSpec.load("llama-3.1-8b")


def speculator(spec: str) -> Any:
    cls, values = speculators.resolve(spec)
    return cls(build_params("speculation", cls.Params, dict(values)), TARGET)


def acceptance(spec: str, seed: int = 0) -> Any:
    cls, values = acceptance_models.resolve(spec)
    return cls(build_params("acceptance", cls.Params, dict(values)), seed)


def run(**settings: Any) -> servesim.Result:
    base = {"trace": "synth:rate=2,prompt=200,output=40", "requests": 40, "model": "llama-3.1-8b", "gpu": "h200"}
    return servesim.simulate({**base, **settings})


@dataclass
class Leviathan(CostModel):
    """A target pass costs the same whatever it verifies; a draft pass a share of it."""

    share: float = 0.1

    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        return np.full(k, round(1_000_000 * (1 + self.share * batch.draft_k)), dtype=np.int64)


@pytest.mark.medium
@examples(8)
@given(st.floats(0.3, 0.95), st.integers(1, 7), st.floats(0.0, 0.5))
def test_batch_1_speed_up_is_leviathan_s(alpha: float, k: int, share: float) -> None:
    trace = toy_trace([0], [1], [100_000])
    plain = World(trace, num_blocks=10_000, cost=Leviathan()).run()
    world = World(
        trace,
        num_blocks=10_000,
        cost=Leviathan(share),
        speculation=f"eagle:k={k}",
        acceptance=f"independent:alpha={alpha}",
    )
    drafted = world.run()
    expected = expected_tokens(alpha, k) / (k * share + 1)
    assert plain.now_ns / drafted.now_ns == pytest.approx(expected, rel=0.01)
    stats = drafted.replicas[0].core.spec_stats
    assert 1 + stats.accepted / stats.drafts == pytest.approx(expected_tokens(alpha, k), rel=0.01)


DRAFTERS = (
    "eagle3:k=3", "eagle:k=1", "draft-model:k=4,model=llama-3.2-1b", "medusa:k=3,width=2", "early-exit:k=2",
    "ngram:k=4",
)  # fmt: skip


@pytest.mark.medium
@given(
    st.sampled_from(DRAFTERS),
    st.sampled_from([("llama-3.1-8b", "h200"), ("qwen3-8b", "l40s"), ("mistral-7b", "h100")]),
    st.lists(st.integers(1, 20_000), min_size=1, max_size=20),
    st.lists(st.integers(0, 30_000), min_size=1, max_size=20),
)
def test_steps_priced_by_their_contexts_cost_what_each_of_them_does(
    method: str, where: tuple[str, str], contexts: list[int], more: list[int]
) -> None:
    """A step delivers a different number of tokens to each request, so only the sums are told."""
    drafter, n = speculator(method), len(contexts)
    model = build_cost_model(ModelSpec.load(where[0]), Gpu.load(where[1]), speculator=drafter)
    drafts, k = drafter.verified(drafter.max_drafts), drafter.max_drafts

    def verification(added: int) -> Batch:
        now = [contexts[0] + added, *contexts[1:]]
        total = sum(now)
        squares = sum(c * c for c in now)
        return Batch(
            n * (1 + drafts),
            decode_count=n,
            decode_context_sum=total,
            decode_context_sumsq=squares,
            decode_context_max=max(now),
            queries_per_sequence=1 + drafts,
            sampled=n,
            drafts=n * drafts,
            draft_k=k,
            sampled_context=total,
        )

    batches = [verification(added) for added in sorted(more)]
    over = model.over_contexts(batches[0])
    assert over is not None
    found, _ = over.price(np.array([batch.decode_context_sum for batch in batches]))
    assert found.tolist() == [int(model.gpu_run(batch, 1)[0]) for batch in batches]


def test_a_drafter_that_reads_no_more_than_a_window_is_priced_step_by_step() -> None:
    model = build_cost_model(TARGET, Gpu.load("h200"), speculator=speculator("sparse-kv:k=2"))
    batch = Batch(
        3,
        decode_count=1,
        decode_context_sum=100,
        decode_context_sumsq=10_000,
        decode_context_max=100,
        queries_per_sequence=3,
        sampled=1,
        drafts=2,
        draft_k=2,
        sampled_context=100,
    )
    assert model.over_contexts(batch) is None


@given(st.integers(0, 50), st.integers(0, 600), st.integers(1, 7), st.integers(1, 7))
def test_whatever_is_drafted_the_luck_of_a_token_is_the_same(row: int, position: int, few: int, more: int) -> None:
    few, more = sorted((few, more))
    request = Request(row, "r", 10, 1000, 0)
    for spec in ("independent:alpha=0.8", "positions:marginal=0.8/0.5/0.4", "copy:", "mixture:", "synthetic:length=4"):
        model = acceptance(spec)
        assert model.accepted(request, position, few) == min(few, model.accepted(request, position, more))


@given(st.integers(0, 50), st.integers(0, 600), st.integers(0, 600), st.integers(1, 7), st.integers(1, 3))
def test_a_walk_is_the_steps_one_by_one(row: int, position: int, length: int, drafts: int, width: int) -> None:
    request, until = Request(row, "r", 10, 2000, 0), position + length
    for spec in ("positions:marginal=0.8/0.5/0.4,spread=0.1", "copy:", "mixture:", "synthetic:length=4"):
        model, at = acceptance(spec), position
        for gained in model.walk(request, position, until, drafts, width):
            assert at < until
            assert gained == 1 + model.accepted(request, at, drafts, width)
            at += gained
        assert at >= until


@pytest.mark.parametrize(
    "spec", ["independent:alpha=0.7", "positions:conditional=0.6/0.9/0.5", "mixture:", "synthetic:length=2.6"]
)
def test_rates_are_what_is_accepted(spec: str) -> None:
    model, n = acceptance(spec), 40_000
    got = [model.accepted(Request(i % 400, "r", 1, 1, 0), 7 * (i // 400), 4) for i in range(n)]
    seen = [sum(a > j for a in got) / n for j in range(4)]
    assert seen == pytest.approx(model.rates(4), abs=0.05 if spec.startswith("mixture") else 0.012)


def test_requests_that_differ_have_the_rates_of_all_and_the_spread_asked_for() -> None:
    """2.5 tokens a pass: 1000 requests of equal length take 400 passes a thousand tokens, with a deviation of a quarter
    of that; their drafts together are accepted as asked for."""
    marginal = [0.8, 0.45, 0.25]
    model = acceptance("positions:marginal=0.8/0.45/0.25,spread=0.25")
    kinds = [model.conditional(Request(row, "r", 1, 1, 0)) for row in range(1000)]
    rates = np.cumprod(np.array(kinds), axis=1)
    passes = 1 / (1 + rates.sum(axis=1))
    assert passes.mean() == pytest.approx(1 / 2.5, rel=0.005)
    assert passes.std() / passes.mean() == pytest.approx(0.25, rel=0.03)
    assert rates.T @ passes / passes.sum() == pytest.approx(model.rates(3), abs=0.01)
    assert sum(model.rates(3)) == pytest.approx(sum(marginal), abs=1e-6)
    few = 1 / np.mean(passes[:20])
    assert few == pytest.approx(2.5, rel=0.05), "evenly distributed, so that twenty requests are enough"
    assert model.conditional(Request(7, "r", 1, 1, 0)) == kinds[7], "whoever asks, whenever"
    alike = acceptance("positions:marginal=0.8/0.45/0.25")
    assert alike.conditional(Request(7, "r", 1, 1, 0)) == alike.conditional(Request(8, "r", 1, 1, 0))


def test_copied_text_is_accepted_as_measured_for_prompt_lookup() -> None:
    """vLLM PR 24344, k = 5: .81 .74 .70 .68 .66 a draft, 2.96 tokens a step."""
    model = acceptance("copy:")
    assert model.rates(5) == pytest.approx([0.81, 0.74, 0.70, 0.68, 0.66], abs=0.03)
    world = World(toy_trace([0] * 20, [1] * 20, [2000] * 20), num_blocks=4000, speculation="ngram:k=5")
    world.acceptance = "copy:"
    cluster = world.run()
    sequences = int((cluster.recorder.steps.column("sampled") * cluster.recorder.steps.column("k")).sum())
    assert 20 * 2000 / sequences == pytest.approx(2.96, abs=0.12)
    rates = np.diff([1.0, *model.rates(5)])
    assert (np.diff(rates[1:]) > 0).all(), "conditional acceptance rises"


def test_trees_verify_nodes_and_accept_by_depth() -> None:
    medusa = speculator("medusa:k=3,width=2")
    assert [medusa.verified(depth) for depth in range(4)] == [0, 2, 6, 14]
    assert [medusa.depth(nodes) for nodes in (0, 1, 2, 5, 6, 13, 14)] == [0, 0, 1, 1, 2, 2, 3]
    model = acceptance("independent:alpha=0.5")
    requests = [Request(row, "r", 1, 1, 0) for row in range(8000)]
    first = sum(model.accepted(r, 0, 1, width=2) for r in requests) / 8000
    assert first == pytest.approx(0.75, abs=0.02)


def test_passes_by_hand() -> None:
    """Two decodes that verified 3 drafts each and a prompt of 10: EAGLE's head goes over all 18 tokens, then over one
    token of each of the three sequences."""
    batch = Batch(
        18,
        [(10, 0)],
        decode_count=2,
        decode_context_sum=108,
        decode_context_max=60,
        queries_per_sequence=4,
        sampled=3,
        drafts=6,
        draft_k=3,
        sampled_context=118,
    )
    first, second, third = speculator("eagle3:k=3").passes(batch, 3)
    assert (first.linear_tokens, first.prefill, first.sampled, first.drafts) == (18, [(10, 0)], 3, 0)
    assert (second.linear_tokens, second.decode_count, second.decode_context_sum) == (3, 3, 118 + 3)
    assert third.decode_context_sum == 118 + 6
    assert len(speculator("eagle3:k=3").passes(batch, 0)) == 1, "the head's KV stays in step without drafts"
    assert [p.linear_tokens for p in speculator("medusa:k=2").passes(batch, 2)] == [3, 3]
    assert [p.decode_context_sum for p in speculator("early-exit:k=2").passes(batch, 2)] == [121, 124]


def test_drafting_and_verifying_are_priced() -> None:
    h200 = Gpu.load("h200")
    methods = ("ngram", "medusa", "eagle3", "eagle")
    costs = {s: build_cost_model(TARGET, h200, speculator=speculator(s)) for s in methods}
    costs["draft-model"] = build_cost_model(TARGET, h200, speculator=speculator("draft-model:model=llama-3.2-1b"))
    plain = build_cost_model(TARGET, h200)
    one = Batch.decodes(1, 1000, longest=1000)
    verify = Batch(
        4,
        decode_count=1,
        decode_context_sum=1003,
        decode_context_max=1003,
        queries_per_sequence=4,
        sampled=1,
        drafts=3,
        draft_k=3,
        sampled_context=1003,
    )
    prices = {name: cost.price(verify) for name, cost in costs.items()}
    base = plain.price(verify).ns
    assert plain.price(one).ns < base < 1.25 * plain.price(one).ns, "weights are read once"
    assert prices["ngram"].gpu_ns == base
    assert prices["ngram"].ns == base + 20_000
    assert base < prices["medusa"].gpu_ns < prices["eagle"].gpu_ns
    order = ["ngram", "eagle3", "eagle", "draft-model"]
    assert [prices[name].gpu_ns for name in order] == sorted(prices[name].gpu_ns for name in order)
    for cost in costs.values():
        assert cost.price(verify).ns == int(cost.price_run(verify, 1)[0])


def test_batch_expansion_reads_the_context_for_every_draft() -> None:
    """One sequence of context 100 that verifies 2 drafts: 98 + 99 + 100 instead of 100."""
    world = World(toy_trace([0], [90], [40]), speculation="eagle:k=2,scorer=batch-expansion", acceptance="copy:")
    steps = world.run().recorder.steps
    drafted = steps.column("drafts") == 2
    plain = World(toy_trace([0], [90], [40]), speculation="eagle:k=2", acceptance="copy:").run().recorder.steps
    assert (steps.column("decode_count")[drafted] == 3).all()
    first = plain.column("decode_context")[plain.column("drafts") == 2][0]
    assert steps.column("decode_context")[drafted][0] == 3 * first - 3


def test_draft_weights_and_kv_take_memory() -> None:
    blocks = {
        s: run(speculation=s).scenario.engine.num_gpu_blocks
        for s in ("none", "ngram", "early-exit", "eagle3", "draft-model:model=llama-3.2-1b")
    }
    assert blocks["none"] == blocks["ngram"] == blocks["early-exit"]
    assert blocks["none"] > blocks["eagle3"] > blocks["draft-model:model=llama-3.2-1b"]


def test_what_is_assumed_and_what_came_of_it_is_reported() -> None:
    result = run(speculation="eagle3:k=3")
    assert any("acceptance rates are assumed (0.73/0.52/0.35" in note for note in result.summary["warnings"])
    figures = result.summary["speculation"]
    assert figures["per_position_acceptance_rates"] == pytest.approx([0.73, 0.52, 0.355], abs=0.06)
    assert figures["acceptance_length"] == pytest.approx(1 + sum(figures["per_position_acceptance_rates"]))
    assert figures["unverified_tokens"] > 0, "drafts of answers that end are not verified"
    assert run().summary["speculation"] is None
    again = run(**result.scenario.model_dump())
    assert again.summary["speculation"] == figures


def test_settings_that_change_nothing_are_reported() -> None:
    def notes(**given: Any) -> str:
        summary = run(**given).summary
        return " ".join([*summary["warnings"], *summary["notes"]])

    one_token = {"trace": "synth:rate=2,prompt=200,output=1"}
    assert "every request has one output token" in notes(speculation="eagle3", **one_token)
    assert "no draft was ever verified" in notes(speculation="eagle3:k=2,adapt=table,table=1-9999:0")
    assert "no draft is ever accepted" in notes(speculation="eagle3", acceptance="independent:alpha=0")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"speculation": "eagle4"}, 'did you mean "eagle'),
        ({"speculation": "eagle3:k=0"}, "k is 0"),
        ({"speculation": "eagle3:k=2,adapt=often"}, "adapt is 'often'"),
        ({"speculation": "eagle3:k=2,adapt=table,table=5-1:2"}, "ranges of batch sizes must ascend"),
        ({"speculation": "draft-model"}, "specify the drafter"),
        ({"speculation": "early-exit:layers=99"}, "must be below 32"),
        ({"acceptance": "independent:alpha=0.5"}, "has no effect without speculation"),
        ({"speculation": "eagle3", "acceptance": "positions:marginal=0.5/0.6"}, "must not increase"),
        ({"speculation": "eagle3", "acceptance": "positions:"}, "specify marginal"),
        ({"speculation": "eagle3", "acceptance": "positions:marginal=0.5,spread=2"}, "spread is 2"),
        ({"speculation": "eagle3", "acceptance": "positions:marginal=0.1,spread=0.9"}, "it can be at most 0"),
        ({"speculation": "eagle3", "acceptance": "independent:alpha=1.5"}, "must be probabilities from 0 to 1"),
        ({"speculation": "eagle3", "acceptance": "recorded:path=nowhere.jsonl"}, "file 'nowhere.jsonl' does not exist"),
    ],
)
def test_bad_settings_get_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        run(**given)
    assert "\n" not in str(error.value)


def test_recorded_acceptance_is_replayed(tmp_path: Any) -> None:
    file = tmp_path / "right.jsonl"
    file.write_text('{"row": 0, "right": "1110"}\n{"row": 1, "right": "0"}\n')
    model = acceptance(f"recorded:path={file}")
    first, second = (Request(row, "r", 1, 1, 0) for row in (0, 1))
    assert [model.accepted(first, position, 4) for position in range(4)] == [3, 2, 1, 0]
    assert model.accepted(second, 5, 4) == 0
    assert model.rates(2) == pytest.approx([3 / 5, 2 / 5])
    file.write_text('{"row": 0, "right": "12"}\n')
    with pytest.raises(UserError, match=r"right\.jsonl: line 1"):
        acceptance(f"recorded:path={file}")


@given(st.integers(1, 256), st.integers(200, 8000), st.floats(0.2, 0.95))
@examples(40)
def test_the_oracle_bounds_every_k(count: int, context: int, alpha: float) -> None:
    drafter = speculator("eagle3:k=5,adapt=oracle")
    model = acceptance(f"independent:alpha={alpha}")
    cost = _h200_eagle()
    drafter.rates, drafter.price = model.rates, lambda batch: cost.price(batch).ns
    total = count * context
    batch = Batch.decodes(count, total, longest=context)
    depths = range(drafter.max_drafts + 1)
    speed = [(1 + sum(model.rates(k))) / drafter.price(verification(batch, k, drafter)) for k in depths]
    assert speed[drafter.limit(batch)] == max(speed)


def _h200_eagle() -> Any:
    if not _COSTS:
        _COSTS.append(build_cost_model(TARGET, Gpu.load("h200"), speculator=speculator("eagle3:k=5")))
    return _COSTS[0]


_COSTS: list[Any] = []


def test_goodput_learns_the_acceptance_it_meets() -> None:
    drafter = speculator("eagle3:k=3,adapt=goodput")
    learner = Goodput(drafter)
    for _ in range(400):
        learner.observe([(3, 0), (3, 1), (3, 3), (3, 3)])
    assert learner._marginal() == pytest.approx([0.75, 0.5, 0.5], abs=0.01)


def test_tables_by_batch_size_carry_over_gaps() -> None:
    drafter = speculator("eagle3:k=3,adapt=table,table=1-16:3/32-128:2/256-2048:0")
    assert parse_table("1-16:3/32-128:2") == [(1, 16, 3), (32, 128, 2)]
    sizes = {1: 3, 16: 3, 31: 3, 32: 2, 129: 2, 256: 0}
    assert {n: drafter.limit(Batch(n, decode_count=n, decode_context_sum=n)) for n in sizes} == sizes


class Priced:
    """A drafter of up to three drafts; a step takes what a list says of its number of drafts."""

    max_drafts, needs, expands = 3, frozenset[str](), False

    def __init__(self, *costs: float) -> None:
        self.costs = costs

    def verified(self, k: int) -> int:
        return k

    def price(self, batch: Batch) -> float:
        return self.costs[batch.drafts]


def test_goodput_takes_the_length_of_the_most_tokens_per_second_up_to_the_longest() -> None:
    """With 0.7 at each position 1, 1.7, 2.19 and 2.533 tokens are expected."""
    one = Batch(1, decode_count=1, sampled=1)
    for costs, best in (((1, 1, 1, 1), 3), ((1, 1.1, 1.2, 9), 2), ((1, 1.1, 9, 9), 1), ((1, 2, 3, 4), 0)):
        assert Goodput(Priced(*costs)).limit(one) == best  # type: ignore[arg-type]
    assert Goodput(Priced(1, 1, 1, 1)).limit(Batch(1)) == 0  # type: ignore[arg-type]


def test_what_a_step_delivers_is_told_by_the_draws_of_its_positions() -> None:
    """Row 33 is the second of the second block of 32; position 130 the third of the second chunk of 128."""
    chances = (0.9, 0.6, 0.5)
    delivered = _delivered(5, 1, 1, chances)[1]
    for position in range(128, 256):
        right = [luck(5, "accept", 33, position + j) < chance for j, chance in enumerate(chances)]
        assert delivered[position - 128] == 1 + [*right, False].index(False)


@pytest.mark.parametrize(("k", "lengths"), [(7, [3, 3, 1, 0]), (2, [1, 1, 1, 0]), (0, [0, 0, 0, 0])])
def test_sglangs_adaptive_drafts_begin_with_the_most_up_to_three_that_the_batch_allows(
    k: int, lengths: list[int]
) -> None:
    class Most(Priced):
        max_drafts = k

    sizes = (1, 8, 32, 64)
    assert [SglangAdaptive(Most()).limit(Batch(n, sampled=n)) for n in sizes] == lengths  # type: ignore[arg-type]
