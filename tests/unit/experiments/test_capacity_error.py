"""The model's error in a capacity question: ends of intervals, and whether the cheapest stays so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.experiments import capacity_error
from servesim.experiments.axes import Variant
from servesim.experiments.capacity import capacity
from servesim.experiments.capacity_error import SOUGHT
from servesim.experiments.capacity_words import bracket_words, brackets, error_sentences
from servesim.experiments.limit_search import RateSearch
from servesim.intervals.fitted import Factors, Fitted
from servesim.intervals.pairs import LEVELS, Spread
from servesim.run.replica_search import ReplicaSearch
from servesim.run.stretched import SAYS, Stretch

WORKLOAD: dict[str, Any] = {
    "trace": "synth:rate=1,prompt=600,output=20",
    "requests": 30,
    "tolerance": 0.1,
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "slo": "ttft:60",
    "replicates": 1,
    "jobs": 1,
}


@given(st.integers(1, 80), st.integers(1, 70), st.integers(1, 64))
def test_a_search_around_a_guess_finds_the_fewest_replicas_each_tried_once(limit: int, guess: int, most: int) -> None:
    search, tried = ReplicaSearch(most, guess), []
    while (n := search.next()) is not None:
        tried.append(n)
        search.tell(n, n >= limit)
    assert search.fewest == (limit if limit <= most else None)
    assert len(tried) == len(set(tried))
    assert all(1 <= n <= most for n in tried)


@given(st.integers(2, 80), st.integers(1, 90), st.integers(0, 40), st.integers(0, 40))
def test_a_search_tries_nothing_that_is_known_before(limit: int, guess: int, below: int, above: int) -> None:
    too_few, enough = max(limit - 1 - below, 0), limit + above
    search, tried = ReplicaSearch(128, guess, too_few=too_few, fewest=enough), []
    while (n := search.next()) is not None:
        tried.append(n)
        search.tell(n, n >= limit)
    assert search.fewest == limit
    assert len(tried) == len(set(tried))
    assert all(too_few < n < enough for n in tried)


def test_where_one_replica_carries_it_a_faster_server_takes_no_run() -> None:
    assert ReplicaSearch(1, fewest=1).next() is None


def test_a_good_guess_takes_two_runs_to_be_sure() -> None:
    search, tried = ReplicaSearch(64, 8), []
    while (n := search.next()) is not None:
        tried.append(n)
        search.tell(n, n >= 8)
    assert tried == [8, 7]


def _document(monkeypatch: pytest.MonkeyPatch, fast: float, slow: float, **more: Any) -> dict[str, Any]:
    """Ask with these factors of all latencies in place of the fitted ones."""

    def at(self: Factors, share: float) -> float:
        return fast if share < 0.5 else slow

    monkeypatch.setattr(Factors, "at", at)
    return dict(capacity(**WORKLOAD, **more).attrs["document"])


def test_a_model_without_error_leaves_the_rate_within_its_bracket(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = _document(monkeypatch, 1.0, 1.0)["rows"]
    bars = row["model_error"]
    assert bars["says"] == SAYS
    assert bars["low"] <= row["rate"] <= bars["high"] <= bars["low"] * (1 + capacity_error.TOLERANCE) * 1.001


def test_where_requests_alone_are_too_slow_no_rate_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt alone takes more than a tenth of its limit: ten times slower no rate is carried, and none is run."""
    tried = []

    def counted(self: capacity_error.End, load: float) -> Any:
        tried.append(self.stretch.times)
        return {"rate": load}

    monkeypatch.setattr(capacity_error.End, "settings", counted)
    (row,) = _document(monkeypatch, 0.9, 10.0)["rows"]
    assert row["model_error"]["low"] is None
    assert set(tried) <= {0.9}


@pytest.mark.slow  # three searches
def test_a_server_slower_by_f_carries_what_f_times_the_rate_does_with_limits_shorter_by_f(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both ends against the same question asked directly: the limits over f, the rate found over f."""
    (row,) = _document(monkeypatch, 0.8, 1.25)["rows"]
    for f, end in ((1.25, "low"), (0.8, "high")):
        asked = capacity(**{**WORKLOAD, "slo": f"ttft:{60 / f}"}, intervals=False).iloc[0]
        assert row["model_error"][end] == pytest.approx(asked.rate / f, rel=2 * 0.1)  # both brackets


def test_replicas_are_those_that_carry_the_rate_with_times_stretched(monkeypatch: pytest.MonkeyPatch) -> None:
    document = _document(monkeypatch, 0.8, 1.25, rate=150.0)
    (row,) = document["rows"]
    for f, end in ((0.8, "low"), (1.25, "high")):
        asked = capacity(**{**WORKLOAD, "slo": f"ttft:{60 / f}"}, rate=150.0 * f, intervals=False).iloc[0]
        assert row["model_error"][end] == asked.gpus
    assert row["model_error"]["low"] <= row["gpus"] < row["model_error"]["high"]
    assert brackets(row) == (f" ({row['model_error']['low']}-{row['model_error']['high']})", "")
    assert document["model_error"]["runs"] <= 2 * capacity_error.ROUNDS


@pytest.mark.parametrize(("replicas", "usd"), [(1, 15.2), (2, 15.2), (4, 15.2), (5, 21.18), (6, 27.16)])
def test_an_end_in_replicas_pays_for_reserved_gpus_once(replicas: int, usd: float) -> None:
    """Replicas of two GPUs with eight reserved at $1.9: four cost the $15.2 of one, the ninth and tenth GPU $2.99."""
    server = {"trace": "synth:rate=1", "model": "llama-3.2-1b", "gpu": "h100", "tp": 2, "price": "h100=8@1.9+2.99"}
    known = ReplicaSearch(64, fewest=replicas, too_few=replicas - 1)
    end = capacity_error.End(Variant("", {}, server), Stretch.even(1.0), False, 10.0, known)
    assert end.price({"gpus": 6, "replicas": 3, "rate": 10.0, "usd_per_hour": 15.2}) == pytest.approx(usd / 10)


def test_an_end_in_requests_a_second_pays_for_the_same_gpus() -> None:
    """Half the rate for the same $15.2 costs twice as much per request/s."""
    known = RateSearch(0.1, 5.0, 1.25)
    known.tell(5.0, True)
    end = capacity_error.End(Variant("", {}, {}), Stretch.even(1.0), False, None, known)
    assert end.price({"rate": 10.0, "usd_per_hour": 15.2}) == pytest.approx(15.2 / 5)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(3, None, "3 or more"), (None, 12, "12 or fewer"), (None, None, "not known"), (3, 12, "3-12"), (4, 4, "4")],
)
def test_an_end_that_was_not_found_is_written_in_words(low: int | None, high: int | None, said: str) -> None:
    bars = {"low": low, "high": high, "says": SAYS}
    assert brackets({"model_error": bars, "by": "replicas"}) == (f" ({said})", "")
    if low != high or low is None:
        assert brackets({"model_error": bars, "by": None}) == ("", f" ({said.replace('fewer', 'less')})")


def test_without_intervals_nothing_more_is_run() -> None:
    document = capacity(**WORKLOAD, intervals=False).attrs["document"]
    assert document["model_error"] is document["rows"][0]["model_error"] is None
    assert error_sentences(document) == []
    assert brackets(document["rows"][0]) == ("", "")


def test_what_is_like_nothing_measured_gets_words_in_place_of_bars() -> None:
    document = capacity(**WORKLOAD, host="none").attrs["document"]
    (row,) = document["rows"]
    assert row["model_error"]["low"] is row["model_error"]["high"] is None
    assert row["model_error"]["says"].startswith("none: its kernel tables or host terms were never compared")
    assert brackets(row) == ("", "")


def test_where_the_cheapest_has_no_bars_a_decision_says_why() -> None:
    document = capacity(**WORKLOAD, tp="1,2", clients={"timeout_s": 60}).attrs["document"]
    (decision,) = document["model_error"]["decisions"]
    why = "clients.timeout_s does not scale with the server's times"
    assert decision["holds"] is None
    assert decision["says"].endswith(f"the model's error is not known: {why}")


@pytest.mark.slow  # two searches
@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (50.0, False)])
def test_the_cheapest_stays_so_where_the_spread_of_the_pair_is_less_than_its_lead(
    monkeypatch: pytest.MonkeyPatch, factor: float, holds: bool
) -> None:
    def spread(fitted: Fitted, a: Any, b: Any, metric: str) -> Spread:
        assert metric == "e2e"
        return Spread("size", factor, "", (factor,) * len(LEVELS))

    monkeypatch.setattr(capacity_error, "ratio_spread", spread)
    document = _document(monkeypatch, 1.0, 1.0, tp="1,4")
    (decision,) = document["model_error"]["decisions"]
    (cheapest,) = [row["label"] for row in document["rows"] if row["cheapest"]]
    assert decision["cheapest"] == cheapest != decision["against"]
    assert decision["holds"] is holds
    assert (
        f"{cheapest} {'stays cheaper' if holds else 'may be more expensive'} than {decision['against']}"
        in decision["says"]
    )


@pytest.mark.parametrize(("fewest", "tried"), [(5, [4, 5]), (6, [4, 5, 7, 6]), (3, [4, 3, 1, 2]), (1, [4, 3, 1])])
def test_a_search_begins_at_its_guess_and_moves_away_in_steps_that_double(fewest: int, tried: list[int]) -> None:
    search, found = ReplicaSearch(64, 4), []
    while (replicas := search.next()) is not None:
        found.append(replicas)
        search.tell(replicas, replicas >= fewest)
    assert (found, search.fewest) == (tried, fewest)


def test_rows_that_were_not_looked_at_are_counted_and_those_without_bars_named() -> None:
    said = ["not computed: 9th", "not computed: 10th", "none: no such GPU", SAYS]
    rows = [{"label": f"r{i}", "model_error": {"says": says}} for i, says in enumerate(said)]
    error = {"level": 0.8, "runs": 7, "decisions": [{"says": "it holds", "holds": True}]}
    said = f"in brackets: 80 % interval from the model's error ({SAYS})"
    assert bracket_words({"model_error": error, "rows": rows}) == said
    assert bracket_words({"model_error": error, "rows": rows[:3]}) == ""
    assert error_sentences({"model_error": error, "rows": rows, "worth": []}) == [
        "it holds",
        "r2: no error bars: no such GPU",
        f"only the {SOUGHT} cheapest deployments have intervals in brackets, and the other 2 do not. The Pareto "
        "front ignores the model's error",
        "TTFT p99 and $/M tokens are simulated at the rate shown and change with it",
    ]
    assert error_sentences({"rows": rows}) == []
