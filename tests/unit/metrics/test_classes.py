"""Classes with limits of their own, and fairness between tenants, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from servesim.contracts.request import State
from servesim.features.classes.figures import CLASSES, TENANTS, Classes, Tenants, jain_index
from servesim.metrics.requests import RequestColumns
from servesim.records.columns import REQUEST_COLUMNS
from servesim.run.simulate import simulate
from servesim.traces import shape, synthesize
from tests.support.labels import parts_of

MS = 1_000_000


def columns() -> RequestColumns:
    """Rows 0..2 finish after 100, 200, 400 ms (10 tokens each); row 3 is aborted and its retry, 3 + 4, takes 100 ms."""
    rows = []
    for row, ms, state in ((0, 100, 0), (1, 200, 0), (2, 400, 0), (3, 50, 1), (7, 100, 0)):
        values = dict.fromkeys(REQUEST_COLUMNS, 0)
        values |= {"row": row, "state": State.ABORTED if state else State.FINISHED, "prompt_len": 20, "max_tokens": 10}
        values |= {"output_len": 0 if state else 10, "first_token_ns": -1 if state else ms * MS // 2}
        values |= {"last_token_ns": -1 if state else ms * MS, "finished_ns": ms * MS}
        rows.append([values[name] for name in REQUEST_COLUMNS])
    return RequestColumns.of(np.array(rows, dtype=np.int64))


def test_each_class_is_judged_by_its_own_limits() -> None:
    got = CLASSES.values(
        Classes(
            columns(), parts_of(columns(), ("gold", "", "gold", "free")), {"e2el": 150.0}, {"gold": {"e2el": 250.0}}
        )
    )
    gold, rest, free = got["classes"]["gold"], got["classes"][""], got["classes"]["free"]
    assert (gold["arrived"], gold["goodput"]["good_requests"], gold["goodput"]["slo_attainment"]) == (2, 1, 0.5)
    assert (rest["arrived"], rest["goodput"]["good_requests"]) == (1, 0)
    assert (free["arrived"], free["completed"], free["goodput"]["slo_attainment"]) == (2, 1, 0.5)
    assert got["good_requests"] == 2
    assert got["request_goodput"] == pytest.approx(2 / 0.4)
    assert gold["goodput"]["request_goodput"] == pytest.approx(1 / 0.4), "per second of the whole run"
    assert gold["latency_ms"]["e2el"]["mean"] == pytest.approx(250)


def test_jains_index_is_one_for_equals_and_one_nth_for_a_single_winner() -> None:
    assert jain_index([3, 3, 3]) == pytest.approx(1)
    assert jain_index([5, 0, 0, None]) == pytest.approx(1 / 4)
    assert jain_index([1, 2]) == pytest.approx(9 / 10)


def test_tenants_have_service_and_speed() -> None:
    got = TENANTS.values(Tenants(columns(), parts_of(columns(), ("a", "a", "b", "b")), 4, {"e2el": 150.0}))
    a, b = got["tenants"]["a"], got["tenants"]["b"]
    assert a["speed"] == pytest.approx(2 / (0.01 + 0.02))  # 10 and 20 ms a token
    assert (a["service"], b["service"]) == (1.0, 1.0), "the retry did what the first attempt had asked for"
    assert b["speed"] == pytest.approx(2 / (0.04 + 0.01))
    assert got["jain_index"]["slo_attainment"] == pytest.approx((1 / 2 + 1 / 3) ** 2 / (2 * (1 / 4 + 1 / 9)))
    alone = TENANTS.values(Tenants(columns(), parts_of(columns(), ("a", "a", "b", "c")), 4, {}))
    assert set(alone["jain_index"]) == {"service", "speed"}


def test_a_run_reports_its_classes_and_tenants_and_limits_nobody_has() -> None:
    trace = shape(synthesize("rate=20,prompt=100,output=20", 80), ["label:share=0.5,slo_class=gold", "label:tenant=t"])
    result = simulate(
        trace=trace, model="llama-3.1-8b", gpu="h100", slo="ttft:1000",
        slo_classes={"gold": "ttft:0.001", "silver": "tpot:5"},
    )  # fmt: skip
    classes = result.summary["classes"]["classes"]
    assert classes["gold"]["goodput"]["good_requests"] == 0
    assert classes[""]["goodput"]["slo_attainment"] == 1.0
    assert classes["gold"]["arrived"] + classes[""]["arrived"] == 80
    assert result.summary["tenants"]["jain_index"]["service"] == pytest.approx(1)
    assert set(result.requests["class"]) == {"", "gold"}
    assert any("slo_classes.silver has no effect" in note for note in result.summary["warnings"])
