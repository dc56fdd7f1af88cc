"""Times of a server stretched by a factor: the figures of a rerun at another rate, and the ends of an interval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import servesim
from servesim.errors import UserError
from servesim.features.bars.propagation import NOT_ASKED
from servesim.intervals.case import METRICS
from servesim.intervals.fitted import SHARES, Fitted, shipped
from servesim.run.scenario import Scenario
from servesim.run.stretched import SAYS, unscaled

TRACE = "synth:arrivals=poisson,rate=8,prompt=1000,output=20"
SERVER: dict[str, Any] = {"model": "gpt-oss-120b", "gpu": "h200", "tp": 2, "engine": {"version": "0.18.0"}}


def run(**settings: Any) -> dict[str, Any]:
    return servesim.simulate(trace=TRACE, requests=60, **{**SERVER, **settings}).summary


def stretched(monkeypatch: pytest.MonkeyPatch, **factors: tuple[float, float]) -> None:
    """Make the shipped factors these, at the lower and the upper end."""
    terms = {"terms": {"all:": [0.0] * 6}, "quantiles": {}}
    ends = [SHARES.index(0.1), SHARES.index(0.9)]
    for metric in METRICS:
        logs = np.interp(range(len(SHARES)), ends, np.log(factors.get(metric, factors["e2e"])))
        terms["quantiles"][metric] = logs.tolist()
    kinds = dict.fromkeys(shipped().document["kinds"], terms)
    made_up = Fitted({**shipped().document, "kinds": kinds, "laboratories": None})
    for module in ("servesim.features.bars.propagation", "servesim.run.error_bars"):
        monkeypatch.setattr(f"{module}.shipped", lambda: made_up)


def test_without_an_error_both_ends_are_what_was_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    stretched(monkeypatch, e2e=(1.0, 1.0))
    summary = run(propagate=True, rate=8, slo="ttft:100,tpot:20")
    found = summary["intervals"]["propagated"]
    assert found.pop("says") == SAYS
    assert found.pop("runs") == 2
    assert {"ttft_p99", "tpot_p99", "e2el_p99", "slo_attainment", "usd_per_million_output_tokens"} <= set(found)
    assert found["ttft_p99"]["value"] == summary["latency_ms"]["ttft"]["p99"]
    for bars in found.values():
        assert bars["low"] == pytest.approx(bars["value"], rel=1e-6)
        assert bars["high"] == pytest.approx(bars["value"], rel=1e-6)


def test_an_end_is_a_run_at_a_stretched_rate_under_shrunk_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    stretched(monkeypatch, e2e=(1.0, 1.5), ttft=(1.0, 2.0))
    found = run(propagate=True, rate=8, slo="ttft:100,tpot:20")["intervals"]["propagated"]
    again = run(rate=12, slo={"ttft": 50, "tpot": 20 / 1.5})
    assert found["ttft_p99"]["high"] == pytest.approx(2.0 * again["latency_ms"]["ttft"]["p99"])
    assert found["e2el_p99"]["high"] == pytest.approx(1.5 * again["latency_ms"]["e2el"]["p99"])
    assert found["slo_attainment"]["low"] == pytest.approx(again["goodput"]["slo_attainment"])
    assert found["request_throughput"]["low"] == pytest.approx(again["throughput"]["request_throughput"] / 1.5)
    assert found["tpot_p99"]["high"] > 1.5 * found["tpot_p99"]["value"]  # the queue and the batch grow too


def test_a_server_that_no_longer_keeps_up_has_no_upper_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stretched(monkeypatch, e2e=(1.0, 1000.0))
    found = servesim.simulate(trace=TRACE, requests=1500, propagate=True, **SERVER).summary["intervals"]["propagated"]
    assert found["ttft_p99"]["low"] == pytest.approx(found["ttft_p99"]["value"], rel=1e-6)
    assert found["ttft_p99"]["high"] is None


def test_propagation_changes_nothing_else_and_the_same_inputs_give_the_same_figures() -> None:
    plain, one, other = run(), run(propagate=True), run(propagate=True)
    assert one == other
    assert plain["intervals"].pop("propagated") == {"says": NOT_ASKED, "runs": 0}
    del one["intervals"]["propagated"]
    assert one == plain


@pytest.mark.parametrize(
    ("changed", "waits", "words"),
    [
        ({"clients": {"timeout_s": 5}}, False, "clients.timeout_s"),
        ({"clients": {"turn_ms": 5, "max_concurrency": 4}}, False, "clients.turn_ms"),
        ({}, True, "conversations"),
        ({"stream": True}, False, "streamed"),
        ({"clients": {"max_concurrency": 4, "burstiness": 1.0}}, False, ""),
    ],
)
def test_times_that_are_not_the_servers_get_words(changed: dict[str, Any], waits: bool, words: str) -> None:
    found = unscaled(Scenario.of({"trace": TRACE, **SERVER, **changed}), waits)
    assert (words in found) if words else found == ""


def test_where_there_are_no_bars_nothing_is_run_again() -> None:
    found = run(propagate=True, scheduler="srpt")["intervals"]["propagated"]
    assert found == {"says": "none: no measured server uses scheduler srpt", "runs": 0}


def test_propagation_without_bars_is_refused() -> None:
    with pytest.raises(UserError, match="propagate needs"):
        servesim.simulate(trace=TRACE, requests=5, intervals=False, propagate=True, **SERVER)
