"""The work of a plan of FastServe grows with the requests, not with their square."""

from __future__ import annotations

import pytest

from servesim.policies.scheduling import fastserve
from tests.support.worlds import World, toy_trace


def test_each_plan_looks_at_a_request_a_few_times_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, plans = 0, 0
    pending, plan = fastserve.pending, fastserve.FastServe.plan

    def looked(request: object) -> int:
        nonlocal looks
        looks += 1
        return pending(request)  # type: ignore[arg-type]

    def planned(self: fastserve.FastServe, ctx: object) -> object:
        nonlocal plans
        plans += 1
        return plan(self, ctx)  # type: ignore[arg-type]

    monkeypatch.setattr(fastserve, "pending", looked)
    monkeypatch.setattr(fastserve.FastServe, "plan", planned)
    n = 150
    trace = toy_trace([0] * n, [40] * n, [12] * n)
    done = World(trace, scheduler="fastserve", kv="paged", num_blocks=150, max_num_seqs=n).run("reference")
    assert (done.recorder.requests.column("num_preemptions") > 0).any()
    assert looks <= 5 * n * plans  # with a look at all behind each request: 18 n
