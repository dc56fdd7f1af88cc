"""Many tenants: the largest apart, all others together, at a cost that grows with requests alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.contracts.request import State
from servesim.features.classes.figures import CLASSES, TENANTS, Classes, Tenants
from servesim.metrics.requests import RequestColumns
from servesim.records.columns import REQUEST_COLUMNS
from servesim.run import label_groups
from servesim.run.label_groups import StreamedLabels, by_label
from servesim.run.shown import labeled
from tests.support.labels import parts_of

MS = 1_000_000
SLO = {"ttft": 60.0, "e2el": 300.0}
ASKED: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h200", "intervals": False, "slo": {"ttft": 500}}


def columns(count: int, retries: bool = True) -> RequestColumns:
    """Requests of random lengths and latencies; a tenth is aborted, and half of those are tried again."""
    draw, rows = random.Random(count), []
    for row in range(count):
        lost = draw.random() < 0.1
        tries = [
            (row, lost),
            *([(row + count, draw.random() < 0.5)] if lost and retries and draw.random() < 0.5 else []),
        ]
        for number, aborted in tries:
            values = dict.fromkeys(REQUEST_COLUMNS, 0)
            first = draw.randrange(1, 100) * MS
            values |= {"row": number, "state": State.ABORTED if aborted else State.FINISHED}
            values |= {
                "prompt_len": draw.randrange(1, 90),
                "max_tokens": 10,
                "arrival_ns": row * MS,
                "scheduled_ns": row * MS,
            }
            values |= {"output_len": 0 if aborted else draw.randrange(1, 10), "finished_ns": (row + 500) * MS}
            values |= {"first_token_ns": -1 if aborted else row * MS + first}
            values |= {"last_token_ns": -1 if aborted else row * MS + first + draw.randrange(400) * MS}
            rows.append([values[name] for name in REQUEST_COLUMNS])
    return RequestColumns.of(np.array(rows, dtype=np.int64))


def names(count: int, tenants: int) -> tuple[str, ...]:
    draw = random.Random(tenants)
    return tuple(f"t{min(draw.randrange(tenants), draw.randrange(tenants))}" for _ in range(count))


def test_few_labels_are_all_apart() -> None:
    records, labels = columns(300), names(300, 9)
    found = by_label(records, labels, SLO)
    alone = parts_of(records, labels)
    assert found.sums is None
    assert list(found.parts) == list(alone)
    assert all(np.array_equal(found.parts[name].table["row"], alone[name].table["row"]) for name in alone)  # type: ignore[attr-defined]


def test_figures_over_all_tenants_do_not_depend_on_which_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_groups, "MOST_APART", 3)
    records, labels = columns(400), names(400, 40)
    for slo in (SLO, {}):
        found = by_label(records, labels, slo)
        got = TENANTS.values(Tenants(records, found.parts, 400, slo, found.sums))
        alone = TENANTS.values(Tenants(records, parts_of(records, labels), 400, slo))
        assert got["jain_index"] == pytest.approx(alone["jain_index"])
        assert list(got["tenants"])[-1] == f"({len(set(labels)) - 3} others)"
        largest = sorted(alone["tenants"], key=lambda name: -alone["tenants"][name]["arrived"])[:3]
        assert all(got["tenants"][name] == alone["tenants"][name] for name in largest)
        for total in ("arrived", "completed"):
            assert sum(t[total] for t in got["tenants"].values()) == records.total(total)


def test_a_class_with_limits_of_its_own_is_apart_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_groups, "MOST_APART", 2)
    records, labels = columns(400), ("gold", *names(399, 30))
    slos = {"gold": {"ttft": 1000.0}}
    found = by_label(records, labels, SLO, slos)
    assert "gold" in found.parts
    got, alone = (
        CLASSES.values(Classes(records, parts, SLO, slos)) for parts in (found.parts, parts_of(records, labels))
    )
    assert (got["good_requests"], got["slo_attainment"]) == (alone["good_requests"], alone["slo_attainment"])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_label_called_like_the_group_of_others_has_figures_of_its_own(
    monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    monkeypatch.setattr(label_groups, "MOST_APART", 2)
    records = columns(70, retries=False)
    labels = ["(5 others)"] * 40 + ['"(5 others)"'] * 20 + [f"t{i % 5}" for i in range(10)]
    pieces = StreamedLabels()
    pieces.add(records, labels, SLO, {})
    found = pieces.grouped() if streamed else by_label(records, labels, SLO)
    got = TENANTS.values(Tenants(records, found.parts, 70, SLO, found.sums))["tenants"]
    arrived = {'""(5 others)""': 20, '"(5 others)"': 40, "(5 others)": 10}
    assert {name: group["arrived"] for name, group in got.items()} == arrived
    shown, rest, requests = labeled({"tenants": {"tenants": got}}, "tenant") or ([], "", 0)
    assert ([name for name, _ in shown], rest, requests) == (['"(5 others)"', '""(5 others)""'], "(5 others)", 10)


def test_a_class_called_like_the_group_of_others_keeps_its_limits() -> None:
    records, labels = columns(60, retries=False), ["(5 others)"] * 30 + ["b"] * 30
    slos = {"(5 others)": {"ttft": 1e9}}
    found = by_label(records, labels, {"ttft": 1e-9}, slos)
    got = CLASSES.values(Classes(records, found.parts, {"ttft": 1e-9}, slos))
    assert got["good_requests"] == sum(records.done[:30])


@pytest.mark.parametrize("most", [2, 100])
def test_records_in_pieces_have_the_same_figures(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(label_groups, "MOST_APART", most)
    records, labels = columns(400, retries=False), names(400, 40)
    whole = by_label(records, labels, SLO)
    streamed = StreamedLabels()
    for piece in np.split(np.arange(400), [150, 200]):
        part = records.take(piece)
        streamed.add(part, [labels[row] for row in part.table["row"].tolist()], SLO, {})
    found = streamed.grouped()
    assert len(found.parts) == len(whole.parts)
    both = [TENANTS.values(Tenants(records, each.parts, 400, SLO, each.sums)) for each in (whole, found)]
    assert both[1]["jain_index"] == pytest.approx(both[0]["jain_index"])
    assert sum(t["arrived"] for t in both[1]["tenants"].values()) == 400


def test_the_cost_of_many_tenants_is_that_of_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = RequestColumns.take
    monkeypatch.setattr(RequestColumns, "take", lambda self, which: taken.append(1) or take(self, which))
    records = columns(6000)
    found = by_label(records, tuple(f"t{row % 2000}" for row in range(6000)), SLO)
    assert len(found.parts) == label_groups.MOST_APART + 1
    assert len(taken) == label_groups.MOST_APART + 1


def frame(tenants: dict[str, int]) -> pd.DataFrame:
    label = [name for name, count in tenants.items() for _ in range(count)]
    random.Random(1).shuffle(label)
    n = len(label)
    return pd.DataFrame({"arrival_ns": np.arange(n) * 10**8, "prompt_len": 50, "output_len": 3, "tenant": label})


def shown(tenants: dict[str, int]) -> tuple[list[str], str, int]:
    found = labeled(servesim.simulate(trace=frame(tenants), **ASKED).summary, "tenant")
    assert found is not None
    return [name for name, _ in found[0]], found[1], found[2]


def test_tenants_with_few_requests_are_one_row() -> None:
    assert shown({f"t{i}": 3 for i in range(14)}) == (["t0", "t1", "t10"], "(11 others)", 33)
    assert shown({"a": 40, "b": 20, "c": 12, "d": 11, "e": 3, "f": 2}) == (["a", "b", "c", "d"], "(2 others)", 5)
    assert shown({"a": 4, "b": 3, "c": 2, "d": 1}) == (["a", "b", "c", "d"], "", 0)
    assert shown({f"t{i}": 11 for i in range(15)})[1:] == ("(3 others)", 33)


def test_a_run_of_many_tenants_tells_of_the_largest_and_of_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    from servesim.cli.summary import print_summary

    result = servesim.simulate(trace=frame({"big": 20, **{f"t{i:03}": 1 for i in range(150)}}), **ASKED)
    tenants = result.summary["tenants"]["tenants"]
    assert len(tenants) == 101
    assert tenants["(51 others)"]["arrived"] == 51
    assert result.summary["tenants"]["jain_index"]["service"] == pytest.approx(1)
    print_summary(result, None)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "others)" in line]
    assert row.split() == ["(148", "others)", "148"]
