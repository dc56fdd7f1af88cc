"""Requests counted together: what they leave behind is what each would alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from servesim.contracts import Batch, Plan, PlanContext
from servesim.cost import build_cost_model
from servesim.engine.fast.lockstep import Lockstep
from servesim.errors import PolicyError
from servesim.hardware import Gpu, ModelSpec
from servesim.metrics.requests import RequestColumns
from servesim.policies.scheduling.vllm import Vllm
from tests.property.test_fast_equals_reference import compared
from tests.support.worlds import ToyCost, World, toy_trace, watch


def test_a_retired_request_gives_its_blocks_back_before_those_behind_it_in_the_batch() -> None:
    """The first decodes, its last step being the second's prompt, with which that ends too."""
    fast, plain = compared(World(toy_trace([0, 10], [5, 5], [3, 1]), depth=2, asynchronous=True))
    assert fast.replicas[0].core.kv.free_order()[:2] == [2, 1]  # type: ignore[attr-defined]
    assert fast.recorder.requests.column("row").tolist() == plain.recorder.requests.column("row").tolist() == [0, 1]


def test_a_long_run_of_steps_late_in_a_long_trace_has_the_memory_of_one_at_its_beginning() -> None:
    """3,000 steps after four months: their times add up to more than 64 bits hold, their differences do not."""
    rows, cost = [], build_cost_model(ModelSpec.load("llama-3.1-8b"), Gpu.load("h100"))
    for start in (0, 10**16):
        world = World(toy_trace([start], [8], [3_000]), max_model_len=4_000, num_blocks=1_000, cost=cost)
        rows.append(world.run().recorder.steps)
    for column in ("k", "kv_used_ns", "kv_internal_ns"):
        assert rows[0].column(column).tolist() == rows[1].column(column).tolist()


def test_with_three_steps_in_flight_nothing_is_planned_beyond_the_end_of_the_context() -> None:
    world = World(toy_trace([0], [8], [4]), max_model_len=12, depth=3, asynchronous=True)
    fast, plain = compared(world)
    assert fast.now_ns == plain.now_ns
    assert int(fast.recorder.steps.column("k").sum()) == len(plain.recorder.steps.array()) == 4


def test_requests_that_ended_long_before_their_cap_are_forgotten() -> None:
    """Of two that are always there one has a cap near its end, the other one far away."""
    n = 1000
    caps = [40 if row % 2 else 100_000 for row in range(n)]
    cluster = World(
        toy_trace([12_000 * row for row in range(n)], [8] * n, [40] * n, caps=caps),
        num_blocks=10_000,
        depth=2,
        asynchronous=True,
    ).run()
    lockstep = cluster.replicas[0].core.lockstep
    assert isinstance(lockstep, Lockstep)
    assert lockstep.num_joined == n
    assert max(len(heap) for heap in (lockstep._ends, lockstep._caps, lockstep._longest)) < 100


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_whose_prompt_brings_its_only_token_joins_nobody(asynchronous: bool) -> None:
    """Behind one that joins, in the same step: both are known in the order of the batch."""
    trace = toy_trace([0, 0, 0], [8, 8, 8], [4, 1, 2])
    fast, plain = compared(World(trace, depth=1 + asynchronous, asynchronous=asynchronous))
    lockstep = fast.replicas[0].core.lockstep  # type: ignore[attr-defined]
    assert isinstance(lockstep, Lockstep)
    assert not lockstep.queue
    assert fast.recorder.requests.column("row").tolist() == plain.recorder.requests.column("row").tolist() == [1, 2, 0]
    joined = [request for _, _, request in lockstep._longest]
    assert [request.row for request in joined if request.max_tokens == 1] == []


def test_who_ends_behind_one_that_waits_for_its_last_token_ends_after_it() -> None:
    """Three steps in flight. The first decodes; the second's prompt takes two steps, the last of them with the third's.
    Both end with it, the third by a stop token, so that two more steps of it are planned by then."""
    trace = toy_trace([0, 0, 0], [50, 15, 1], [3, 1, 1], caps=[3, 1, 2])
    fast, plain = compared(World(trace, max_num_batched_tokens=64, depth=3, asynchronous=True))
    assert fast.recorder.requests.column("row").tolist() == plain.recorder.requests.column("row").tolist()


def test_the_same_behind_one_that_the_end_of_the_context_stops() -> None:
    trace = toy_trace([0, 2003, 2003], [1, 38, 1], [6, 1, 1], caps=[12, 3, 2])
    fast, plain = compared(World(trace, max_model_len=41, depth=4, asynchronous=True))
    assert fast.recorder.requests.column("row").tolist() == plain.recorder.requests.column("row").tolist()


def test_who_comes_while_the_step_planned_after_an_end_runs_waits_for_its_end() -> None:
    """Synchronous: nothing else is in flight. The first ends at 1,400 ns, the third comes 500 ns later."""
    fast, plain = compared(World(toy_trace([0, 0, 1900], [1, 1, 1], [1, 5, 1]), depth=1))
    assert fast.now_ns == plain.now_ns
    columns = (fast.recorder.requests.column(name).tolist() for name in ("row", "scheduled_ns"))
    assert dict(zip(*columns, strict=True))[2] > 1900


def test_the_last_block_of_one_whose_last_token_was_in_flight_is_found_afterwards() -> None:
    """Its 13 + 4 tokens fill a block with the last but one."""
    trace = toy_trace([0, 0], [13, 40], [4, 30], runs=[[(1, 13)], [(2, 40)]])
    fast, _ = compared(World(trace, kv="prefix-hash", depth=2, asynchronous=True))
    assert fast.replicas[0].core.kv.num_cached_hashes() == 1 + (40 + 30 - 1) // 16  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("prompt", "budget", "chunked"),
    [(1, 2, True), (8, 9, False)],
    ids=["the others take all tokens of a step", "it is not to be cut in chunks"],
)
def test_the_tokens_of_one_that_retires_go_to_who_waits_for_them(prompt: int, budget: int, chunked: bool) -> None:
    """Two decode and leave the third too few tokens; the first has its last one in flight in the tenth step."""
    trace = toy_trace([0, 0, 0], [1, 1, prompt], [9, 40, 5])
    params = {"enable_chunked_prefill": chunked}
    fast, _ = compared(World(trace, max_num_batched_tokens=budget, scheduler_params=params, depth=2, asynchronous=True))
    rows = RequestColumns.of(fast.recorder.requests.array()).sequences
    first, third = (rows["row"].tolist().index(row) for row in (0, 2))
    assert rows["scheduled_ns"][third] < rows["finished_ns"][first]


def test_one_retires_in_a_run_and_ends_with_the_event_it_goes_to() -> None:
    """Two decode; the first to end takes no part in the step that is planned while its last token is computed."""
    cluster = World(toy_trace([0, 0], [8, 8], [10, 40]), depth=2, asynchronous=True).run()
    rows = cluster.recorder.steps.array()
    assert cluster.recorder.steps.column("decode_count").tolist() == [0, 2, 1]
    assert cluster.recorder.steps.column("k").tolist() == [1, 9, 30]
    assert len(rows) == 3
    assert cluster.replicas[0].core.next_step_id == 40


class Free(ToyCost):
    """Decode costs nothing."""

    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        return super().gpu_run(batch, k) * bool(batch.prefill)


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_a_step_that_takes_no_time_is_refused_in_a_run_too(mode: str) -> None:
    with pytest.raises(PolicyError, match="a step of 1 tokens takes 0 ns"):
        World(toy_trace([0], [8], [10]), cost=Free()).run(mode)


def test_one_that_was_preempted_is_resumed_when_the_eviction_of_what_it_left_makes_room_for_its_first_chunk() -> None:
    # The next chunk has 20 tokens: the fewer are still cached before it, the less memory it takes to begin again.
    params = {"long_prefill_token_threshold": 20, "scheduler_reserve_full_isl": False}
    world = World(
        toy_trace([0, 0], [10, 81], [40, 15]), kv="prefix-radix", num_blocks=8, scheduler_params=params,
        max_model_len=96, speculation="medusa:k=2,width=2",
    )  # fmt: skip
    fast, _ = compared(world)
    table = RequestColumns.of(fast.recorder.requests.array()).sequences
    assert table["num_preemptions"].astype(bool).tolist() == [False, True]


LOOKS = f"{Path(__file__).parents[2] / 'support' / 'looking_policies.py'}"


@pytest.mark.parametrize("name", ["Timed", "Counting"])
@pytest.mark.parametrize("speculation", ["", "eagle:k=3", "medusa:k=2,width=2"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("requests", [1, 3])
def test_a_scheduler_that_looks_at_what_changes_is_asked_at_every_step(
    name: str, speculation: str, depth: int, requests: int
) -> None:
    trace = toy_trace([0, 500, 4000][:requests], [8, 8, 40][:requests], [30, 30, 12][:requests])
    scheduler = f"{LOOKS}:{name}"
    compared(World(trace, scheduler=scheduler, speculation=speculation, depth=depth, asynchronous=depth > 1))


def test_a_scheduler_whose_own_attributes_move_is_asked_at_every_step() -> None:
    world = World(toy_trace([0, 0], [8, 8], [30, 30]), scheduler=f"{LOOKS}:PlanCounter")
    fast, plain = (world.run(mode).replicas[0].core.scheduler for mode in ("fast", "reference"))
    assert fast.plans == plain.plans > 30  # type: ignore[attr-defined]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_requests_may_still_generate_is_the_same_counted_in_bulk(depth: int) -> None:
    trace = toy_trace([0, 500, 4000, 4100], [8, 8, 40, 5], [30, 30, 12, 1], caps=[30, 90, 12, 4])
    compared(World(trace, scheduler=f"{LOOKS}:TokensLeft", depth=depth, asynchronous=depth > 1))


def test_one_whose_attributes_rest_is_not() -> None:
    world = World(toy_trace([0, 0], [8, 8], [30, 30]))
    cluster = world.cluster("fast")
    seen = watch(cluster)
    cluster.run()
    assert len(seen) < 10


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_blocks", [5, 1000])
@pytest.mark.parametrize(("speculation", "late"), [("", 30_500), ("eagle:k=3", 15_500)])
def test_what_a_scheduler_sees_as_a_request_arrives_is_the_state_of_that_instant(
    depth: int, num_blocks: int, speculation: str, late: int
) -> None:
    """One of 40 tokens runs, a microsecond for each step. The second comes early and queues, the third late and goes
    first."""
    trace = toy_trace([0, 5500, late], [8, 8, 8], [40, 5, 5])
    world = World(trace, scheduler=f"{LOOKS}:Watcher", num_blocks=num_blocks, max_num_seqs=1, speculation=speculation)
    world.cost, world.depth, world.asynchronous = ToyCost(fixed=1000, token=0, context=0), depth, depth > 1
    fast, _ = compared(world)
    assert fast.recorder.requests.column("row").tolist() == [0, 2, 1]


def test_a_request_that_left_before_all_counters_were_written_is_forgotten_when_it_ends() -> None:
    """Three steps in flight, planned ahead: the one token of request 2 is on its way while a preemption by sjf ends the
    counting together. Then it ends, and memory is asked for it no more."""
    world = World(
        toy_trace([0, 285, 10_683, 19_399], [6, 2, 67, 84], [11, 60, 1, 4]),
        kv="hybrid",
        num_blocks=13,
        windows=(None, 40),
        scheduler="sjf",
        max_num_batched_tokens=16,
        depth=3,
        asynchronous=True,
    )
    compared(world)


@pytest.mark.parametrize("speculation", ["", "eagle:k=3"])
def test_a_scheduler_is_not_asked_for_a_plan_that_is_empty(speculation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two alone, one after the other: each is planned as it comes, and once more as it runs."""
    asked: list[int] = []
    plan = Vllm.plan

    def counted(self: Vllm, ctx: PlanContext) -> Plan:
        asked.append(ctx.step_id)
        return plan(self, ctx)

    monkeypatch.setattr(Vllm, "plan", counted)
    World(toy_trace([0, 500_000], [8, 8], [30, 30]), speculation=speculation, depth=2, asynchronous=True).run("fast")
    assert len(asked) == 4
