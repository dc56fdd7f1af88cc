"""What a router saw beside what was there: by hand, the same in both modes, and the figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.reports.figures.views import router_view
from servesim.reports.roofline_page import _time
from servesim.reports.run import Run

pytestmark = pytest.mark.feature("view_lag")

LEAST_SEEN = """
from servesim.contracts.router import Router


class LeastSeen(Router):
    name = "least-seen"

    def route(self, request, views):
        return min(range(len(views)), key=lambda i: views[i].num_waiting + views[i].num_running)
"""


@pytest.fixture
def least_seen(tmp_path: Path) -> str:
    path = tmp_path / "least_seen.py"
    path.write_text(LEAST_SEEN)
    return f"{path}:LeastSeen"


def simulated(router: str, n: int = 12, every_s: float = 4.0, **more: Any) -> Any:
    """A request a second, each of which takes far longer than the run of arrivals, on two replicas."""
    trace = pd.DataFrame(
        {"arrival_ns": [int(1e9 * (i + 0.5)) for i in range(n)], "prompt_len": [64] * n, "output_len": [4000] * n}
    )
    cluster = {"report_every_s": every_s, **more.pop("cluster", {})}
    base: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h200", "replicas": 2, "conclude": False}
    return servesim.simulate(trace=trace, router=router, cluster=cluster, **{**base, **more})


def test_between_two_reports_all_go_where_the_last_one_saw_least(least_seen: str) -> None:
    """Reports at 0, 4 and 8 s; a request each second at the half. Four to replica 0, seen empty; then four to replica
    1, seen empty; then both are seen with four, and the first of them gets the rest."""
    result = simulated(least_seen)
    table = result.requests
    assert table["replica"].tolist() == [0] * 4 + [1] * 4 + [0] * 4
    assert table["load_seen"].tolist() == [0] * 8 + [4] * 4
    assert table["load_there"].tolist() == [0, 1, 2, 3] * 2 + [4, 5, 6, 7]
    error = (2 * (0 + 1 + 2 + 3) + (0 + 1 + 2 + 3)) / 12
    found = result.summary["router_view"]
    assert found == {"sent": 12, "seen": 16 / 12, "there": pytest.approx(34 / 12), "error": error}


def test_what_a_step_does_is_reported_once_it_has_ended(least_seen: str) -> None:
    """Reports every 10 ms. A prompt of 8,000 tokens takes a step of a few 100 ms. All that come during it go to replica
    0, which is still seen empty; one that comes later does not."""
    trace = pd.DataFrame(
        {"arrival_ns": [5_000_000, 55_000_000, 105_000_000, 900_000_000], "prompt_len": 8000, "output_len": 4000}
    )
    cluster = {"report_every_s": 0.01}
    base: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h200", "replicas": 2, "conclude": False}
    table = servesim.simulate(trace=trace, router=least_seen, cluster=cluster, **base).requests
    first_step_s = (table["first_token_ns"][0] - table["arrival_ns"][0]) / 1e9
    assert 0.11 < first_step_s < 0.8
    assert table["replica"].tolist() == [0, 0, 0, 1]
    assert table["load_seen"].tolist()[:3] == [0, 0, 0]
    assert table["load_there"].tolist()[:3] == [0, 1, 2]


@pytest.mark.parametrize("router", ["least-requests", "power-of-two", "llm-d"])
def test_both_modes_keep_the_same(router: str) -> None:
    load: dict[str, Any] = {"trace": "synth:rate=80,prompt=200,output=40", "requests": 300, "replicas": 3}
    load |= {"model": "llama-3.2-1b", "gpu": "h200", "conclude": False, "router": router}
    load |= {"cluster": {"report_every_s": 0.2, "report_lag_s": 0.05}}
    fast, reference = (servesim.simulate(**load, mode=mode) for mode in ("fast", "reference"))
    columns = ["load_seen", "load_there"]
    pd.testing.assert_frame_equal(fast.requests[columns], reference.requests[columns])
    assert fast.summary["router_view"] == reference.summary["router_view"]
    assert fast.summary["router_view"]["error"] > 0


@pytest.mark.feature("handoff")
def test_prompts_computed_apart_are_told_of_by_their_own_replica() -> None:
    result = simulated("least-requests", n=6, pd="1x1:1x1", replicas=2)
    assert (result.requests["load_seen"] == 0).all(), "a prompt is gone long before the next report"
    assert (result.requests["load_there"] == 0).all()


def test_live_views_and_blind_routers_keep_nothing() -> None:
    load: dict[str, Any] = {"trace": "synth:rate=20,prompt=200,output=40", "requests": 40, "replicas": 2}
    load |= {"model": "llama-3.2-1b", "gpu": "h200", "conclude": False}
    for more in ({"router": "least-requests"}, {"router": "round-robin", "cluster": {"report_every_s": 1.0}}):
        result = servesim.simulate(**load, **more)
        assert "router_view" not in result.summary
        assert "load_seen" not in result.requests
        assert router_view(Run(result)) is None


def test_the_figure_draws_the_means_of_view_and_truth(least_seen: str) -> None:
    run = Run(simulated(least_seen, n=64))
    drawn = router_view(run)
    assert drawn is not None
    data = drawn.data
    seen, there = (data[data.series == words].y for words in ("by the last report", "in truth"))
    assert np.mean(seen) == pytest.approx(run.requests["load_seen"].mean())
    assert np.mean(there) == pytest.approx(run.requests["load_there"].mean())
    assert "Reports come every 4 s" in drawn.caption


@pytest.mark.parametrize(
    ("ns", "text"), [(99.0, "0.099 µs"), (99_900.0, "99.9 µs"), (1e5, "0.10 ms"), (2.5e6, "2.50 ms"), (None, "–")]
)
def test_times_of_operators_are_in_microseconds_below_a_tenth_of_a_millisecond(ns: float | None, text: str) -> None:
    assert _time(ns) == text
