"""Rejection sampling delivers the target's distribution, whatever the drafter proposes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.draws import uniform
from servesim_lab.claims.sampling import (
    acceptance_probability,
    acceptance_rates,
    output_distribution,
    residual,
    sibling_acceptance,
    sibling_output,
    verify_chain,
    verify_siblings,
    without,
)
from tests.support.examples import examples

TARGET, DRAFT = np.array([0.3, 0.7]), np.array([0.5, 0.5])


@st.composite
def distributions(draw: st.DrawFn, size: int) -> np.ndarray:
    weights = np.array(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), dtype=float)
    weights[draw(st.integers(0, size - 1))] += 1.0
    return weights / weights.sum()


def test_the_two_token_example_by_hand() -> None:
    """Target (0.3, 0.7), draft (0.5, 0.5): A is accepted with 0.6, B always; the output is the target."""
    assert verify_chain(np.array([TARGET, TARGET]), np.array([DRAFT]), [0], [0.59, 0.0]) == [0, 0]
    assert verify_chain(np.array([TARGET, TARGET]), np.array([DRAFT]), [0], [0.61, 0.0]) == [1]
    assert verify_chain(np.array([TARGET, TARGET]), np.array([DRAFT]), [1], [0.999, 0.99]) == [1, 1]
    assert acceptance_probability(TARGET, DRAFT) == pytest.approx(0.8, abs=1e-15)
    assert residual(TARGET, DRAFT).tolist() == [0.0, 1.0]
    assert output_distribution(TARGET, DRAFT) == pytest.approx(TARGET, abs=1e-15)


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(distributions(n), distributions(n))))
def test_the_output_of_a_chain_is_the_target(pair: tuple[np.ndarray, np.ndarray]) -> None:
    assert output_distribution(*pair) == pytest.approx(pair[0], abs=1e-12)


@given(
    st.integers(1, 5).flatmap(lambda n: st.tuples(distributions(n), distributions(n))),
    st.integers(0, 4),
)
def test_the_output_of_a_tree_is_the_target_and_candidates_help(
    pair: tuple[np.ndarray, np.ndarray], width: int
) -> None:
    p, q = pair
    assert sibling_output(p, q, width) == pytest.approx(p, abs=1e-12)
    more, fewer = (sibling_acceptance(p, q, n) for n in (width + 1, width))
    assert fewer - 1e-12 <= more <= 1.0 + 1e-12
    assert sibling_acceptance(p, q, 1) == pytest.approx(acceptance_probability(p, q), abs=1e-12)


@pytest.mark.medium
@examples(10)
@given(distributions(4), distributions(4), st.integers(0, 1000))
def test_what_is_sampled_agrees_with_the_closed_form(p: np.ndarray, q: np.ndarray, seed: int) -> None:
    """20,000 verifications of two drafts and of two siblings; five standard errors."""
    n = 20_000
    draws = uniform(seed, "verify", np.arange(n)[:, None], np.arange(6)[None, :])
    chain, tree, lengths = np.zeros(4), np.zeros(4), 0
    for u in draws:
        drafts = [int(np.searchsorted(np.cumsum(q), u[i], side="right").clip(0, 3)) for i in (0, 1)]
        delivered = verify_chain(np.array([p, p, p]), np.array([q, q]), drafts, u[2:5])
        chain[delivered[0]] += 1
        lengths += len(delivered)
        second = without(q, drafts[0])
        siblings = [drafts[0]]
        if second.sum() > 0:
            siblings.append(int(np.searchsorted(np.cumsum(second), u[1], side="right").clip(0, 3)))
        tree[verify_siblings(p, q, siblings, u[3:])[0]] += 1
    bound = 5 * np.sqrt(p * (1 - p) / n) + 1e-9
    assert (np.abs(chain / n - p) <= bound).all()
    assert (np.abs(tree / n - p) <= bound).all()
    expected = 1.0 + sum(acceptance_rates(np.array([p, p]), np.array([q, q])))
    assert lengths / n == pytest.approx(expected, abs=5 / np.sqrt(n))
