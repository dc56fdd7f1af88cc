"""The lives of replicas: what the summary says of their states, and the figure, by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import servesim
from servesim.reports.figures.fleet import STATES, fleet, lives
from servesim.reports.run import Run

LOAD: dict[str, Any] = {
    "trace": "synth:arrivals=constant,rate=10,prompt=400,output=40",
    "requests": 200,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "conclude": False,
}


def run_of(**more: Any) -> Run:
    return Run(servesim.simulate(**{**LOAD, **more}))


@pytest.mark.feature("failures")
def test_a_crash_shows_before_it_is_known_and_ends_with_the_restart() -> None:
    """It breaks at 5 s, is known 2 s later, and serves again after 6 s in all."""
    failures = {"failures": ["crash:replica=1,at=5,restart=6"], "detection_s": 2}
    run = run_of(replicas=2, cluster=failures)
    first_s = run.begin_ns / 1e9
    end_s = (run.end_ns - run.begin_ns) / 1e9
    told = run.summary["replicas"][1]["states"][1:]
    assert told == [[5.0, "crashed"], [7.0, "failed"], [11.0, "starting"], [11.0, "ready"]], "by the scenario's clock"
    healthy, broken = lives(run)
    assert healthy == [(0.0, pytest.approx(end_s), "ready")]
    found = [(round(begin + first_s, 6), round(end + first_s, 6), state) for begin, end, state in broken[1:-1]]
    assert found == [(5.0, 7.0, "crashed"), (7.0, 11.0, "failed")]
    assert [state for _, _, state in broken] == ["ready", "crashed", "failed", "ready"]


@pytest.mark.feature("scaling")
def test_an_autoscaler_s_replicas_start_serve_drain_and_go() -> None:
    load = {"trace": "synth:arrivals=constant,rate=9,prompt=1500,output=200", "requests": 700}
    run = run_of(**load, model="llama-3.1-8b", gpu="l40s", replicas=1, router="least-requests", scaler="hpa:target=1")
    found = lives(run)
    assert len(found) > 1
    assert all(life[0][2] in ("ready", "starting") for life in found if life)
    for life in found:
        assert all(a[1] == b[0] for a, b in itertools.pairwise(life)), "no time between two states"
    drawn = fleet(run)
    assert drawn is not None
    assert "starting" in drawn.alt


def test_replicas_that_never_change_have_no_figure_and_no_states() -> None:
    run = run_of(replicas=2)
    assert all("states" not in one for one in run.summary["replicas"])
    assert fleet(run) is None


@pytest.mark.feature("failures")
def test_areas_add_up_to_the_time_that_replicas_were_there() -> None:
    failures = {"failures": ["crash:replica=1,at=5,restart=6"], "detection_s": 2}
    run = run_of(replicas=3, cluster=failures)
    drawn = fleet(run)
    assert drawn is not None
    data = drawn.data
    bars = data[data.panel == "Each replica"]
    total = (bars.x_end - bars.x).sum()
    assert total == pytest.approx(3 * (run.end_ns - run.begin_ns) / 1e9, rel=1e-6)
    assert set(bars.series) <= {words for _, _, words in STATES}
    assert np.isfinite(bars.x.astype(float)).all()
