"""Routers in front of others: parameters of the one behind, what it hears, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import servesim
from servesim.contracts import Router, routers
from servesim.contracts.section import Settings
from servesim.errors import UserError
from servesim.policies.routing._behind import InFront, InFrontParams
from servesim.policies.routing.circuit_breaker import CircuitBreaker
from tests.support.routing import router_of

RUN: dict[str, Any] = {
    "trace": "preset:mooncake-conversation", "requests": 60, "model": "llama-3.1-8b", "gpu": "h200", "replicas": 3,
    "conclude": False,
}  # fmt: skip
IN_FRONT = [name for name in routers.names() if issubclass(routers.resolve(name)[0], InFront)]
KV_EVENTS = ["dynamo-kv:router_temperature=0.3,router_track_output_blocks=true", "llm-d-precise:prefix_weight=5"]


def sent(router: Any, **more: Any) -> list[int]:
    found: list[int] = servesim.simulate(**RUN, router=router, **more).requests["replica"].tolist()
    return found


@pytest.mark.parametrize("inner", KV_EVENTS)
@pytest.mark.parametrize("name", IN_FRONT)
def test_a_router_of_cached_blocks_chooses_behind_another_as_by_itself(name: str, inner: str) -> None:
    wide = {"token-bucket": "burst=60,", "early-rejection": "ttft_s=1e6,", "llm-d-flow-control": "queue_depth=1e6,"}
    views = {"cluster": {"report_every_s": 0}}
    assert sent(f"{name}:{wide.get(name, '')}router=({inner})", **views) == sent(inner, **views)


@pytest.mark.parametrize(
    "given",
    [
        "circuit-breaker:router=llm-d:queue_weight=7",
        "circuit-breaker:router=(llm-d:queue_weight=7)",
        {"name": "circuit-breaker", "router": "llm-d:queue_weight=7"},
        {"name": "circuit-breaker", "router": {"name": "llm-d", "queue_weight": 7}},
    ],
)
def test_the_router_behind_has_parameters_and_the_record_has_all_of_them(given: Any) -> None:
    scenario = servesim.simulate(**{**RUN, "requests": 2}, router=given).scenario
    inner = scenario.router["router"]
    assert (inner["name"], inner["queue_weight"], inner["prefix_weight"]) == ("llm-d", 7, 3)
    again = servesim.Scenario.of(scenario.model_dump())
    assert again.router == scenario.router


def test_two_parameters_stand_in_brackets_and_three_routers_behind_one_another() -> None:
    spec = "token-bucket:router=(concurrency-limit:queue_size=2,router=(llm-d:queue_weight=7,prefix_weight=1)),burst=3"
    params = servesim.simulate(**{**RUN, "requests": 2}, router=spec).scenario.router
    assert (params["burst"], params["router"]["queue_size"]) == (3, 2)
    assert (params["router"]["router"]["queue_weight"], params["router"]["router"]["prefix_weight"]) == (7, 1)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("circuit-breaker:router=lmd-d", "unknown router 'lmd-d'"),
        ("circuit-breaker:router=llm-d:queue_wait=1", "router llm-d: unknown parameter 'queue_wait'"),
        ("circuit-breaker:router=(llm-d:queue_weight=high)", "router llm-d: queue_weight = 'high'"),
        ("circuit-breaker:router=(llm-d:queue_weight=-1)", "router llm-d: queue_weight is -1 but must be at least 0"),
        ("circuit-breaker:router=", "a policy must be a name"),
        ("circuit-breaker:router=circuit-breaker", "router circuit-breaker stands behind itself"),
        (
            "token-bucket:router=(circuit-breaker:router=token-bucket)",
            "router token-bucket stands behind itself: token-bucket -> circuit-breaker -> token-bucket",
        ),
        ({"name": "circuit-breaker", "router": {"queue_weight": 1}}, "a policy must be a name"),
    ],
)
def test_what_is_no_router_behind_is_refused_in_a_line(spec: Any, says: str) -> None:
    with pytest.raises(UserError) as error:
        servesim.simulate(**RUN, router=spec)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@dataclass(frozen=True, kw_only=True)
class LoopParams(InFrontParams):
    """A router that by default stands behind itself."""

    router: str | Settings = "loop"


def test_a_class_that_stands_behind_itself_by_default_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loop(CircuitBreaker):
        """Router whose default is itself."""

        Params = LoopParams

    monkeypatch.setitem(routers._classes, "loop", Loop)
    with pytest.raises(UserError, match="router loop stands behind itself: loop -> loop"):
        router_of("loop", 2)


@pytest.mark.parametrize(
    ("spec", "hears"),
    [
        ("circuit-breaker:router=round-robin", {"on_finish"}),
        ("circuit-breaker:router=power-of-two", {"on_sent", "on_finish", "on_replica"}),
        (
            "circuit-breaker:router=dynamo-kv",
            {"on_sent", "on_prefill_done", "on_finish", "on_kv_events", "on_replica"},
        ),
        (
            "circuit-breaker:router=(dynamo-kv:router_track_output_blocks=true)",
            {"on_sent", "on_prefill_done", "on_output_block", "on_finish", "on_kv_events", "on_replica"},
        ),
        ("circuit-breaker:router=smg-least-load", {"on_sent", "on_finish", "on_report", "on_replica"}),
    ],
)
def test_a_router_hears_what_it_or_the_one_behind_it_listens_to_and_nothing_else(spec: str, hears: set[str]) -> None:
    name, _, inner = spec.partition(":router=")
    assert router_of(name, 2, router=inner).hears() == hears


def test_queues_behind_one_another_both_know_who_waits() -> None:
    from tests.unit.routing.test_admission import request

    outer: Any = router_of("llm-d-flow-control", 1, router="concurrency-limit:max_concurrent_requests=1")
    assert isinstance(outer, Router)
    outer.queue_key(request(0, "a"))
    assert outer.inner.queued == {0}
