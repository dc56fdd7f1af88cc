"""Pairs and choices between servers, worked out by hand, and what noise of measurements leaves to be known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from servesim.experiments.accuracy.decision_scores import choice_ceiling, decide, pair_ceiling, repeats
from servesim.experiments.accuracy.decisions import Choice, Option, Pair, choices, merged, pairs

PRODUCT = ("vllm", "1", "m", "g", "fp8", "fp8", "agg")


def option(gpus: int, clients: int, measured: float, simulated: float, **other: Any) -> Option:
    """TPOTs in ms; one of 101 tokens, TTFT as long as a token: E2E is 101 TPOTs."""
    plain: dict[str, Any] = {"product": PRODUCT, "lengths": (1024, 101), "server": (gpus,)}
    times = {"measured": (measured, measured), "simulated": (simulated, simulated)}
    return Option(gpus=gpus, concurrency=clients, output_mean=101.0, **(plain | times | other))


def test_output_per_gpu_of_a_closed_loop() -> None:
    one = option(2, 8, 10.0, 10.0)
    assert one.output((10.0, 10.0)) == pytest.approx(8 * 101 / 1.01 / 2)  # 8 clients, 1.01 s each, two GPUs


def test_sizes_are_paired_at_equal_clients_per_gpu_alone() -> None:
    found = list(pairs([option(1, 8, 10, 10), option(2, 16, 9, 9), option(4, 16, 8, 8), option(2, 8, 7, 7)]))
    assert [(p.first.gpus, p.second.gpus, p.kind) for p in found] == [(1, 2, "sizes"), (4, 2, "sizes")]


@pytest.mark.parametrize(("simulated", "right"), [(9.0, True), (11.0, False), (10.0, False)])
def test_a_pair_is_right_where_the_measured_better_is_simulated_better(simulated: float, right: bool) -> None:
    (pair,) = pairs([option(1, 8, 10.0, 10.0), option(2, 16, 8.0, simulated)])
    assert pair.right is right
    assert pair.naive is False, "two GPUs give more each"
    assert pair.apart
    assert pair.near is right, "20 % apart"


def test_a_wrong_pair_within_a_tenth_is_near() -> None:
    (pair,) = pairs([option(1, 8, 10.0, 10.0), option(2, 16, 9.6, 11.0)])
    assert (pair.right, pair.apart, pair.near) == (False, False, True)


def test_engines_are_paired_at_equal_clients_and_gpus_and_the_naive_rule_is_silent() -> None:
    other = ("sglang", "2", *PRODUCT[2:])
    found = list(pairs([option(1, 8, 10, 9), option(1, 8, 9, 10, product=other), option(1, 16, 9, 9, product=other)]))
    assert [(p.kind, p.right, p.naive) for p in found] == [("engines", False, None)]


def test_commands_are_paired_where_they_differ_in_one_thing() -> None:
    def told(flags: dict[str, str], tp: int = 1, weights: str = "", measured: float = 1.0) -> Option:
        product = (*PRODUCT[:5], weights, "agg")
        rates = {"rates": (measured, measured), "flags": tuple(flags.items())}
        return option(tp, 500, 10.0, 10.0, product=product, server=(tp, 1, 1, 1, 1, ""), **rates)

    plain, budget = told({}), told({"max-num-seqs": "64"}, measured=2.0)
    larger, eight = told({}, tp=2, measured=3.0), told({}, weights="fp8", measured=0.5)
    found = {pair.named: pair for pair in pairs([plain, budget, larger, eight])}
    assert sorted(found) == [("--max-num-seqs",), ("format",), ("tp",)]
    assert all(pair.kind == "settings" and pair.right for pair in found.values())
    assert found["--max-num-seqs",].naive is None
    assert found["tp",].naive is False, "3 tokens/s of two GPUs are more each than 1 of one"
    assert found["format",].naive is False, "half as fast in FP8"
    assert [pair.named for pair in pairs([plain, told({"max-num-seqs": "64"}, tp=2, measured=3.0)])] == []
    assert not list(choices([plain, larger, told({}, tp=2, measured=9.0)]))


def test_repeats_count_once_by_their_geometric_mean() -> None:
    (one,) = merged([option(1, 8, 8.0, 5.0), option(1, 8, 18.0, 5.0)])
    assert one.measured == pytest.approx((12.0, 12.0))


SIZES = (option(1, 8, 10.0, 10.0), option(1, 32, 20.0, 18.0), option(4, 32, 6.0, 7.0), option(4, 128, 11.0, 9.0))
"""Measured output per GPU at C / TPOT / GPUs: .8, 1.6, 1.33, 2.91; simulated .8, 1.78, 1.14, 3.56."""


def test_the_best_within_a_limit_is_taken() -> None:
    assert Choice(20.0, SIZES).simulated == SIZES[3]
    assert Choice(8.0, SIZES).simulated == SIZES[2]
    assert Choice(5.0, SIZES).simulated is None


@pytest.mark.parametrize(
    ("limit", "taken", "outcome"),
    [
        (10.0, 3, "broken"),  # 11.0 measured
        (10.5, 3, "near"),  # 11.0 is within 5 % of 10.5, and better than all that keep it
        (20.0, 1, "far"),  # 1.6 where 2.91 could be had
        (20.0, 3, "near"),
        (20.0, None, "declined"),
    ],
)
def test_outcomes_of_a_choice(limit: float, taken: int | None, outcome: str) -> None:
    assert Choice(limit, SIZES).outcome(None if taken is None else SIZES[taken]) == outcome


def test_the_naive_rule_takes_the_fewest_gpus_that_keep_the_limit() -> None:
    assert Choice(20.0, SIZES).naive == SIZES[1]
    assert Choice(6.0, SIZES).naive == SIZES[2]


def test_a_choice_needs_two_sizes_and_a_limit_that_divides_them() -> None:
    assert [c.limit_ms for c in choices(SIZES)] == [10.0, 15.0]  # 20 and more keeps all of them
    assert not list(choices(SIZES[:2]))


def test_the_ceiling_counts_repeats_that_undo_a_difference() -> None:
    (pair,) = pairs([option(1, 8, 10.0, 10.0), option(2, 16, 9.5, 9.0)])  # 5.1 % apart
    noise = np.log([[1.01]] * 8 + [[1.08]] * 2)
    assert pair_ceiling([pair], noise) == pytest.approx(0.9)  # of 20 signed repeats two are that far the other way
    assert pair_ceiling([pair], noise[:9]) is None, "too few repeats to say"


def test_a_choice_by_another_measurement_without_noise_is_the_best() -> None:
    found = list(choices(SIZES))
    assert choice_ceiling(found, np.zeros((10, 2)), 0) == {"near": 1.0}
    noisy = choice_ceiling(found, np.full((10, 2), 0.5), 0)
    assert noisy is not None
    assert sum(noisy.values()) == pytest.approx(1.0)
    assert noisy["near"] < 1.0
    assert noisy == choice_ceiling(found, np.full((10, 2), 0.5), 0)


def test_repeats_are_of_one_place_and_version() -> None:
    unknown = (PRODUCT[0], "", *PRODUCT[2:])
    options = [option(1, 8, 10.0, 1.0), option(1, 8, 11.0, 1.0), option(1, 16, 10.0, 1.0)]
    options += [option(1, 8, 10.0, 1.0, product=unknown), option(1, 8, 12.0, 1.0, product=unknown)]
    assert repeats(options, lambda one: one.measured) == pytest.approx(np.log([[10 / 11, 10 / 11]]))


def test_all_decisions_in_one_document() -> None:
    document: Any = decide(SIZES, 0)
    # 1 GPU C=8 against 4 C=32: .8 to 1.33, simulated .8 to 1.14; C=32 against C=128: 1.6 to 2.91, 1.78 to 3.56
    assert document["sizes"]["pairs"] == 2
    assert document["sizes"]["right"]["value"] == 1.0
    assert document["sizes"]["naive"] == 0.0
    assert document["sizes"]["misses"] == []
    assert document["engines"]["right"]["value"] is None
    # limit 10: SIZES[3] is taken, 11.0 measured: broken; limit 15: the same, kept
    assert document["choices"]["choices"] == 2
    assert document["choices"]["broken"]["value"] == 0.5
    assert document["choices"]["near"]["value"] == 0.5
    # fewest GPUs: C=8 of one GPU, .8 of 1.33 and of 2.91
    assert document["choices"]["naive"] == {"far": 1.0}
    assert document["choices"]["ceiling"] is None


def test_a_miss_says_what_was_measured_and_simulated() -> None:
    wrong = [option(1, 8, 10.0, 10.0), option(2, 16, 8.0, 12.0)]
    document: Any = decide(wrong, 0)
    (miss,) = document["sizes"]["misses"]
    assert (miss["first"], miss["second"]) == ("vllm 1 fp8 1 GPU C=8", "vllm 1 fp8 2 GPUs C=16")
    assert miss["measured"] == pytest.approx(-0.2)
    assert miss["simulated"] == pytest.approx(0.2)
    assert Pair("sizes", *wrong).right is False
