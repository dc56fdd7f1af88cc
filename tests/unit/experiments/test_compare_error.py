"""What of a compared p99 may be the model's error: the same run with its times stretched."""

from __future__ import annotations

from typing import Any

import pytest

import servesim
from servesim.experiments import compare_error
from servesim.experiments.compare_error import Stretched, scaled
from servesim.experiments.model_error import sentences, words
from servesim.experiments.store import Cell
from servesim.intervals.pairs import LEVELS, Spread
from servesim.run.error_bars import SAYS

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


def _compared(monkeypatch: pytest.MonkeyPatch, factor: float, **more: Any) -> dict[str, Any]:
    spread = Spread("size", factor, "by pairs", (factor,) * len(LEVELS))
    monkeypatch.setattr(compare_error, "ratio_spread", lambda *_: spread)
    return dict(servesim.compare(**{**WORKLOAD, **more}).attrs["document"])


def test_a_figure_of_a_stretched_run_takes_the_factor_of_its_own_kind() -> None:
    one = Stretched(Cell("a", {}), {"ttft": 2.0, "tpot": 1.5, "e2el": 1.2})
    assert one.value("ttft_p99", 100.0) == 200.0
    assert one.value("queue_time_p99", 100.0) == 120.0
    assert one.value("output_throughput", 60.0) == 50.0
    assert one.value("usd_per_million_tokens", 1.0) == 1.2
    assert one.value("slo_attainment", 0.9) == 0.9
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
    assert said.startswith("tp=2 against tp=1 in 80 % of pairs of two sizes of one server, propagated, not validated: ")


@pytest.mark.medium
def test_what_no_measured_pair_is_like_has_words_and_takes_no_run() -> None:
    axes = {"tp": 1, "scheduler": ["vllm", "vllm:max_num_seqs=2"]}
    document = servesim.compare(**{**WORKLOAD, **axes}).attrs["document"]
    assert document["error_runs"] == 0
    assert all(one["low"] is None for one in document["model_error"])
    (said,) = [note for note in document["notes"] if note.startswith("error bars of the model: none of ")]
    assert "both are one deployment" in said
    assert words(document["model_error"]) == [said]


@pytest.mark.slow
def test_without_intervals_nothing_is_said_and_nothing_run_further() -> None:
    document = servesim.compare(**WORKLOAD, intervals=False).attrs["document"]
    assert document["error_runs"] is None
    assert document["model_error"] == []
    assert not any("error bars" in note for note in document["notes"])
