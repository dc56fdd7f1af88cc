"""The course's claims on drafts, corrected: closed forms by hand, and the simulation beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from servesim_lab.claims import Outcome, batches, find
from servesim_lab.claims.drafts import (
    ConstantPasses,
    accepted_share,
    decode,
    held,
    off_target,
    sketch_tokens,
)
from servesim_lab.claims.drafts_served import crossing, formula, serve


def run(name: str, **changes: Any) -> tuple[Outcome, dict[str, Any]]:
    (one,) = find(name)
    outcome = one.run(one.given(**changes))
    return outcome, {row.what: row for row in outcome.rows}


@pytest.mark.parametrize(
    ("alpha", "k", "tokens"),
    [(0.8, 4, 3.3616), (0.9, 4, 4.0951), (0.7, 4, 2.7731), (0.8, 3, 2.952), (0.0, 4, 1.0), (1.0, 4, 5.0)],
)
def test_tokens_of_a_pass_by_hand(alpha: float, k: int, tokens: float) -> None:
    assert formula(alpha, k) == pytest.approx(tokens)


@pytest.mark.medium
def test_the_course_s_example_is_3_36_tokens_and_2_33_times_the_speed() -> None:
    got = decode(0.8, 4, ConstantPasses(0.11), 20_000)
    assert got.tokens == pytest.approx(3.3616, rel=0.02)
    assert 1 / got.ms == pytest.approx(3.3616 / 1.44, rel=0.02)
    _, rows = run("draft-tokens", tokens=20_000)
    others = {"speed-up at 70 %, k 4", "speed-up of T5-XXL, one request"}
    assert {row.verdict for what, row in rows.items() if what not in others} == {"corrected"}
    assert rows["speed-up at 70 %, k 4"].verdict == "reproduced", "2.77 / 1.44 = 1.93, about 2"


def test_all_drafts_right_give_k_and_one_more() -> None:
    got = decode(1.0, 4, ConstantPasses(0.25), 5_001)
    assert got.tokens == pytest.approx(5.0, rel=0.001)
    assert got.ms == pytest.approx(2 / 5, rel=0.001), "a pass and four quarters, for five tokens"


def test_a_wrong_draft_costs_its_passes() -> None:
    got = decode(0.0, 4, ConstantPasses(0.11), 2_000)
    assert (got.tokens, got.ms) == (pytest.approx(1.0, rel=0.01), pytest.approx(1.44, rel=0.01))


@pytest.mark.medium
def test_a_sketch_without_bonus_stays_at_2_95() -> None:
    """Two distributions that share 0.7 + 0.1."""
    p, q = np.array([0.7, 0.3]), np.array([0.9, 0.1])
    assert sketch_tokens(p, q, 4, 20_000) == pytest.approx(2.952, rel=0.01)
    _, rows = run("draft-bonus", tokens=20_000)
    assert {row.verdict for row in rows.values()} == {"corrected"}
    assert rows["speed-up, draft pass 0.11"].simulated == "2.05 x", "2.952 / 1.44"


def test_verdicts_follow_the_figures() -> None:
    outcome = Outcome()
    held(outcome, "claim holds", 3.36, 3.35, 3.36)
    held(outcome, "claim is wrong", 4.2, 3.35, 3.36)
    held(outcome, "neither", 4.2, 3.0, 3.36)
    assert [row.verdict for row in outcome.rows] == ["reproduced", "corrected", "differs"]


def test_the_course_s_acceptance_example() -> None:
    p, q = np.array([0.3, 0.7]), np.array([0.5, 0.5])
    assert accepted_share(p, q, 0, 5_000) == pytest.approx(0.6, abs=0.02)
    assert accepted_share(p, q, 1, 100) == 1.0
    assert max(off_target(seed, 3) for seed in range(40)) < 1e-9
    _, rows = run("rejection-sampling", random=20)
    assert {row.verdict for row in rows.values()} == {"reproduced"}


def test_a_verifying_step_by_hand() -> None:
    batch = batches.decode(3, 100, 5)
    assert (batch.linear_tokens, batch.drafts, batch.sampled, batch.queries_per_sequence) == (15, 12, 3, 5)
    assert (batch.decode_count, batch.decode_context_sum) == (3, 300)


def test_verification_is_free_for_one_sequence_and_not_for_a_large_batch() -> None:
    outcome, rows = run("draft-verification", batches=[1, 256])
    verdicts = [row.verdict for row in rows.values()]
    assert verdicts == ["reproduced", "corrected"]
    single, crowd = outcome.figures[0].curves  # type: ignore[union-attr]
    assert single.y[0] == crowd.y[0] == 1.0
    assert crowd.y[3] > 2 > single.y[5]


def test_work_of_a_token_is_what_is_verified_over_what_is_kept() -> None:
    """No draft right: five tokens through the target for one; without drafts one."""
    base = {"trace": "synth:prompt=64,output=41", "model": "llama-2-7b", "gpu": "h100", "rate": float("inf")}
    assert serve(base, 2).rows == 1.0
    rows = serve(base, 2, "ngram", 0.0, 4).rows
    assert rows == pytest.approx(5.0, rel=0.04), "the last steps of an answer are trimmed"


@pytest.mark.medium
def test_pairs_gain_for_one_client_and_less_for_many() -> None:
    outcome, rows = run("draft-pairs", ks=[2, 4])
    assert rows["7B for 70B, 70 % right, 1 client"].verdict == "corrected", "2.533 / 1.2 or 2.773 / 1.4 at most"
    for one, many in outcome.figures[0].rows.values():  # type: ignore[union-attr]
        assert one > 1.2
        assert many < one


def test_where_drafts_stop_paying_off() -> None:
    assert crossing([1, 2, 4], [1.5, 1.1, 0.9]) == "3 clients on", "half way between 2 and 4 in the logarithm: 2.83"
    assert crossing([1, 2], [1.5, 1.1]) == "nowhere up to 2 clients"
    assert crossing([1, 2], [0.9, 0.8]) == "1 clients on"
    _, rows = run("drafts-or-batching", clients=[1, 64])
    assert [row.verdict for row in rows.values()] == ["reproduced"] * 4 + ["shown"]
