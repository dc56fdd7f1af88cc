"""What a stage adds to its operators, by hand: lowered clocks, copies, samples, what it has priced."""

from __future__ import annotations

import pytest

from servesim.contracts.cost import Batch
from servesim.cost.attention import GridAttention, decode_over_sum, prefill_ns
from servesim.cost.curve import EXTRAPOLATED, MEASURED, Curve
from servesim.cost.formula import Roofline
from servesim.cost.grid import work
from servesim.cost.host import HostTerms
from servesim.cost.stage import AttentionLayers, Operator, Stage
from servesim.hardware import Gpu
from tests.unit.cost.test_by_hand import Decodes, Prompts, attention, decode, stage

ROOF = Roofline(Gpu.load("h100"))
PROMPT = Batch(10, [(10, 0)], sampled=1)


def hot(cool_ns: float, layers: int = 1) -> Stage:
    """A dense layer of 100 ns, 300 at the lowered clock, and another of 50 at either; a prompt's attention is 1000."""
    operators = [Operator("a", Curve([0, 10], [100, 100]), Curve([0, 10], [300, 300])), Operator("b", CONSTANT)]
    return Stage(operators, [], [AttentionLayers(attention(), layers)], ROOF, cool_ns=cool_ns)


CONSTANT = Curve([0, 10], [50, 50])


def test_the_part_of_a_step_after_the_clock_was_lowered_takes_longer() -> None:
    """Of 1150 ns 230, a fifth, are at the full clock: four fifths of 200 ns are added."""
    assert hot(230).lower_clock(1150, 10) == pytest.approx(160)
    assert hot(230).cost(PROMPT, 10)[0] == 1150 + 160
    assert hot(0).cost(PROMPT, 10)[0] == 1150 + 200
    for cool in (1150, 1151):
        assert hot(cool).cost(PROMPT, 10)[0] == 1150
        assert hot(cool).lower_clock(1150, 10) == 0.0
    assert hot(1149).cost(Batch(0, []), 10)[0] == 150  # shorter: never hot
    assert stage().throttling_ns(10) == 0.0


def test_what_a_lowered_clock_adds_is_of_no_source() -> None:
    assert hot(230).cost(PROMPT, 10)[1] == [1150, 0, 0, 0]


def test_a_prompt_alone_takes_the_same_as_a_step_and_as_a_run() -> None:
    one = stage()
    assert one.run(PROMPT, 10, 1).tolist() == [one.cost(PROMPT, 10)[0]] == [200 + 7 + 10 + 2000]


def test_copies_run_at_the_rates_of_the_link_and_of_the_memory_and_a_stage_does_its_share() -> None:
    moved, copied = 10**9, 10**8
    for share, options in ((1.0, {}), (0.25, {"copied": 0.25})):
        made = Stage([], [], [AttentionLayers(attention(), 1)], ROOF, **options)
        expected = share * (moved / (64e9 * 0.8) + 2 * copied / (3.35e12 * 0.8)) * 1e9
        ns, sources = made.cost(Batch(0, [], bytes_moved=moved, bytes_copied=copied), 0)
        assert ns == sources[3] == pytest.approx(expected, abs=1)


def test_contexts_that_differ_by_one_token_are_unequal() -> None:
    each = stage(skew=True)
    assert [each.skew(decode(*contexts))[0] for contexts in ((10, 11), (10, 10))] == [2 * 3, 0]
    assert each.skew(decode(10, 30, queries_per_sequence=2)) == (0, 0)
    assert each.skew(decode(10, 30, attention="per_request")) == (0, 0)


def test_drafts_are_rows_of_the_head() -> None:
    assert stage().cost(decode(10, 10, drafts=2), 6)[0] - stage().cost(decode(10, 10), 6)[0] == 2 * 10


def test_decodes_beside_a_prompt_pay_the_fixed_cost_of_a_call_once() -> None:
    """A call of attention has a floor of 300 of the prompt's 1000 ns; beside decodes 700 are left, in every layer."""
    each = attention()
    each.floor = 300.0
    made = Stage([], [], [AttentionLayers(each, 3)], ROOF)
    beside = Batch(
        12, [(10, 0)], decode_count=2, decode_context_sum=40, decode_context_sumsq=800, decode_context_max=20
    )
    assert made.cost(beside, 12)[0] == 3 * (700 + 100 * 20)
    alone = Batch(
        12,
        [(10, 0)],
        decode_count=2,
        decode_context_sum=40,
        decode_context_sumsq=800,
        decode_context_max=20,
        attention="per_request",
    )
    assert made.cost(alone, 12)[0] == 3 * (1000 + 2 * 100 * 20)


def test_what_decodes_beside_a_prompt_cost_besides_goes_by_their_mean_context_and_all_its_tokens() -> None:
    class Mixed:
        def at(self, count: int, context: float, new: int) -> tuple[float, int]:
            return count * 1.0 + context * 10.0 + new * 100.0, EXTRAPOLATED

    each = attention()
    each.mixed = Mixed()
    made = Stage([], [], [AttentionLayers(each, 2)], ROOF)
    batch = Batch(
        15, [(10, 0), (3, 0)], decode_count=2, decode_context_sum=40, decode_context_sumsq=800, decode_context_max=20
    )
    plain = Stage([], [], [AttentionLayers(attention(), 2)], ROOF).cost(batch, 15)[0]
    ns, sources = made.cost(batch, 15)
    assert ns - plain == 2 * (2 + 200 + 1300)
    assert sources == [0, 2 * 100 * 20, ns - 2 * 100 * 20, 0]  # the prompt's is now as uncertain as the excess
    each.mixed = type("Less", (), {"at": lambda *_: (-1e9, MEASURED)})()
    assert made.cost(batch, 15)[0] == 2 * 100 * 20  # never less than nothing


def test_a_front_end_is_one_process_that_sends_every_token_unless_told() -> None:
    front = HostTerms(front_in=1.6, front_in_per_token=5, front_in_per_token_by_model={"qw": 7, "qwen": 9}).front("x")
    assert (front.processes, front.stream_interval, front.in_ns, front.token_ns) == (1, 1, 2, 5)
    terms = HostTerms(front_in_per_token=5, front_in_per_token_by_model={"qw": 7, "qwen": 9})
    assert [terms.front(model, 3, 4).token_ns for model in ("qwen-8b", "qwx", "llama")] == [9, 7, 5]
    assert (terms.front("x", 3, 4).processes, terms.front("x", 3, 4).stream_interval) == (3, 4)


def test_host_time_goes_by_sequences_and_by_rows_that_sample() -> None:
    terms = HostTerms(overlapped=10.0, overlapped_per_sequence=2.0, exposed=100.0, exposed_per_sampled=30.0)
    batch = Batch(
        15,
        [(10, 0), (3, 0)],
        decode_count=2,
        decode_context_sum=40,
        decode_context_sumsq=800,
        decode_context_max=20,
        sampled=3,
    )
    assert terms.host(batch)[:2] == (10 + 2 * 4, 100 + 30 * 3)


def test_steps_with_prompts_are_launched_layer_by_layer() -> None:
    terms = HostTerms(eager_per_layer=3.0, eager_per_mixture=50.0, eager_per_mixture_by_experts={"mxfp4": 70.0})
    assert terms.eager_ns(5, 2) == 3 * 3 + 2 * 50
    assert terms.with_experts("mxfp4", "auto").eager_ns(5, 2) == 3 * 3 + 2 * 70
    assert terms.with_experts("bf16", "auto") is terms
    assert terms.with_experts("mxfp4", "mxfp8") is terms  # another kernel than Triton's


def test_batches_are_padded_to_the_next_graph() -> None:
    sizes = HostTerms(pads_to_graphs=True).padding()
    assert [sizes[n] for n in (0, 1, 3, 4, 5, 8, 9, 248, 249, 256, 257, 272, 273, 512)] == [
        0, 1, 4, 4, 8, 8, 16, 248, 256, 256, 272, 272, 288, 512
    ]  # fmt: skip
    assert (len(sizes), HostTerms().padding()) == (513, [])


def test_kernels_launched_are_one_for_each_run_and_layer() -> None:
    operators = [Operator("a", CONSTANT, runs=3), Operator("experts", CONSTANT, runs=2)]
    made = Stage(operators, [Operator("head", CONSTANT)], [AttentionLayers(attention(), 4)] * 2, ROOF)
    assert (made.launches(True), made.launches(False)) == (3 + 2 + 8 + 1, 3 + 2 + 8)
    assert (made.layers, made.mixtures) == (8, 2)


def test_steps_priced_elsewhere_count_in_what_lay_outside_the_tables() -> None:
    class Unknown(Prompts):
        def at(self, count: float, each: float) -> tuple[float, int]:
            return 1000.0, EXTRAPOLATED

    def made() -> Stage:
        operators = [Operator("a", Curve([0, 4], [0, 4]))]
        unknown = GridAttention(Decodes(), Unknown(), 0.0, 0)  # type: ignore[arg-type]
        return Stage(operators, [Operator("head", Curve([0, 2], [0, 2]))], [AttentionLayers(unknown, 1)], ROOF)

    here, there = made(), made()
    there.cost(Batch(10, [(9, 5)], sampled=3), 10)
    there.cost(decode(400, 800), 2)
    told = there.extrapolated({2: 2400})
    assert told == {
        "a": "up to 10 rows, measured up to 4",
        "head": "up to 3 rows, measured up to 2",
        "attention_prefill": "prefill of new tokens over cached ones, up to 14 tokens attended to",
        "attention_decode": "contexts up to 1,200 of 2 sequences, measured up to 1,000",
    }
    assert here.extrapolated({}) == {}
    assert here.priced() == (None, None, (), 0, False)
    here.add_priced(there.priced())
    assert here.extrapolated({2: 2400}) == told
    assert here.priced() == there.priced() == (10, 3, ((2, 1, "fused"),), 14, True)
    here.add_priced(made().priced())
    assert here.extrapolated({2: 2400}) == told


def test_a_prompt_over_cached_tokens_takes_at_least_a_decode_step_over_them() -> None:
    assert prefill_ns(attention(), [(2, 3)], False) == (1000, EXTRAPOLATED)
    assert prefill_ns(attention(), [(2, 98)], False) == (100 * 100, EXTRAPOLATED)
    assert prefill_ns(attention(), [(100, 0)], False) == (1000, MEASURED)


def test_verifying_drafts_takes_at_least_the_prefill_of_their_tokens_over_the_context() -> None:
    """The prefill's knot lies at the work of two queries over half a token: a context of 2.5, where its 400 ns are
    above the decode's 250; there are three layers."""
    knot = work(2, 0.5)

    class Knots(Prompts):
        def curve(self, count: int) -> Curve:
            return Curve([0, knot, 2 * knot], [0, 400, 400])

    each = GridAttention(Decodes(), Knots(), 0.0, 0)  # type: ignore[arg-type]
    curve = decode_over_sum(each, 1, 2, False, 3)
    assert curve.xs[:3] == [0, 2, 2.5]
    assert curve.at(2.5) == 3 * 400


def test_a_launch_for_each_request_is_as_many_calls_of_one_sequence_each() -> None:
    class BySize(Decodes):
        """1000 ns for each sequence of a call, and one for each token of mean context."""

        def curve(self, count: int) -> Curve:
            return Curve([0, 100], [1000 * count, 1000 * count + 100])

    each = GridAttention(BySize(), Prompts(), 0.0, 0)  # type: ignore[arg-type]
    apart, together = (decode_over_sum(each, 3, 1, per_request, 2) for per_request in (True, False))
    assert (apart.at(3 * 20), together.at(3 * 20)) == (2 * 3 * 1020, 2 * 3020)


def test_a_step_that_samples_nothing_pays_for_no_row_of_the_head() -> None:
    head = [Operator("head", Curve([1, 4], [30, 40]))]
    made = Stage([Operator("a", CONSTANT)], head, [AttentionLayers(attention(), 1)], ROOF)
    assert [made.cost(Batch(10, [(10, 0)], sampled=n), 10)[0] for n in (0, 1, 4)] == [1050, 1080, 1090]


def test_the_price_of_unequal_contexts_is_over_their_sum_alone_where_their_excess_is_not_paid() -> None:
    each = stage(skew=True)
    assert each.over_contexts(decode(10, 30), 2, 40) is None
    for free in ({"queries_per_sequence": 2}, {"attention": "per_request"}):
        assert each.over_contexts(decode(10, 30, **free), 2, 40) is not None  # type: ignore[arg-type]
    assert stage().over_contexts(decode(10, 30), 2, 40) is not None
