"""Verdicts by rule: every case computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from servesim_lab.claims import Outcome, Row
from servesim_lab.claims.outcome import covered, listening


def test_a_verdict_is_one_of_the_known_and_a_difference_has_a_cause() -> None:
    with pytest.raises(ValueError, match="'matches' is none of reproduced, partly"):
        Row("a", "1", "1", "matches")
    for verdict in ("differs", "out of reach"):
        with pytest.raises(ValueError, match="without a cause"):
            Row("a", "1", "2", verdict)
    with pytest.raises(ValueError, match="group 'x' is none of memory, time"):
        Row("a", "1", "1", "reproduced", group="x")
    with pytest.raises(ValueError, match="'shown' is for figures without a claim"):
        Row("a", "1", "1", "shown")
    for verdict, share in (("partly", None), ("reproduced", 0.5)):
        with pytest.raises(ValueError, match="the verdict partly has a share, and no other has"):
            Row("a", "1", "1", verdict, share=share)


def test_near_compares_with_a_figure_or_a_range() -> None:
    outcome = Outcome()
    outcome.near("exact", 42, 42.0, "ms")
    outcome.near("5 % off", 100, 105, within=0.05)
    outcome.near("6 % off", 100, 106, within=0.05, cause="because")
    outcome.near("wrong by its own formula", 172, 687, "GB", within=0.02, otherwise="corrected")
    outcome.near("in a range", (2, 5), 3.36, "x")
    outcome.near("below a range", (2, 5), 1.9, "x", note="as it is", cause="too slow")
    said = [(row.published, row.simulated, row.verdict, row.note) for row in outcome.rows]
    assert said == [
        ("42 ms", "42 ms", "reproduced", ""),
        ("100", "105", "reproduced", "taken as the same up to 5 % off"),
        ("100", "106", "differs", "because"),
        ("172 GB", "687 GB", "corrected", ""),
        ("2 to 5 x", "3.36 x", "reproduced", ""),
        ("2 to 5 x", "1.9 x", "differs", "as it is; too slow"),
    ]


def judged(*figures: Any, **terms: Any) -> tuple[str, float | None]:
    outcome = Outcome()
    outcome.near("claim", *figures, **{"cause": "cause", **terms})
    (row,) = outcome.rows
    return row.verdict, row.share


@pytest.mark.parametrize(
    ("published", "simulated", "verdict", "share"),
    [
        ((2, 3), [2.1, 2.9], "reproduced", None),
        ((2, 3), [0.95, 2.19], "partly", 0.19),
        ((3, 10), [1.86, 212], "partly", 1.0),
        ((2, 4), [3, 5], "partly", 0.5),
        ((2, 4), [5, 3, 9], "partly", 0.5),
        ((2, 4), [4, 9], "partly", 0.0),
        ((2, 4), [4.1, 9], "differs", None),
        (1.2, [0.9, 1.4], "partly", 1.0),
        (1.2, [1.2, 1.2], "reproduced", None),
        (1.2, [1.3, 1.4], "differs", None),
    ],
)
def test_a_range_is_reproduced_where_all_figures_lie_in_it_and_partly_where_some_do(
    published: Any, simulated: list[float], verdict: str, share: float | None
) -> None:
    assert judged(published, simulated) == (verdict, share if share is None else pytest.approx(share))


def test_the_note_says_how_much_of_either_range_the_other_covers() -> None:
    outcome = Outcome()
    outcome.near("price", (3, 10), [1.86, 212], "x", cause="by load")
    outcome.near("speed", 1.2, [1, 2], "x")
    first, second = outcome.rows
    assert first.simulated == "1.86 to 212 x"
    assert first.note == "by load; the simulated range covers 100 % of the published range; 3.33 % of it lies there"
    assert second.note == "the simulated range contains it; 0 % of it lies there"


def test_a_distance_widens_what_counts_as_the_same_but_not_the_share() -> None:
    assert judged((2, 4), [1.95, 4.1], within=0.05) == ("reproduced", None)
    assert judged((2, 4), [1.0, 1.95], within=0.05) == ("partly", 0.0)


def test_what_is_priced_by_formula_proves_nothing_and_a_difference_stays_one() -> None:
    for simulated in ([3.1, 3.9], [1.0, 3.5]):
        assert judged((3, 4), simulated, formula=1.0) == ("by formula", None)
        assert judged((3, 4), simulated, formula=0.5)[0] != "by formula"
    assert judged((3, 4), 5.0, formula=1.0) == ("differs", None)
    assert judged((3, 4), 5.0, formula=1.0, otherwise="corrected") == ("corrected", None)


def test_of_several_statements_some_may_hold() -> None:
    outcome = Outcome()
    for holds in ([True, True], [True, False, False, False], [False, False], True, False):
        outcome.holds("claim", "two", "some", holds)
    said = [(row.verdict, row.share) for row in outcome.rows]
    assert said == [
        ("reproduced", None), ("partly", 0.25), ("differs", None), ("reproduced", None), ("differs", None),
    ]  # fmt: skip


def test_a_range_covers_a_share_of_another() -> None:
    assert covered((2, 4), (3, 9)) == 0.5
    assert covered((2, 4), (1, 9)) == 1
    assert covered((2, 4), (5, 9)) == 0
    assert covered((2, 2), (1, 9)) == 1
    assert covered((2, 2), (3, 9)) == 0


def test_whoever_listens_hears_each_row_as_it_is_added() -> None:
    heard: list[str] = []
    outcome = Outcome()
    with listening(lambda row: heard.append(row.what)):
        outcome.add(Row("a", "1", "1", "reproduced"))
        assert heard == ["a"]
        outcome.near("b", 1, 1.0)
        outcome.holds("c", "yes", "yes", True)
    outcome.near("d", 1, 1.0)
    assert heard == ["a", "b", "c"]
