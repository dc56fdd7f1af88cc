"""The page of a capacity question: what carries comes first, tiles tell four facts, and figures show the limits."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from servesim.experiments.capacity_answer import front_metrics, ordered
from servesim.experiments.ranking import pareto_front
from servesim.reports.capacity_page import FIGURES, _lead, _limit, _tiles, page
from servesim.reports.experiment import Experiment
from servesim.reports.figures.load import attainment

LIMITS = {"ttft": 500.0, "tpot": 50.0}


def row(label: str, rate: float | None, price: float, verdict: str = "carries", **more: Any) -> dict[str, Any]:
    values = {"ttft_p99": 480.0, "tpot_p99": 30.0, "e2el_p99": 9000.0, "output_throughput": 100.0 * (rate or 0),
              "usd_per_million_tokens": price / (rate or 1), "slo_attainment": 0.99}  # fmt: skip
    share = 0.99 if verdict == "carries" else 0.4
    return {
        "label": label, "axes": {"gpu": "h100"}, "gpu": "h100", "gpus": 1, "replicas": 1, "usd_per_hour": price,
        "rate": rate, "rate_low": rate, "rate_high": rate, "verdict": verdict, "values": values, "attainment": share,
        "best_attainment": share, "best_at": 1.0, "by": None, "window": None, "reason": "it is slow", "goal": 0,
        "cheapest": False, "pareto": True, "error": None, "model_error": None,
    } | more  # fmt: skip


def document(*rows: dict[str, Any]) -> dict[str, Any]:
    points = [
        {"label": r["label"], "replicate": 0, "rate": at, "replicas": 1, "address": "a", "unstable": False,
         "attainment": share, "worst_window": None}
        for i, r in enumerate(rows) for at, share in ((1.0, 1.0), (10.0 + i, 0.991 + i / 1000), (20.0 + i, 0.2))
    ]  # fmt: skip
    goals = [{"limits": LIMITS, "share": 0.99, "text": "99 % of requests within TTFT 500 ms and TPOT 50 ms"}]
    return {
        "schema": "servesim.capacity/1", "question": "highest rate", "answer": "Take it", "rows": list(rows),
        "points": points, "warnings": [], "notes": [], "model_error": None, "replicates": {"kind": "seeds", "count": 2},
        "workload": {"model": "llama-3.1-8b", "requests": 200, "trace": "t"},
        "settings": {"goals": goals, "attainment": 0.99, "slo": LIMITS, "level": 0.95},
    }  # fmt: skip


def experiment(folder: Path, *rows: dict[str, Any]) -> Experiment:
    (folder / "capacity.json").write_text(json.dumps(document(*rows)))
    return Experiment.load(folder, "capacity")


MIXED = [
    row("never a", None, 1.0, "never"),
    row("dear", 10.0, 3.0),
    row("never b", None, 1.0, "never", best_attainment=0.8),
    row("cheap", 10.0, 1.0),
]


def test_what_carries_comes_first_and_cheapest_and_what_never_does_last() -> None:
    assert [r["label"] for r in ordered(MIXED)] == ["cheap", "dear", "never b", "never a"]


def test_the_table_and_the_list_of_a_page_have_that_order(tmp_path: Path) -> None:
    experiment(tmp_path, *MIXED)
    html = page(tmp_path).html()
    assert re.findall(r'<th scope="row"[^>]*>([^<]+)', html)[:4] == ["cheap", "dear", "never b", "never a"]
    assert html.index("never b: 80 %") < html.index("never a: 40 %")


def test_tiles_say_four_things_of_the_cheapest_even_if_others_tie() -> None:
    tiles = _tiles(document(*(row(f"h100 / {i}", 12.6, 3.0) for i in range(5))))
    assert len({tile["name"] for tile in tiles}) == len({tile["value"] for tile in tiles}) == 4
    assert tiles[2]["note"] == "the same as 4 others"
    assert (tiles[3]["name"], tiles[3]["value"], tiles[3]["unit"]) == ("TTFT p99", "480", "ms")
    assert tiles[3]["note"] == "limit 500 ms"
    assert _tiles(document(*MIXED))[2]["note"] == "67 % less than dear"
    assert _tiles(document(row("never", None, 1.0, "never"))) == []


@pytest.mark.parametrize(
    ("limits", "latency"),
    [(LIMITS, "ttft_p99"), ({"ttft": 5000.0, "tpot": 31.0}, "tpot_p99"), ({"e2el": 9e3}, "e2el_p99"), ({}, "e2el_p99")],
)
def test_the_front_has_the_latency_that_comes_closest_to_its_limit(limits: dict[str, float], latency: str) -> None:
    assert front_metrics([row("a", 10.0, 3.0)], [limits]) == ("usd_per_million_tokens", latency, "output_throughput")


def test_the_front_takes_the_tightest_limit_and_no_latency_that_is_not_known() -> None:
    found = row("a", 10.0, 3.0)
    ttft, tpot = found["values"]["ttft_p99"], found["values"]["tpot_p99"]
    limits = [{"ttft": 1.1 * ttft}, {"ttft": 100 * ttft}, {"tpot": 2 * tpot}]
    assert front_metrics([found], limits)[1] == "ttft_p99"
    unknown = found | {"values": found["values"] | {"tpot_p99": float("nan")}}
    for each in (limits, limits[::-1]):
        assert front_metrics([unknown], [*each, {"tpot": 0.01}])[1] == "ttft_p99"


def test_a_deployment_without_a_latency_that_is_known_is_not_on_the_front() -> None:
    found, metrics = row("a", 10.0, 3.0), ("usd_per_million_tokens", "ttft_p99", "output_throughput")
    unknown = row("b", 10.0, 3.0)
    unknown["values"]["ttft_p99"] = float("nan")
    assert pareto_front([found, unknown], metrics) == {"a"}


def axes_of(svg: str) -> list[Any]:
    return [json.loads(unescape(found))[0] for found in re.findall(r'data-axes="([^"]+)"', svg)]


def test_shares_are_drawn_around_the_required_one_so_that_lines_differ(tmp_path: Path) -> None:
    """0.1 % between two lines are 2 % of the height: the axis shows five times what may be lost."""
    drawn = FIGURES["attainment"](experiment(tmp_path, row("a", 10.0, 1.0), row("b", 10.0, 2.0)))
    assert drawn is not None
    for panel in axes_of(str(drawn.svg)):
        assert panel["y"]["from"] == pytest.approx(0.95)
        assert panel["y"]["to"] < 1.01
        assert panel["x"]["to"] < 20, "rates at which all is lost take no room"
    assert "Shares below 95 % are outside the frame." in drawn.caption


def test_dots_show_the_latency_that_is_limited(tmp_path: Path) -> None:
    drawn = FIGURES["pareto"](experiment(tmp_path, row("a", 10.0, 1.0), row("b", 10.0, 2.0)))
    assert drawn is not None
    assert axes_of(str(drawn.svg))[0]["y"]["label"] == "TTFT p99"
    assert 480.0 in set(drawn.data["y"])


def test_deployments_that_cost_nothing_cost_the_same() -> None:
    free = [row(label, 10.0, 3.0) | {"usd_per_hour": 0.0} for label in "ab"]
    assert _lead(free) == "the same as b"


def test_shares_of_a_limit_that_all_must_meet_are_drawn_from_99_percent() -> None:
    drawn = attainment({"a": [(1.0, 1.0), (2.0, 0.995), (3.0, 0.4)]}, {"a": "violet"}, 1.0, "requests/s")
    assert [panel["y"]["from"] for panel in axes_of(str(drawn.svg))] == [pytest.approx(0.99)] * 2


def test_a_limit_that_is_not_of_the_99th_percentile_says_for_how_many_requests_it_is() -> None:
    goals = [{"limits": {"ttft": 800.0}, "share": 0.5}, {"limits": {"ttft": 2000.0, "tpot": 50.0}, "share": 0.99}]
    assert _limit(goals[:1], "ttft") == "limit 800 ms for 50 % of requests"
    assert _limit(goals, "ttft") == "limit 2.00 s"  # a p99 stands beside it
    assert _limit(goals, "tpot") == "limit 50.0 ms"
    assert _limit(goals, "e2el") == ""


def test_a_limit_of_one_class_does_not_stand_beside_the_latency_of_all_requests() -> None:
    goals = [{"limits": {"ttft": 200.0}, "share": 0.99, "of": "gold"}, {"limits": {"ttft": 800.0}, "share": 0.9}]
    assert _limit(goals, "ttft") == "limit 800 ms for 90 % of requests"
    assert _limit(goals[:1], "ttft") == ""
