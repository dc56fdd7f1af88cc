"""The age of views: what a router's gateway polls by default, and the scenario's word, which wins."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.features.view_lag.part import Reporting
from tests.support.worlds import World, toy_trace

pytestmark = pytest.mark.feature("view_lag")
RUN: dict[str, Any] = {
    "trace": "synth:rate=20,prompt=500,output=20", "requests": 20, "model": "llama-3.2-1b", "gpu": "h200",
    "replicas": 2, "conclude": False,
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_seen_at_sendings_is_summed_up_and_forgotten(stream: bool) -> None:
    parts: list[Any] = []
    result = servesim.simulate(**RUN, router="llm-d", stream=stream, on_ready=lambda setup: parts.extend(setup.parts))
    assert [len(part.sendings) for part in parts if isinstance(part, Reporting)] == [0]
    assert result.summary["router_view"]["sent"] == 20


def age(router: Any, **more: Any) -> float | None:
    """Return the seconds between reports by the record of a run, which has figures of old views if there are any."""
    result = servesim.simulate(**RUN, router=router, **more)
    assert ("router_view" in result.summary) == bool(result.scenario.cluster.report_every_s)
    found: float | None = result.scenario.cluster.report_every_s
    return found


@pytest.mark.parametrize(
    ("router", "every_s"),
    [
        ("llm-d", 0.05),
        ("llm-d-precise", 0.05),
        ("llm-d-flow-control:router=round-robin", 0.05),
        ("circuit-breaker:router=llm-d", 0.05),
        ("vllm-dp", 0.1),
        ("smg-least-load", 10),
        ("smg-cache-aware:version=1.13.0", 10),
        ("smg-cache-aware:overload_token_usage_threshold=0.9", 10),
    ],
)
def test_a_gateway_that_polls_sees_views_of_that_age(router: str, every_s: float) -> None:
    assert age(router) == every_s


@pytest.mark.parametrize(
    "router",
    [
        "round-robin", "least-outstanding", "sglang-cache-aware", "smg-cache-aware", "vllm-router-cache-aware",
        "smg-cache-aware:version=1.13.0,overload_protection=false", "dynamo-kv", "production-stack-prefix-aware",
        "circuit-breaker:router=power-of-two",
    ],
)  # fmt: skip
def test_a_router_that_reads_no_reports_is_told_of_none(router: str) -> None:
    assert age(router) is None


@pytest.mark.parametrize("every_s", [0.0, 2.5])
def test_what_the_scenario_says_wins(every_s: float) -> None:
    assert age("llm-d", cluster={"report_every_s": every_s}) == every_s


def test_pools_share_the_views_of_their_router() -> None:
    pools = [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 1}]
    without = {key: value for key, value in RUN.items() if key != "replicas"}
    result = servesim.simulate(**without, pools=pools, router="llm-d")
    assert result.scenario.cluster.report_every_s == 0.05
    assert result.summary["router_view"]["sent"] == 20


@pytest.mark.parametrize(("every_ns", "lag_ns"), [(700, 0), (700, 700), (700, 1500)])
def test_reports_end_though_requests_wait_in_the_router_forever(tmp_path: Path, every_ns: int, lag_ns: int) -> None:
    """Each report makes the router reconsider, which by itself is no reason for the next one."""
    (tmp_path / "held.py").write_text(
        "from servesim.contracts import WAIT, Router\n\n\nclass Held(Router):\n"
        "    def route(self, request, views):\n        return WAIT\n"
    )
    router = f"{tmp_path / 'held.py'}:Held"
    world = World(toy_trace([0, 50], [8, 8], [2, 2]), router=router, report_every=every_ns, report_lag=lag_ns)
    cluster = world.cluster("reference")
    cluster.start()
    steps = sum(1 for _ in takewhile(bool, (cluster.step() for _ in range(2_000))))
    assert steps < 200
    assert cluster.num_waiting == 2
