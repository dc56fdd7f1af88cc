"""Requests that wait for KV computed elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts import Request, State
from servesim.contracts.connector import Connector
from servesim.engine.cluster import Cluster
from servesim.errors import PolicyError, UserError
from servesim.policies.kv.hybrid import Hybrid
from tests.support.elsewhere import Elsewhere, connected
from tests.support.worlds import ToyCost, World, toy_trace

COST = ToyCost(fixed=100, token=1, context=0)  # 100 ns a step, one a token and one a request that samples
MODES = ("reference", "fast")


def rows(cluster: Cluster, *names: str) -> list[list[int]]:
    """Columns of the requests, by row."""
    columns = [cluster.recorder.requests.column(name).tolist() for name in ("row", *names)]
    return [list(values) for _, *values in sorted(zip(*columns, strict=True))]


@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_whose_kv_comes_computes_the_rest_when_it_has_come(mode: str) -> None:
    """40 tokens, 32 of them from elsewhere after 1,000 ns: then one step of 8 tokens (100 + 8 + 1 ns)."""
    cluster = connected(World(toy_trace([0], [40], [2]), cost=COST), mode, every=1, tokens=32, ns=1_000)
    cluster.run()
    assert rows(cluster, "scheduled_ns", "first_token_ns", "finished_ns") == [[1_000, 1_109, 1_211]]
    assert cluster.recorder.steps.column("prefill_tokens").tolist() == [8, 0]


@pytest.mark.parametrize("mode", MODES)
def test_where_all_of_a_prompt_comes_its_last_token_is_computed_here(mode: str) -> None:
    cluster = connected(World(toy_trace([0], [40], [2]), cost=COST), mode, every=1, tokens=999, ns=1_000)
    cluster.run()
    assert rows(cluster, "first_token_ns") == [[1_000 + 100 + 1 + 1]]


@pytest.mark.parametrize("mode", MODES)
def test_others_run_meanwhile_and_the_next_plan_after_the_transfer_takes_it(mode: str) -> None:
    """Row 1 decodes from 210 ns on, in steps of 102 ns. The KV of row 0 has come at 1,000 ns, while a step runs that
    ends at 1,026 ns: with the next one the 8 tokens are computed beside a decode (100 + 9 + 2 ns)."""
    world = World(toy_trace([0, 0], [40, 109], [2, 60]), cost=COST)
    cluster = connected(world, mode, every=2, tokens=32, ns=1_000)
    cluster.run()
    assert rows(cluster, "scheduled_ns", "first_token_ns")[0] == [1_026, 1_137]
    assert rows(cluster, "scheduled_ns", "first_token_ns")[1] == [0, 210]


def test_its_memory_is_held_from_the_start_and_filled_when_the_kv_has_come() -> None:
    cluster = connected(World(toy_trace([0], [40], [2]), cost=COST, num_blocks=11), "reference", 1, 32, 1_000)
    core: Any = cluster.replicas[0].core
    seen: list[tuple[int, int, int]] = []
    cluster.start()
    while cluster.step():
        usage = core.kv.usage()
        seen.append((cluster.now_ns, usage.used, usage.internal))
    assert seen[0] == (0, 0, 0)  # it has arrived
    assert seen[1] == (0, 0, 32)  # two blocks wait for their KV
    assert seen[2] == (1_000, 32, 0)
    assert seen[-1][1:] == (0, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("asked_ns", "hit"), [(500, 0), (5_000, 32)])
@pytest.mark.parametrize("kv", ["prefix-hash", "prefix-oracle", "prefix-radix:page_size=16"])
def test_others_find_what_comes_when_it_has_come_and_not_before(kv: str, asked_ns: int, hit: int, mode: str) -> None:
    runs = [[(1, 32), (10 + row, 8)] for row in range(2)]
    world = World(toy_trace([0, asked_ns], [40] * 2, [1] * 2, runs=runs), cost=COST, kv=kv)
    cluster = connected(world, mode, every=2, tokens=32, ns=2_000)
    cluster.run()
    assert rows(cluster, "hit_tokens") == [[0], [hit]]


@pytest.mark.parametrize("mode", MODES)
def test_where_there_is_no_memory_for_what_comes_the_head_of_the_queue_waits(mode: str) -> None:
    """Row 0 takes 4 of 5 blocks until it ends; row 1 finds 2 blocks elsewhere, and asks again then."""
    world = World(toy_trace([0, 10], [60, 40], [3, 1]), cost=COST, num_blocks=6)
    cluster = world.cluster(mode, check=True)
    elsewhere = Elsewhere(1, 32, 1_000)
    elsewhere.available = lambda request, n: 32 * (request.row == 1)  # type: ignore[method-assign]
    cluster.replicas[0].connect(elsewhere)
    cluster.run()
    ended = rows(cluster, "finished_ns")[0][0]
    assert elsewhere.loads == [(1, 0, 32, ended)]


@pytest.mark.parametrize("mode", MODES)
def test_a_request_stays_as_it_is_while_memory_for_what_comes_is_asked_for(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 1 finds 2 blocks elsewhere, and memory is full until row 0 ends."""
    asked: list[tuple[int, State, bool]] = []
    plain = Hybrid.can_load

    def can_load(kv: Hybrid, request: Request, *of: Any) -> bool:
        state, fits = request.state, plain(kv, request, *of)
        asked.append((request.row, state, fits))
        return fits

    monkeypatch.setattr(Hybrid, "can_load", can_load)
    world = World(toy_trace([0, 10], [60, 40], [3, 1]), cost=COST, num_blocks=6, kv="hybrid")
    cluster = world.cluster(mode, check=True)
    elsewhere = Elsewhere(1, 32, 1_000)
    elsewhere.available = lambda request, n: 32 * (request.row == 1)  # type: ignore[method-assign]
    cluster.replicas[0].connect(elsewhere)
    cluster.run()
    assert asked[0] == (1, State.WAITING, False)
    assert asked[-1] == (1, State.WAITING, True)


@pytest.mark.parametrize("patience", [300, 1_050, 1_000])
@pytest.mark.parametrize("mode", MODES)
def test_the_memory_of_a_client_that_gives_up_is_free_once_all_has_come(mode: str, patience: int) -> None:
    """While its KV comes, while it waits behind a full batch when it has come, and at the very instant."""
    world = World(
        toy_trace([0, 0], [40, 109], [2, 60], cancel=[patience, -1]), cost=COST, max_num_seqs=1, num_blocks=40
    )
    cluster = connected(world, mode, every=2, tokens=32, ns=1_000)
    cluster.run()
    assert rows(cluster, "state", "finished_ns")[0] == [6, patience]
    core: Any = cluster.replicas[0].core
    assert core.kv.usage().free == core.kv.capacity_tokens
    assert core.fetched == {}


def test_one_that_gives_way_asks_again_and_says_how_much_came() -> None:
    trace = toy_trace([0, 0], [40, 40], [30, 30])
    kept: list[Request] = []
    cluster = World(trace, cost=COST, num_blocks=8).cluster("reference", check=True)
    elsewhere = Elsewhere(1, 32, 1_000)
    core = cluster.replicas[0].core
    cluster.replicas[0].connect(elsewhere)
    left = core.on_leave
    core.on_leave = lambda request: (kept.append(request), left(request))[1]  # type: ignore[func-returns-value]
    cluster.run()
    again = [row for row, *_ in elsewhere.loads]
    assert sorted(again) == [0, 1, 1]
    by_row = {request.row: request for request in kept}
    assert (by_row[0].loaded_tokens, by_row[1].loaded_tokens) == (32, 64)
    assert by_row[1].recomputed_tokens == rows(cluster, "recomputed_tokens")[1][0] > 0


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"scheduler": "static"}, "scheduler static cannot wait for remote KV; use scheduler vllm"),
        ({"scheduler": "sjf"}, "scheduler sjf cannot wait for remote KV; use scheduler vllm"),
    ],
)
def test_policies_that_cannot_wait_are_refused_by_name(policies: dict[str, str], message: str) -> None:
    cluster = World(toy_trace([0], [40], [2]), **policies).cluster()  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        cluster.replicas[0].connect(Elsewhere(1, 32, 1_000))


def test_memory_that_is_shared_but_cannot_wait_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hybrid, "supports", frozenset())
    cluster = World(toy_trace([0], [40], [2]), kv="hybrid").cluster()
    with pytest.raises(UserError, match="kv hybrid cannot reserve memory for remote KV"):
        cluster.replicas[0].connect(Elsewhere(1, 32, 1_000))


class Wrong(Connector):
    def __init__(self, tokens: Any, end_ns: Any) -> None:
        self._tokens, self._end_ns = tokens, end_ns

    def available(self, request: Request, num_tokens: int) -> int:
        return self._tokens  # type: ignore[no-any-return]

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        return self._end_ns  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("tokens", "end_ns", "message"),
    [
        (41, 0, r"41 tokens of .* are available elsewhere, after 0 that are local"),
        (-1, 0, r"-1 tokens of .* are available elsewhere, after 0 that are local"),
        (32.0, 0, r"32.0 tokens of .* are available elsewhere, after 0 that are local"),
        (32, -1, "ends at -1 ns"),
        (32, None, "ends at None ns"),
    ],
)
def test_a_connector_that_promises_what_cannot_be_is_refused(tokens: Any, end_ns: Any, message: str) -> None:
    cluster = World(toy_trace([0], [40], [2])).cluster()
    cluster.replicas[0].connect(Wrong(tokens, end_ns))
    with pytest.raises(PolicyError, match=message):
        cluster.run()


def test_requests_whose_kv_comes_count_as_waiting() -> None:
    """Of three requests at once two may wait: row 0's KV comes, row 1 is behind it, row 2 is one too many."""
    world = World(toy_trace([0, 10, 20], [40] * 3, [2] * 3), cost=COST, max_num_seqs=1, max_queued=1)
    cluster = connected(world, "fast", every=3, tokens=32, ns=1_000)
    cluster.run()
    assert [state for (state,) in rows(cluster, "state")] == [4, 5, 5]
