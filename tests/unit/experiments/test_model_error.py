"""The model's part of a compared change: beside the replicates' interval, by pairs of measured servers, or in words."""

from __future__ import annotations

import pytest

import servesim
from servesim.experiments.model_error import model_errors, sentences, side_of
from servesim.intervals.fitted import shipped
from servesim.intervals.pairs import spread
from servesim.run.error_bars import SAYS, case_of

TRACE = "synth:arrivals=poisson,rate=3,prompt=800,output=10"
SERVER = {"trace": TRACE, "requests": 20, "model": "gpt-oss-120b", "gpu": "h200", "engine": {"version": "0.18.0"}}


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
    rows = [{"variant": name, "metric": "tpot_mean", "change": 0.1, "verdict": name} for name in ("baseline", "better")]
    ((same,), (failed,)) = (model_errors([side_of(a), side_of(other)], rows) for other in (a, None))
    assert same["low"] is failed["low"] is None
    assert "one deployment" in same["says"]
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
    assert unsure.endswith("which is better is not known")
    (sure,) = sentences([one | {"low": 0.02, "high": 0.3}], "tp=1")
    assert sure.endswith("+2 to +30 % in 80 % of measured pairs of two sizes of one server")
