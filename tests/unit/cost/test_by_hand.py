"""Prices and their sources by hand: curves and kernels of round numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servesim.contracts.cost import NO_HOST, Batch, Split
from servesim.cost.attention import GridAttention, prefill_ns
from servesim.cost.build import build_cost_model
from servesim.cost.context_pricing import OverContexts, Pass
from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED, ROOFLINE, Curve, whole
from servesim.cost.curves import upper
from servesim.cost.formula import Roofline
from servesim.cost.graph import LayerGraph
from servesim.cost.host import host_terms
from servesim.cost.linear import GemmTables
from servesim.cost.sources import CurveSources, SumSources
from servesim.cost.stage import AttentionLayers, Operator, Stage
from servesim.cost.tables import KernelTables
from servesim.hardware import Gpu, ModelSpec

ROOF = Roofline(Gpu.load("h100"))
CURVE = Curve([0, 100, 200], [50, 150, 350], [MEASURED, MEASURED, INTERPOLATED])  # then 1.75 ns each


class Prompts:
    """A grid of prompts that says what it was asked: 1000 ns a piece."""

    def curve(self, count: int) -> Curve:
        return Curve([0, 1000], [0, 1000 * count])

    def at(self, count: float, each: float) -> tuple[float, int]:
        return 1000.0 * count, MEASURED


class Decodes(Prompts):
    """100 ns a token of mean context, however many sequences."""

    def curve(self, count: int) -> Curve:
        return Curve([0, 1000], [0, 100_000])


class Unequal:
    """Three nanoseconds for each token by which contexts are shorter than the longest; six beside a prompt."""

    def at(self, count: int, excess: int, beside: bool) -> tuple[float, int]:
        return (6.0 if beside else 3.0) * excess, EXTRAPOLATED


def attention(window: int = 0) -> GridAttention:
    return GridAttention(Decodes(), Prompts(), 0.0, window)  # type: ignore[arg-type]


def decode(*contexts: int, **more: int) -> Batch:
    batch = Batch.decodes(len(contexts), sum(contexts), sum(x * x for x in contexts), max(contexts))
    return replace(batch, **more)


def stage(skew: bool = False, layers: int = 2) -> Stage:
    each = attention()
    if skew:
        each.skew = Unequal()
    linear = [Operator("a", Curve([0, 10], [100, 200])), Operator("b", Curve([0, 10], [7, 7], ROOFLINE))]
    return Stage(linear, [Operator("head", Curve([0, 4], [0, 40]))], [AttentionLayers(each, layers)], ROOF)


def test_a_step_is_its_operators_and_each_comes_from_its_source() -> None:
    ns, sources = stage().cost(decode(10, 30), 2)
    # linear 120 and 7, head 20, attention of 2 layers over a mean of 20 tokens: 2 * 2000
    assert (ns, sources) == (120 + 7 + 20 + 4000, [0, 120 + 20 + 4000, 0, 7])


def test_attention_of_a_prompt_has_its_share() -> None:
    ns, sources = stage().cost(Batch(10, [(10, 0)], sampled=1), 10)
    assert (ns, sources) == (200 + 7 + 10 + 2 * 1000, [200 + 2 * 1000, 10, 0, 7])


def test_unequal_contexts_cost_more_in_every_layer_and_equal_ones_do_not() -> None:
    even, _ = stage().cost(decode(20, 20), 2)
    assert stage(skew=True).cost(decode(20, 20), 2)[0] == even
    uneven, sources = stage(skew=True, layers=3).cost(decode(10, 30), 2)
    without, _ = stage(layers=3).cost(decode(10, 30), 2)
    assert uneven - without == 3 * 3 * (30 - 10)  # ns a token, layers, tokens short of the longest
    assert sources[EXTRAPOLATED] == 180
    assert stage(skew=True).run(decode(10, 30), 2, 3).tolist() == [
        stage(skew=True).cost(decode(10 + i, 30 + i), 2)[0] for i in range(3)
    ]


def test_unequal_contexts_cost_more_in_the_layers_alone_whose_kernel_does_not_split_them() -> None:
    with_it, without = attention(), attention()
    with_it.skew = Unequal()
    made = Stage([], [], [AttentionLayers(with_it, 2), AttentionLayers(without, 5)], ROOF)
    assert made.skewed
    plain = Stage([], [], [AttentionLayers(without, 7)], ROOF)
    assert not plain.skewed
    assert made.cost(decode(10, 30), 2)[0] - plain.cost(decode(10, 30), 2)[0] == 3 * 2 * (30 - 10)


def test_several_prompt_pieces_read_the_mean_of_their_contexts() -> None:
    # pieces end at 2 + 998 and 4 + 1996 tokens: 1500 in the mean, 100 ns each, above what their work takes
    assert prefill_ns(attention(), [(2, 998), (4, 1996)], False) == (Decodes().curve(2).at(1500), EXTRAPOLATED)
    assert prefill_ns(attention(), [(2, 998), (4, 1996)], True)[0] == 100 * 1000 + 100 * 2000  # each by itself


def sources_of(over: OverContexts, contexts: np.ndarray, gpu: list[int]) -> list[list[int]]:
    """Return the sources at contexts whose nanoseconds are `gpu`."""
    _, split = over.price(contexts)
    return [list(split.of(ns)) for ns in gpu] if isinstance(split, Split) else split.tolist()


@pytest.mark.parametrize(
    ("context", "attended", "source"),
    [(0, 50, MEASURED), (99, 149, INTERPOLATED), (100, 150, MEASURED), (150, 250, INTERPOLATED),
     (200, 350, INTERPOLATED), (300, 525, EXTRAPOLATED)],
)  # fmt: skip
def test_passes_over_contexts_say_where_their_time_comes_from(context: int, attended: int, source: int) -> None:
    one = Pass(10.4, [4.4, 0.0, 0.0, 6.0], CURVE, 0)
    none = Pass(5.0, [0.0, 0.0, 5.0, 0.0], None, 0)
    expected = [4, 0, 5, 6]
    expected[source] += attended
    over = OverContexts([one, none], NO_HOST)
    ns, sources = over.one(context)
    assert (ns, list(sources)) == (15 + attended, expected)
    assert over.price(np.array([context]))[0].tolist() == [ns]
    assert sources_of(over, np.array([context]), [ns]) == [expected]


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.integers(0, 120),
    st.lists(st.sampled_from([0, 7]), min_size=1, max_size=3),
)
@example([0, 1], 194, [0, 7])  # one pass within the curve, one beyond it
def test_sources_of_many_contexts_are_those_of_each(steps: list[int], first: int, shifts: list[int]) -> None:
    over = OverContexts([Pass(10.4, [4.4, 0.0, 0.0, 6.0], CURVE, shift) for shift in shifts], NO_HOST)
    contexts = first + np.cumsum(np.array(steps, dtype=np.int64))
    each = [over.one(int(context)) for context in contexts]
    gpu = over.price(contexts)[0]
    assert gpu.tolist() == [ns for ns, _ in each]
    assert sources_of(over, contexts, gpu.tolist()) == [list(sources) for _, sources in each]
    assert all(sum(sources) == ns for ns, sources in each)


def test_a_context_at_a_knot_belongs_to_what_begins_there() -> None:
    """By the line that ends there the knot would be rounded down: 7 times its slope is less than what it has."""
    over = OverContexts([Pass(0.0, [0.0] * 4, Curve([0, 7], [0, 30.5]), 0)], NO_HOST)
    assert int(0.5 + 7 * (30.5 / 7)) == 30
    assert over.price(np.array([1, 7]))[0].tolist() == [over.one(1)[0], 31]
    over.price(np.array([1]))
    ns = over.one(1)[0]
    assert sources_of(over, np.array([1, 7]), [ns, 31]) == [[0, ns, 0, 0], [31, 0, 0, 0]]


@pytest.mark.parametrize(("knot", "shift"), [(7.76683114342298, 61), (100.0, 7)])
def test_many_contexts_are_rounded_as_each_is_where_knots_are_no_whole_numbers(knot: float, shift: int) -> None:
    """At 2^48 ns a token the last bit of a difference is several nanoseconds, and another order loses it."""
    over = OverContexts([Pass(0.0, [0.0] * 4, Curve([0, knot], [0, 0], last_slope=2.0**48), shift)], NO_HOST)
    contexts = np.arange(100, 200) - shift
    assert over.price(contexts)[0].tolist() == [over.one(int(context))[0] for context in contexts]
    other = ((contexts - (knot - shift)) * 2.0**48 + 0.5).astype(np.int64)
    assert (other.tolist() == over.price(contexts)[0].tolist()) is knot.is_integer()


@given(st.integers(1, 300), st.integers(1, 60), st.integers(1, 12), st.data())
def test_sources_of_a_run_are_those_of_its_steps(first: int, step: int, count: int, data: st.DataObject) -> None:
    gpu = [int(CURVE.at(first + i * step) + 13.5) for i in range(count)]
    fixed, known = whole(13.0, [4.0, 5.0, 0.0, 4.0])
    run = CurveSources(fixed, known, CURVE, first, step, gpu)
    *_, source, until = CURVE.piece(first)
    told = CurveSources(fixed, known, CURVE, first, step, gpu, source, until)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start, count))
    expected = [0, 0, 0, 0]
    for i in range(start, stop):
        expected = [a + b for a, b in zip(expected, fixed, strict=True)]
        expected[CURVE.source(first + i * step)] += gpu[i] - known
    assert list(run.of(start, stop)) == list(told.of(start, stop)) == expected
    assert list(SumSources([run, run]).of(start, stop)) == [2 * ns for ns in expected]


def test_what_a_lowered_clock_adds_has_no_source() -> None:
    assert whole(120.0, [10.0, 20.0, 30.0, 40.0]) == ([10, 20, 30, 40], 120)
    assert CurveSources([1, 2, 3, 4], 15, None, 0, 0, [15, 15]).of(0, 2) == (2, 4, 6, 8)


def test_the_upper_of_two_curves_goes_on_at_the_steeper_rise() -> None:
    flat, steep = Curve([0, 10], [100, 100], last_slope=0.5), Curve([0, 10], [0, 20], last_slope=4.0)
    for both in (upper(flat, steep), upper(steep, flat)):
        assert (both.at(10), both.at(12)) == (100, 108)


def test_shards_of_logits_are_gathered_from_two_gpus_on() -> None:
    names = {}
    for tp in (1, 2):
        tables = KernelTables.load("h100")
        gemms = GemmTables(tables, ROOF, ROOF)
        graph = LayerGraph(ModelSpec.load("llama-3.1-8b"), Gpu.load("h100"), tp, "bf16", "bf16", gemms, None)
        names[tp] = [operator.name for operator in graph.per_sample()]
    assert names == {1: ["lm_head", "sampler"], 2: ["lm_head", "sampler", "all_gather"]}


def test_of_an_interpolated_gemm_no_number_of_tokens_takes_longer_than_a_larger_one() -> None:
    tables = KernelTables.load("h100")
    m, n, k, share = [], [], [], []
    for width in (1024, 4096):
        for tokens, reached in ((16, 0.5), (32, 0.2), (64, 0.1), (128, 0.9), (256, 0.9)):
            m, n, k, share = [*m, tokens], [*n, width], [*k, 1024], [*share, reached]
    times = [ROOF.gemm(*shape, "bf16") / reached / 1e3 for *shape, reached in zip(m, n, k, share, strict=True)]
    made = tables.with_rows("gemm", "bf16", {name: np.array(v) for name, v in zip(("m", "n", "k", "time_us"), (m, n, k, times), strict=True)})  # fmt: skip  # noqa: E501
    humps = GemmTables(made, ROOF, ROOF).curve(2048, 1024, "bf16")
    smooth = GemmTables(made, ROOF, ROOF, monotone=True).curve(2048, 1024, "bf16")
    sizes = (16, 32, 64, 128, 256)
    assert humps.at(32) > humps.at(128)
    assert humps.at(64) > humps.at(128)
    assert [smooth.at(x) for x in sizes] == [min(humps.at(y) for y in sizes if y >= x) for x in sizes]
    assert [smooth.at(x) for x in sizes] == sorted(smooth.at(x) for x in sizes)


def test_before_the_first_known_version_the_earliest_terms_are_taken() -> None:
    known = {version: host_terms(f"vllm {version}", "h100") for version in ("0.1", "0.23.0")}
    earliest, latest = known["0.1"], known["0.23.0"]
    assert earliest is not None
    assert latest is not None
    assert (earliest.engine, latest.engine) == ("vllm 0.12.0", "vllm 0.23.0")


@pytest.mark.parametrize(("past", "over"), [(0, ""), (5, " over cached ones")])
def test_prompts_beyond_the_tables_are_told_with_the_most_tokens_they_attend_to(past: int, over: str) -> None:
    class Unknown(Prompts):
        def at(self, count: float, each: float) -> tuple[float, int]:
            return 1000.0, EXTRAPOLATED

    known, unknown = (
        Stage([], [], [AttentionLayers(GridAttention(Decodes(), prompts, 0.0, 0), 2)], ROOF)  # type: ignore[arg-type]
        for prompts in (Prompts(), Unknown())
    )
    for new in (10, 7):
        known.cost(Batch(new, [(new, 0)], sampled=1), new)
        unknown.cost(Batch(new, [(new, past)], sampled=1), new)
    assert known.extrapolated({}) == {}
    assert unknown.extrapolated({}) == {
        "attention_prefill": f"prefill of new tokens{over}, up to {10 + past} tokens attended to"
    }


def test_a_prompt_chunk_that_samples_nothing_has_no_head() -> None:
    assert stage().cost(Batch(10, [(10, 0)]), 10)[0] == 200 + 7 + 2 * 1000


def test_norms_beyond_two_a_layer_are_in_every_layer() -> None:
    """Two are in the linear operators' own time; llama-3.2-1b has 16 layers."""
    two = ModelSpec.load("llama-3.2-1b")
    times = []
    for model in (two, replace(two, norms_per_layer=4)):
        cost = build_cost_model(model, Gpu.load("h100"))
        times.append(sum(o.curve.at(8) for o in cost._stages[0]._per_token if o.name == "norm"))
        assert cost._stages[0]._throttled is None  # without host terms nothing is slowed down by power
    cost = build_cost_model(replace(two, norms_per_layer=3), Gpu.load("h100"))
    one_each = sum(o.curve.at(8) for o in cost._stages[0]._per_token if o.name == "norm") - times[0]
    assert times[1] - times[0] == pytest.approx(2 * one_each)
    assert one_each > 16 * 1000  # a kernel takes over a microsecond


def test_a_step_without_tokens_takes_no_time_but_for_what_it_moves() -> None:
    assert stage().cost(Batch(0, []), 0) == (0, [0, 0, 0, 0])
