"""The model's part of a compared change: of means by pairs of measured servers, of p99 by runs with times stretched."""

from __future__ import annotations

from typing import Any

import pytest

import servesim
from servesim.experiments import compare_error
from servesim.experiments.compare_error import baseline_sentence, mean_error, scaled, sentences, spreads_of, words
from servesim.intervals.fitted import shipped
from servesim.intervals.pairs import LEVELS, Spread, spread
from servesim.run.error_bars import case_of, side_of
from servesim.run.stretched import SAYS

WORKLOAD: dict[str, Any] = {
    "trace": "synth:arrivals=poisson,rate=6,prompt=800,output=12",
    "requests": 40,
    "model": "gpt-oss-120b",
    "gpu": "h200",
    "engine": {"version": "0.18.0"},
    "slo": "ttft:90,tpot:9",
    "replicates": 1,
    "warmup": 0,
    "cooldown": 0,
    "jobs": 1,
    "tp": [1, 2],
}
SERVER = {
    "trace": "synth:arrivals=poisson,rate=3,prompt=800,output=10",
    "requests": 20,
    "model": "gpt-oss-120b",
    "gpu": "h200",
    "engine": {"version": "0.18.0"},
}


def _compared(monkeypatch: pytest.MonkeyPatch, factor: float, **more: Any) -> dict[str, Any]:
    made_up = Spread("size", factor, "by pairs", (factor,) * len(LEVELS))
    monkeypatch.setattr(compare_error, "ratio_spread", lambda *_: made_up)
    return dict(servesim.compare(**{**WORKLOAD, **more}).attrs["document"])


def test_only_what_has_a_rule_and_no_bars_of_its_own_is_propagated() -> None:
    assert [scaled(name) for name in ("e2el_p99", "e2el_mean", "hit_rate")] == [True, False, False]


@pytest.mark.slow
def test_a_model_without_error_leaves_every_change_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    document = _compared(monkeypatch, 1.0)
    drawn = [one for one in document["model_error"] if one["says"] == SAYS]
    assert len(drawn) == 7
    for one in drawn:
        assert one["low"] == pytest.approx(one["change"])
        assert one["high"] == pytest.approx(one["change"])


@pytest.mark.medium
def test_a_slower_server_moves_p99_by_more_than_its_factor_where_requests_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = _compared(monkeypatch, 1.2)
    by_metric = {one["metric"]: one for one in document["model_error"] if one["says"] == SAYS}
    p99 = by_metric["e2el_p99"]
    assert (1 + p99["high"]) / (1 + p99["change"]) > 1.2
    assert (1 + p99["low"]) / (1 + p99["change"]) < 1 / 1.2
    assert by_metric["request_goodput"]["low"] < by_metric["request_goodput"]["change"]
    assert document["error_runs"] == 2
    (said,) = [one for one in sentences(document["model_error"], document["baseline"]) if SAYS in one]
    assert said.startswith(
        "tp=2 against tp=1, 80 % interval from pairs of two sizes of one server, propagated, not validated: "
    )


@pytest.mark.medium
def test_what_no_measured_pair_is_like_has_words_and_takes_no_run() -> None:
    axes = {"tp": 1, "scheduler": ["vllm", "vllm:max_num_seqs=2"]}
    document = servesim.compare(**{**WORKLOAD, **axes}).attrs["document"]
    assert document["error_runs"] == 0
    assert all(one["low"] is None for one in document["model_error"])
    (said,) = [note for note in document["notes"] if note.startswith("no error bars of the model for ")]
    assert "no two measured servers differ only in this" in said
    assert words(document["model_error"]) == [said]


@pytest.mark.slow
def test_without_intervals_nothing_is_said_and_nothing_run_further() -> None:
    document = servesim.compare(**WORKLOAD, intervals=False).attrs["document"]
    assert document["error_runs"] is None
    assert document["model_error"] == []
    assert not any("error bars" in note for note in document["notes"])


@pytest.mark.medium
def test_two_sizes_have_an_interval_around_their_ratio() -> None:
    document = servesim.compare(SERVER, tp=[1, 2], replicates=1, jobs=1).attrs["document"]
    found = {one["metric"]: one for one in document["model_error"]}
    assert {name for name, one in found.items() if one["says"] != SAYS} == {"ttft_mean", "tpot_mean", "e2el_mean"}
    assert set(found) == {row["metric"] for row in document["rows"]}
    assert document["error_runs"] == 2
    a, b = (servesim.simulate(SERVER, tp=tp).summary for tp in (1, 2))
    first, second = case_of(a), case_of(b)
    assert first is not None
    assert second is not None
    factor = spread(shipped(), second, first, "tpot").factor  # type: ignore[union-attr]
    tpot = found["tpot_mean"]
    assert (1 + tpot["high"]) / (1 + tpot["change"]) == pytest.approx(factor)
    assert (1 + tpot["low"]) * factor == pytest.approx(1 + tpot["change"])
    said = sentences(document["model_error"], document["baseline"])
    assert [SAYS in one for one in said] == [False, False, False, True]
    row = {"variant": "better", "metric": "tpot_mean", "change": 0.1}
    same, failed = (mean_error(row, spreads_of(side_of(other), side_of(a))) for other in (a, None))
    assert same["low"] is failed["low"] is None
    assert "no two measured servers differ only in this" in same["says"]
    assert failed["says"] == "it failed"
    assert sentences([same, failed], "x") == []


def test_a_sentence_says_where_an_interval_holds_no_change() -> None:
    one = {
        "variant": "tp=2",
        "metric": "tpot_mean",
        "change": 0.1,
        "level": 0.8,
        "differ_in": "two sizes of one server",
    }
    (unsure,) = sentences([one | {"low": -0.05, "high": 0.3}], "tp=1")
    assert unsure.endswith("from measured pairs of two sizes of one server: undecided")
    (sure,) = sentences([one | {"low": 0.02, "high": 0.3}], "tp=1")
    assert sure.endswith("80 % interval +2 to +30 % from measured pairs of two sizes of one server")


def test_the_range_of_the_baseline_is_said_with_its_level_in_percent_or_why_there_is_none() -> None:
    ends = {key: {"low": 1.0, "high": 2500.0} for key in compare_error.PAIRED}
    said = baseline_sentence({"kind": "pairs", "level": 0.8, "says": "of 9 servers", **ends}, "fcfs")
    assert said.startswith("error bars of fcfs: ")
    assert said.endswith(" 1.00 to 2,500 ms, 80 % interval; of 9 servers")
    assert said.count("1.00 to 2,500 ms") == len(compare_error.PAIRED)
    assert baseline_sentence({"kind": None, "says": "no table"}, "a") == "no error bars for a: no table"
    assert baseline_sentence(None, "a") == ""
