"""Marlin's kernel by blocks of rows: heights, how many blocks a step fills, and measured times taken apart."""

from __future__ import annotations

import numpy as np
import pytest

from servesim.cost import marlin
from servesim.cost.marlin import Blocks, beta_binomial, fit, height, last_tokens, measured_blocks, step_ns
from servesim.hardware.layers import Experts

GPT_OSS = Experts(128, 4, 2880)
ALIKE = 1e5  # hardly any skew


def test_blocks_grow_with_the_rows_an_expert_has() -> None:
    """230 tokens are 7.19 rows an expert, 231 are 7.22; 0.9 of a block of 8 is 7.2."""
    assert [height(tokens * 4 / 128) for tokens in (1, 230, 231, 460, 461, 922, 1383, 20000)] == [
        8, 8, 16, 16, 32, 48, 64, 64
    ]  # fmt: skip
    assert last_tokens(GPT_OSS) == [230, 460, 921, 1382]


@pytest.mark.parametrize("tokens", [1, 7, 256, 16384])
def test_tokens_of_an_expert_are_a_distribution_with_its_mean(tokens: int) -> None:
    chance = beta_binomial(tokens, 4 / 128)
    assert chance.sum() == pytest.approx(1.0, abs=1e-9)
    assert chance @ np.arange(tokens + 1) == pytest.approx(tokens * 4 / 128, rel=1e-9)


def test_experts_that_are_alike_are_touched_as_if_tokens_chose_by_themselves() -> None:
    assert 1.0 - beta_binomial(64, 4 / 128, ALIKE)[0] == pytest.approx(GPT_OSS.touched(64) / 128, rel=1e-3)


def test_skew_leaves_experts_out() -> None:
    """Two tokens, a share of 1/2, first parameter 1/2: P(none) is E[(1 - q)^2] = b (b + 1) / (a + b) / (a + b + 1)."""
    assert beta_binomial(2, 0.5, 0.5)[0] == pytest.approx(0.5 * 1.5 / (1.0 * 2.0))
    assert beta_binomial(64, 4 / 128)[0] > beta_binomial(64, 4 / 128, ALIKE)[0]


def test_one_token_fills_a_block_of_each_of_its_experts_and_all_tokens_of_every_expert_whole_ones() -> None:
    blocks = Blocks(0.0, 0.0, dict.fromkeys(marlin.HEIGHTS, 10.0))
    assert step_ns(blocks, 1, GPT_OSS) == pytest.approx(40.0)
    dense = Experts(4, 4, 2880)  # every token goes to every expert: 100 rows are two blocks of 64
    assert step_ns(blocks, 100, dense) == pytest.approx(80.0)


def test_a_step_takes_at_least_as_long_as_reading_the_experts_it_touches() -> None:
    assert step_ns(Blocks(0.0, 25.0, dict.fromkeys(marlin.HEIGHTS, 10.0)), 1, GPT_OSS) == pytest.approx(100.0)


def test_a_share_of_the_experts_is_taken_for_all_by_the_height_of_blocks() -> None:
    blocks = Blocks(0.0, 0.0, {8: 1.0, 16: 2.0, 32: 3.0, 48: 4.0, 64: 5.0})
    assert last_tokens(GPT_OSS, 0.5) == [115, 230, 460, 691]
    low, high = (step_ns(blocks, tokens, GPT_OSS, 0.5) for tokens in (115, 116))
    assert high > 1.4 * low  # blocks of 16 take twice as long, and few experts had more than 8 rows


def test_times_made_of_blocks_are_taken_apart_again() -> None:
    each = {8: 7000.0, 16: 7700.0, 32: 10000.0, 48: 12500.0, 64: 16000.0}
    tokens = [1, 2, *(2**i for i in range(6, 15)), 384, 768, 1300]
    sizes = [4 * m if m < 3 else measured_blocks(m, GPT_OSS) for m in tokens]
    times = [30000.0 + n * each[height(m * 4 / 128)] for m, n in zip(tokens, sizes, strict=True)]
    found = fit(tokens, times, GPT_OSS)
    assert found is not None
    assert found.floor == pytest.approx(30000.0)
    assert found.expert == pytest.approx(7000.0)
    assert found.each == pytest.approx(each)


def test_too_few_measurements_are_not_taken_apart() -> None:
    assert fit([1, 4, 64], [1.0, 2.0, 3.0], GPT_OSS) is None
    assert fit([1, 2, 4], [1.0, 2.0, 3.0], GPT_OSS) is None
