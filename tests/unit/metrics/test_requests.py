"""Latencies, throughput and SLOs of requests, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from servesim.contracts.request import State
from servesim.errors import UserError
from servesim.metrics.distribution import describe_counted
from servesim.metrics.request_figures import GOODPUT, LATENCY, REQUESTS, THROUGHPUT
from servesim.metrics.requests import RequestColumns
from servesim.metrics.slo import parse_slo, split_slo, time_text
from servesim.run.scenario import Scenario
from tests.support.measured import measured

MS = 1_000_000
SECOND = 1000 * MS
Make = Callable[..., RequestColumns]


def goodput(columns: RequestColumns, slo: dict[str, float]) -> dict[str, Any]:
    return GOODPUT.of(measured(columns, slo=slo)) or {}


@pytest.fixture
def two(request_columns: Make) -> RequestColumns:
    """A: arrives at 0, scheduled 10, tokens at 100 .. 500 ms, 5 of them. B: arrives at 100 ms, one token at 300."""
    return request_columns(
        prompt_len=[20, 30],
        output_len=[5, 1],
        arrival_ns=[0, 100 * MS],
        scheduled_ns=[10 * MS, 150 * MS],
        first_token_ns=[100 * MS, 300 * MS],
        last_token_ns=[500 * MS, 300 * MS],
    )


def test_latencies_of_two_requests(two: RequestColumns) -> None:
    itl = describe_counted(np.array([50 * MS, 150 * MS]), np.array([2, 2]), MS)
    found = LATENCY.values(measured(two, itl))
    means = {name: stats["mean"] for name, stats in found.items() if stats is not None}
    assert means == {
        "ttft": 150.0,  # 100 and 200
        "tpot": 100.0,  # (500 - 100) / 4; B has one token and is left out
        "itl": 100.0,  # 50, 50, 150, 150
        "e2el": 350.0,  # 500 and 200
        "ntpot": 150.0,  # 500 / 5 and 200 / 1
        "queue_time": 30.0,  # 10 and 50
    }
    assert found["tpot"] is not None
    assert found["tpot"]["count"] == 1


def test_throughput_counts_from_first_arrival_to_last_token(two: RequestColumns) -> None:
    assert two.duration_ns == 500 * MS
    assert THROUGHPUT.of(measured(two)) == {
        "request_throughput": 4.0,
        "output_throughput": 12.0,  # 6 tokens in half a second
        "total_token_throughput": 112.0,  # 50 + 6
    }


def test_an_slo_is_met_at_its_limit_and_tpot_of_one_token_is_zero(two: RequestColumns) -> None:
    found = goodput(two, {"ttft": 200.0, "tpot": 99.0})
    assert found["attainment_by_metric"] == {"ttft": 1.0, "tpot": 0.5}  # B's TPOT counts as 0
    assert found["request_goodput"] == 2.0  # one good request in half a second
    assert found["slo_attainment"] == 0.5
    assert goodput(two, {"ttft": 200.0, "tpot": 100.0})["slo_attainment"] == 1.0
    assert goodput(two, {"e2el": 199.0})["good_requests"] == 0


def test_rejected_requests_count_as_arrivals_that_miss_their_slo(request_columns: Make) -> None:
    columns = request_columns(
        state=[State.FINISHED, State.REJECTED],
        prompt_len=[8, 900],
        output_len=[2, 0],
        arrival_ns=[0, 0],
        scheduled_ns=[0, -1],
        first_token_ns=[SECOND, -1],
        last_token_ns=[2 * SECOND, -1],
    )
    found = goodput(columns, {"ttft": 1000.0})
    assert (found["request_goodput"], found["slo_attainment"]) == (0.5, 0.5)
    told = REQUESTS.values(measured(replace(columns, reasons={0: "length", 1: "too long"})))
    assert (told["arrived"], told["completed"], told["rejected"]) == (2, 1, 1)
    assert told["rejection_reasons"] == {"too long": 1}
    assert told["finish_reasons"] == {"length": 1}
    assert (told["input_tokens"], told["output_tokens"]) == (8, 2)  # of the completed one alone


def test_nothing_completed_gives_no_rates(request_columns: Make) -> None:
    columns = request_columns(state=[State.REJECTED], arrival_ns=[5], last_token_ns=-1)
    assert columns.duration_ns == 0
    assert set(THROUGHPUT.values(measured(columns)).values()) == {None}
    assert set(LATENCY.values(measured(columns)).values()) == {None}
    assert goodput(columns, {"ttft": 1.0})["slo_attainment"] == 0.0
    assert columns.max_concurrency() == 0


def test_at_one_instant_departures_come_before_arrivals(request_columns: Make) -> None:
    relay = request_columns(arrival_ns=[0, 10, 20], last_token_ns=[10, 20, 30])
    assert relay.max_concurrency() == 1
    overlap = request_columns(arrival_ns=[0, 9, 20], last_token_ns=[10, 21, 30])
    assert overlap.max_concurrency() == 2


def test_records_are_sorted_by_trace_row(request_columns: Make) -> None:
    columns = request_columns(row=[2, 0, 1], arrival_ns=[20, 0, 10], last_token_ns=[30, 5, 25])
    assert columns.e2el.tolist() == [5, 15, 10]


def test_slos_are_written_as_metric_and_milliseconds() -> None:
    assert parse_slo("tpot:50,ttft:500") == {"ttft": 500.0, "tpot": 50.0}
    assert parse_slo("ttft:500 e2el:1e4") == {"ttft": 500.0, "e2el": 10000.0}


def test_slos_may_have_units_and_percentiles() -> None:
    assert parse_slo("e2el<30s") == {"e2el": 30000.0}
    assert parse_slo("ttft<0.5s,tpot<=900us") == {"ttft": 500.0, "tpot": 0.9}
    each = parse_slo("ttft:p99<1s,tpot:p99.9:50")
    assert split_slo(each) == ({"ttft": 1000.0, "tpot": 50.0}, {"ttft": 99.0, "tpot": 99.9})
    assert [time_text(ms) for ms in (50, 999, 1000, 2500)] == ["50 ms", "999 ms", "1 s", "2.5 s"]


def test_a_scenario_keeps_which_limits_hold_each() -> None:
    base = {"trace": "synth:", "model": "m", "gpu": "g"}
    scenario = Scenario.of(base | {"slo": "ttft:p99<1s,e2el<30s"})
    assert (scenario.slo, scenario.slo_percentiles) == ({"ttft": 1000.0, "e2el": 30000.0}, {"ttft": 99.0})
    assert Scenario.of(scenario.model_dump()) == scenario
    assert Scenario.of(base | {"slo": {"ttft:p90": "1s", "tpot": 50}}).slo_percentiles == {"ttft": 90.0}
    with pytest.raises(UserError, match="percentiles of limits in slo"):
        Scenario.of(base | {"slo": "ttft:5", "slo_percentiles": {"tpot": 99}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttfp:5", "unknown metric 'ttfp' (did you mean \"ttft\"?)"),
        ("ttft", "must have the form metric:milliseconds"),
        ("ttft<1h", "or a time such as 1s"),
        ("ttft:p0<1", "is not a percentile"),
        ("ttft:p99<1s,ttft:5", "specified twice"),
        ("ttft:fast", "must be a number"),
        ("ttft:-1", "must be a positive number"),
        ("ttft:1,ttft:2", "specified twice"),
    ],
)
def test_slos_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_slo(text)
    assert message in str(caught.value)


def test_query_key_pairs_are_those_of_the_tokens_computed(request_columns: Make) -> None:
    """A prompt of 4 tokens of which 2 were cached, and 3 outputs: tokens 3 to 6 see 3, 4, 5 and 6 keys; a prompt of 2
    without outputs after the first: 1 + 2. What was cut off does not count."""
    states = [State.FINISHED, State.FINISHED, State.ABORTED]
    done = request_columns(prompt_len=[4, 2, 9], output_len=[3, 1, 9], hit_tokens=[2, 0, 0], state=states)
    assert done.total("useful_pairs") == 3 + 4 + 5 + 6 + 1 + 2
    assert done.total("useful_tokens") == 4 + 2


def test_service_weighs_outputs_double_and_asks_for_what_failed_requests_wanted_once(request_columns: Make) -> None:
    """Of three requests the first gets 10 prompt and 4 output tokens. The second fails twice (rows 1 and 4): its first
    attempt asked for 20 and up to 6. The third fails once and succeeds (row 5): 30 and 5 tokens."""
    columns = request_columns(
        row=[0, 1, 2, 4, 5],
        state=[State.FINISHED, *[State.ABORTED] * 3, State.FINISHED],
        prompt_len=[10, 20, 30, 21, 30],
        output_len=[4, 1, 0, 0, 5],
        max_tokens=[9, 6, 9, 7, 9],
        first_token_ns=[0, -1, -1, -1, 0],
        last_token_ns=[8, -1, -1, -1, 10],
    )
    found = columns.service(3)
    assert (found.given, found.refused) == (10 + 2 * 4 + 30 + 2 * 5, 20 + 2 * 6)


def test_a_sample_that_was_forked_looked_nothing_up_and_a_first_one_did(request_columns: Make) -> None:
    """Two samples have all of their prompt: the first found it, the second was forked. A third was admitted by itself,
    and of a fourth, of another request, nothing came to be."""
    columns = request_columns(
        row=[0, 0, 0, 1], sample=[1, 2, 3, 0], prompt_len=[8, 8, 8, 5], hit_tokens=[8, 8, 4, 0],
        scheduled_ns=[1, 1, 1, -1], state=[State.FINISHED, State.FINISHED, State.FINISHED, State.ABORTED],
    )  # fmt: skip
    assert (columns.total("queried_tokens"), columns.total("hit_tokens")) == (8 + 8, 8 + 4)
    assert columns.lookups(9) == [(8, 8), (8, 4)]
    assert columns.lookups(1) == [(8, 4)]


def test_one_that_is_scheduled_at_the_first_instant_has_not_waited_and_one_that_never_is_waits_to_its_end(
    request_columns: Make,
) -> None:
    columns = request_columns(
        scheduled_ns=[0, -1], finished_ns=[40, 30], last_token_ns=[40, -1], state=[State.FINISHED, State.ABORTED]
    )
    arrival, waits, leaves = columns.stays()
    assert (arrival.tolist(), waits.tolist(), leaves.tolist()) == ([0, 0], [0, 30], [40, 30])
