"""Keyed draws are pure, order-free and uniform."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from servesim.draws import exponential, gamma, normal, stratified, uniform, uniform_one


def test_draws_do_not_depend_on_the_order_or_number_of_rows() -> None:
    whole = uniform(3, "x", np.arange(1000))
    backwards = uniform(3, "x", np.arange(1000)[::-1])[::-1]
    assert np.array_equal(whole, backwards)
    assert np.array_equal(whole[:10], uniform(3, "x", np.arange(10)))


def test_the_scalar_draw_equals_the_vector_draw() -> None:
    grid = uniform(11, "accept", np.arange(20)[:, None], np.arange(5))
    assert grid.shape == (20, 5)
    assert all(uniform_one(11, "accept", r, p) == grid[r, p] for r in range(20) for p in range(5))


def test_draws_are_fixed_numbers_in_every_process() -> None:
    code = "from servesim.draws import uniform_one; print(repr(uniform_one(1, 'a', 2, 3)))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(other.stdout) == uniform_one(1, "a", 2, 3)


@pytest.mark.parametrize("change", [(2, "a", 0), (1, "b", 0), (1, "a", 1)])
def test_seed_purpose_and_position_give_unrelated_streams(change: tuple[int, str, int]) -> None:
    rows = np.arange(20_000)
    base, other = uniform(1, "a", rows), uniform(change[0], change[1], rows, change[2])
    assert abs(np.corrcoef(base, other)[0, 1]) < 0.03
    assert not np.any(base == other)


def test_uniforms_are_uniform_along_rows_and_along_positions() -> None:
    for draws in (uniform(0, "u", np.arange(50_000)), uniform(0, "u", 0, np.arange(50_000))):
        assert 0.0 < draws.min() < draws.max() < 1.0
        counts = np.bincount((draws * 50).astype(int), minlength=50)
        chi2 = float(((counts - 1000.0) ** 2 / 1000.0).sum())
        assert chi2 < 49 + 5 * np.sqrt(2 * 49)
        assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.02


def test_stratified_draws_fill_every_part_of_a_block_once_and_do_not_depend_on_their_number() -> None:
    draws = stratified(4, "s", 1000)
    assert np.array_equal(draws[:300], stratified(4, "s", 300))
    assert sorted((draws[256:512] * 256).astype(int).tolist()) == list(range(256))
    assert not np.array_equal(np.argsort(draws[:256]), np.argsort(draws[256:512]))
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.08


def test_distributions_have_their_moments() -> None:
    rows = np.arange(100_000)
    assert exponential(0, "e", rows).mean() == pytest.approx(1.0, abs=0.02)
    z = normal(0, "n", rows)
    assert (z.mean(), z.std()) == (pytest.approx(0.0, abs=0.02), pytest.approx(1.0, abs=0.02))
    g = gamma(0, "g", rows, cv=2.0)
    assert (g.mean(), g.std()) == (pytest.approx(1.0, abs=0.03), pytest.approx(2.0, abs=0.1))
    assert np.all(gamma(0, "g", rows[:5], cv=0.0) == 1.0)
