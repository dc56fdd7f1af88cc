"""Identities that hold for every trace, policy and cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts import Batch, CostModel, Host, State
from servesim.engine import compiled
from servesim.engine.cluster import Cluster
from servesim.records.columns import REQUEST_COLUMNS, STEP_COLUMNS
from tests.support.examples import examples
from tests.support.strategies import worlds
from tests.support.worlds import World

SLOW = examples(60)


def requests(cluster: Cluster) -> dict[str, np.ndarray]:
    rows = cluster.recorder.requests.array()
    rows = rows[np.argsort(rows[:, 0])]
    return dict(zip(REQUEST_COLUMNS, rows.T, strict=True))


def steps(cluster: Cluster) -> dict[str, np.ndarray]:
    return dict(zip(STEP_COLUMNS, cluster.recorder.steps.array().T, strict=True))


@SLOW
@given(worlds())
def test_every_request_leaves_once_with_its_own_output_length(world: World) -> None:
    got = requests(world.run())
    assert got["row"].tolist() == list(range(len(world.trace)))
    done = got["state"] == State.FINISHED
    limit = world.max_model_len - world.trace.prompt_len
    assert got["output_len"][done].tolist() == np.minimum(world.trace.output_len, limit)[done].tolist()
    assert (got["output_len"][~done] == 0).all()


@SLOW
@given(worlds())
def test_time_never_runs_backwards(world: World) -> None:
    cluster = world.run()
    got = requests(cluster)
    done = got["state"] == State.FINISHED
    life = [got[c][done] for c in ("arrival_ns", "scheduled_ns", "first_token_ns", "last_token_ns", "finished_ns")]
    for earlier, later in pairwise(life):
        assert (earlier <= later).all()
    rows = steps(cluster)
    for replica in range(world.replicas):
        mine = rows["replica"] == replica
        start, end = rows["start_ns"][mine], rows["end_ns"][mine]
        assert (rows["planned_ns"][mine] <= start).all()
        assert (start < end).all()
        assert (start[1:] >= end[:-1]).all(), "steps of one replica overlap"


@pytest.mark.skipif(compiled(), reason="methods of what is compiled cannot be replaced")
@SLOW
@given(worlds())
def test_little_s_law_is_an_identity(world: World) -> None:
    """The area under the number of requests in the system is the sum of their times in it."""
    cluster = world.cluster()
    area, last, inside = 0, 0, 0

    def moved(by: int) -> None:
        nonlocal area, last, inside
        assert inside == sum(r.num_unread + r.num_waiting + r.num_running for r in cluster.replicas)
        area += inside * (cluster.now_ns - last)
        last = cluster.now_ns
        inside += by

    for replica in cluster.replicas:
        scheduler = replica.core.scheduler
        arrive, finish = scheduler.on_arrival, scheduler.on_finish
        scheduler.on_arrival = lambda r, arrive=arrive: (moved(1), arrive(r))  # type: ignore[method-assign,misc,assignment]
        scheduler.on_finish = lambda rs, finish=finish: (moved(-len(rs)), finish(rs))[1]  # type: ignore[method-assign,misc,assignment]
    cluster.run()
    got = requests(cluster)
    done = got["state"] == State.FINISHED
    assert area == int((got["finished_ns"] - got["arrival_ns"])[done].sum())


@SLOW
@given(worlds())
def test_tokens_computed_are_tokens_due(world: World) -> None:
    """Prompt and output but for the last token, plus what preemptions repeat, minus prefix hits; a stop
    that nobody foresaw may waste the tokens of steps in flight. Drafts that are rejected are nobody's."""
    cluster = world.run()
    got, rows = requests(cluster), steps(cluster)
    done = got["state"] == State.FINISHED
    due = sum(int(got[c][done].sum()) for c in ("prompt_len", "output_len", "recomputed_tokens"))
    due -= int(got["hit_tokens"][done].sum()) + int(done.sum())
    sequences = rows["decode_count"] - rows["drafts"] * ("batch-expansion" in world.speculation)
    computed = int((rows["k"] * (rows["prefill_tokens"] + sequences) + rows["accepted"]).sum())
    spare = (world.depth - 1) * int(done.sum()) if world.asynchronous else 0
    # A request preempted while its last token is in flight ends without computing up to it again.
    short = int(got["recomputed_tokens"][got["num_preemptions"] > 0].sum())
    assert due - short <= computed <= due + spare
    if not got["num_preemptions"].any() and not world.asynchronous:
        assert computed == due


@SLOW
@given(worlds(), st.sampled_from([2, 3, 10]))
def test_stretching_time_stretches_every_latency(world: World, factor: int) -> None:
    class Slower(CostModel):
        asynchronous = world.cost.asynchronous

        def gpu_run(self, batch: Batch, k: int) -> np.ndarray:
            return world.cost.gpu_run(batch, k) * factor

        def host(self, batch: Batch) -> Host:
            return Host(*(ns * factor for ns in world.cost.host(batch)))

    slower = replace(world, cost=Slower(), trace=replace(world.trace, arrival_ns=world.trace.arrival_ns * factor))
    before, after = requests(world.run()), requests(slower.run())
    for column in ("scheduled_ns", "first_token_ns", "last_token_ns", "finished_ns"):
        happened = before[column] >= 0
        assert (before[column][happened] * factor == after[column][happened]).all()


@SLOW
@given(worlds(), st.integers(1, 4 * 10**18))
def test_a_later_start_of_everything_moves_every_time_and_changes_nothing_else(world: World, later: int) -> None:
    """By up to 126 years: no sum of times may leave 64 bits."""
    moved = replace(world, trace=replace(world.trace, arrival_ns=world.trace.arrival_ns + later))
    before, after = steps(world.run()), steps(moved.run())
    for column, values in before.items():
        by = later if column in ("planned_ns", "start_ns", "end_ns") else 0
        assert (after[column] == values + by).all(), column


@SLOW
@given(worlds())
def test_names_of_requests_matter_only_where_the_engine_says_so(world: World) -> None:
    """vLLM breaks ties of equal priority and arrival by request id; nothing else looks at names."""
    by_name = world.scheduler_params["policy"] == "priority"
    n = len(world.trace)
    names = tuple(f"{i:04d}" for i in range(n)) if by_name else tuple(f"{n - i:04d}" for i in range(n))
    plain = replace(world, trace=replace(world.trace, request_id=tuple(f"{i:05d}" for i in range(n))))
    renamed = replace(world, trace=replace(world.trace, request_id=names))
    first, second = plain.run(), renamed.run()
    assert first.recorder.requests.array().tolist() == second.recorder.requests.array().tolist()
    assert first.recorder.steps.array().tolist() == second.recorder.steps.array().tolist()


@SLOW
@given(worlds())
def test_two_simulations_at_once_do_not_touch_each_other(world: World) -> None:
    alone = world.run()
    one, two = world.cluster(), world.cluster()
    for cluster in (one, two):
        cluster.start()
    running = [one, two]
    while running:  # turn and turn about
        running = [c for c in running if c.step()]
    for cluster in (one, two):
        assert cluster.recorder.requests.array().tolist() == alone.recorder.requests.array().tolist()
        assert cluster.recorder.steps.array().tolist() == alone.recorder.steps.array().tolist()


@SLOW
@given(worlds())
def test_one_replica_needs_no_router(world: World) -> None:
    alone = replace(world, replicas=1)
    routed = [replace(alone, router=r).run() for r in ("round-robin", "least-outstanding")]
    assert routed[0].recorder.steps.array().tolist() == routed[1].recorder.steps.array().tolist()
