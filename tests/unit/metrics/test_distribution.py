"""Statistics of values and of counted values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servesim.metrics.distribution import PERCENTILES, describe, describe_counted


def test_four_values_by_hand() -> None:
    stats = describe(np.array([4, 1, 3, 2]))
    assert stats is not None
    assert stats["count"] == 4
    assert (stats["min"], stats["mean"], stats["max"]) == (1, 2.5, 4)
    assert stats["std"] == np.sqrt(1.25)  # of the population: divided by 4
    assert stats["p50"] == 2.5
    assert stats["p90"] == 3.7  # position 0.9 * 3 = 2.7: 0.7 of the way from 3 to 4
    assert stats["p25"] == 1.75


def test_nothing_has_no_statistics() -> None:
    nothing = np.array([], dtype=np.int64)
    assert describe(nothing) is None
    assert describe_counted(nothing, nothing) is None
    assert describe_counted(np.array([5]), np.array([0])) is None


def test_units_divide_every_statistic() -> None:
    stats = describe(np.array([2_000_000, 4_000_000]), unit=1e6)
    assert stats is not None
    assert (stats["mean"], stats["std"], stats["max"]) == (3.0, 1.0, 4.0)


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 6)), min_size=1, max_size=30))
def test_counted_values_describe_the_multiset_they_stand_for(pairs: list[tuple[int, int]]) -> None:
    values, counts = np.array([v for v, _ in pairs]), np.array([c for _, c in pairs])
    expanded = np.repeat(values, counts)
    stats = describe_counted(values, counts, unit=1e6)
    if len(expanded) == 0:
        assert stats is None
        return
    assert stats is not None
    assert [stats[f"p{q:g}"] for q in PERCENTILES] == np.percentile(expanded / 1e6, PERCENTILES).tolist()
    assert stats["count"] == len(expanded)
    assert (stats["min"], stats["max"]) == (expanded.min() / 1e6, expanded.max() / 1e6)
    moments = [(expanded / 1e6).mean(), (expanded / 1e6).std()]
    np.testing.assert_allclose([stats["mean"], stats["std"]], moments, 1e-9, 1e-9)
