"""The clock and the loop against arithmetic: queues with known answers, and single requests by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from servesim.contracts import Batch
from servesim.records.columns import REQUEST_COLUMNS
from servesim.workload.front_end import FrontEnd, FrontTerms
from servesim.workload.workload import Clients
from tests.support.worlds import ToyCost, World, toy_trace


def columns(world: World, *names: str, mode: str = "fast") -> list[np.ndarray]:
    rows = world.run(mode, check=True).recorder.requests.array()
    rows = rows[np.argsort(rows[:, 0])]
    return [rows[:, REQUEST_COLUMNS.index(n)] for n in names]


def constant(ns: int) -> ToyCost:
    return ToyCost(fixed=ns, token=0, context=0)


def test_one_request_takes_a_prefill_step_and_one_step_per_further_token() -> None:
    # 10 prompt tokens; step 1 computes 10 tokens and samples 1, steps 2 and 3 compute and sample 1.
    world = World(toy_trace([500], [10], [3]), cost=ToyCost(fixed=1000, token=100, context=0))
    arrival, first, last, end = columns(world, "arrival_ns", "first_token_ns", "last_token_ns", "finished_ns")
    assert arrival.tolist() == [500]
    assert first.tolist() == [500 + 1000 + 100 * (10 + 1)]
    assert last.tolist() == end.tolist() == [500 + 2100 + 2 * 1200]


def test_a_batch_that_arrives_at_once_runs_in_lockstep() -> None:
    # Four prompts of 8 fit one step (32 new tokens, 4 sampled); then 5 decode steps of 4 + 4.
    world = World(toy_trace([0] * 4, [8] * 4, [6] * 4), cost=ToyCost(fixed=1000, token=10, context=0))
    first, end = columns(world, "first_token_ns", "finished_ns")
    assert first.tolist() == [1360] * 4
    assert end.tolist() == [1360 + 5 * 1080] * 4


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    # Budget 16: r0 (4 tokens) leaves 12 for r1's 28; then 1 + 15; then 1 + 1.
    world = World(toy_trace([0, 0], [4, 28], [5, 1]), max_num_batched_tokens=16, cost=constant(100))
    first, end = columns(world, "first_token_ns", "finished_ns")
    assert first.tolist() == [100, 300]
    assert end.tolist() == [500, 300]


def test_synchronous_arrival_during_a_step_joins_the_next_one() -> None:
    world = World(toy_trace([0, 50], [1, 1], [3, 1]), cost=constant(100))
    (first,) = columns(world, "first_token_ns")
    assert first.tolist() == [100, 200]


def test_asynchronous_arrival_during_step_i_joins_step_i_plus_2() -> None:
    world = World(toy_trace([0, 50], [1, 1], [4, 1]), cost=constant(100), depth=2, asynchronous=True)
    (first,) = columns(world, "first_token_ns")
    assert first.tolist() == [100, 300]  # steps 0 and 1 were planned at 0; step 2, planned at 100, ends at 300


def test_an_empty_plan_is_made_again_when_the_step_in_flight_ends() -> None:
    # r0 owes nothing after step 0, so plan 1 is empty; r1 arrives during step 0 and runs right after it.
    world = World(toy_trace([0, 50], [1, 1], [1, 1]), cost=constant(100), depth=2, asynchronous=True)
    (first,) = columns(world, "first_token_ns")
    assert first.tolist() == [100, 200]


def test_an_arrival_at_the_very_end_of_a_step_is_planned_with_it() -> None:
    world = World(toy_trace([0, 100], [1, 1], [3, 1]), cost=constant(100))
    (first,) = columns(world, "first_token_ns")
    assert first.tolist() == [100, 200]


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_an_arrival_that_follows_a_plan_at_that_instant_is_not_planned_with_it(mode: str) -> None:
    """The second replica's plan rejects a request at the end of a step of the first's, which has made its plan by then
    and gets the third request, sent in the second's stead, only afterwards."""
    world = World(
        toy_trace([0, 5000, 5000], [4, 150, 4], [40, 5, 5]),
        scheduler="sglang",
        num_blocks=11,
        replicas=2,
        clients=Clients(max_concurrency=2),
        cost=constant(1000),
    )
    replica, arrived, scheduled = columns(world, "replica", "arrival_ns", "scheduled_ns", mode=mode)
    assert replica.tolist() == [0, 1, 0]
    assert (arrived[2], scheduled[2]) == (5000, 6000)


@pytest.mark.medium
@pytest.mark.parametrize(("rho", "seed"), [(0.5, 1), (0.8, 2), (0.9, 3)])
def test_one_server_with_constant_service_waits_as_m_d_1_says(rho: float, seed: int) -> None:
    n, service = 40_000, 1_000_000
    gaps = np.random.Generator(np.random.Philox(seed)).exponential(service / rho, n)
    arrivals = np.cumsum(gaps).astype(np.int64)
    world = World(toy_trace(arrivals.tolist(), [1] * n, [1] * n), max_num_seqs=1, cost=constant(service))
    rows = world.run().recorder.requests.array()
    wait = (rows[:, REQUEST_COLUMNS.index("scheduled_ns")] - rows[:, REQUEST_COLUMNS.index("arrival_ns")]) / service
    # Waits are correlated: the interval comes from means of 20 batches of 2,000 (t, 19 degrees, 99.9 %).
    batches = wait.reshape(20, -1).mean(axis=1)
    half = 3.883 * batches.std(ddof=1) / np.sqrt(20)
    assert wait.mean() == pytest.approx(rho / (2 * (1 - rho)), abs=half)
    # And exactly: Lindley's recursion for a single server.
    w, previous = 0, int(arrivals[0])
    for i, arrival in enumerate(arrivals.tolist()):
        w = max(0, w + service - (arrival - previous)) if i else 0
        previous = arrival
        assert wait[i] * service == pytest.approx(w, abs=0.5)


@pytest.mark.medium
@pytest.mark.parametrize(("rho", "seed"), [(0.5, 4), (0.8, 5)])
def test_one_server_with_uneven_answers_waits_as_m_g_1_says(rho: float, seed: int) -> None:
    """Service is a step a token: lengths 1 and 19 alike often, so that E[S] is 10, E[S^2] 181, and Pollaczek and
    Khinchine's mean wait rho E[S^2] / (2 E[S] (1 - rho)) is 1.81 times that of constant service."""
    n, step = 40_000, 1_000_000
    generator = np.random.Generator(np.random.Philox(seed))
    lengths = generator.choice([1, 19], n)
    arrivals = np.cumsum(generator.exponential(10 * step / rho, n)).astype(np.int64)
    world = World(toy_trace(arrivals.tolist(), [1] * n, lengths.tolist()), max_num_seqs=1, cost=constant(step))
    arrived, scheduled = columns(world, "arrival_ns", "scheduled_ns")
    wait = (scheduled - arrived) / step
    batches = wait.reshape(20, -1).mean(axis=1)
    half = 3.883 * batches.std(ddof=1) / np.sqrt(20)
    assert half < 0.3 * wait.mean()
    assert wait.mean() == pytest.approx(rho * 181 / (2 * 10 * (1 - rho)), abs=half)


@pytest.mark.medium
@pytest.mark.parametrize(("mean", "stop", "slots"), [(4, False, 12.8), (4, True, 12.8), (16, False, 15.06)])
def test_asynchronous_scheduling_leaves_a_slot_empty_for_one_step_per_request(
    mean: int, stop: bool, slots: float
) -> None:
    """A finish in step i frees its slot for plan i + 2 only: of 16 slots, mean/(mean + 1) deliver a token."""
    n = 4000
    outputs = np.random.Generator(np.random.Philox(7)).integers(1, 2 * mean, n)
    caps = outputs + 5 if stop else outputs
    trace = toy_trace([0] * n, [1] * n, outputs.tolist(), caps=caps.tolist())
    cluster = World(trace, max_num_seqs=16, cost=constant(100), depth=2, asynchronous=True).run()
    steps = cluster.now_ns / 100
    assert outputs.sum() / steps == pytest.approx(slots, rel=0.01)
    sync = World(trace, max_num_seqs=16, cost=constant(100)).run()
    assert outputs.sum() / (sync.now_ns / 100) == pytest.approx(16, rel=0.01)


def test_host_time_adds_in_synchronous_and_hides_in_asynchronous_cost_models() -> None:
    trace = toy_trace([0], [1], [1])
    for asynchronous, expected in ((False, 1000 + 2 * 300 + 5), (True, 1005)):
        cost = ToyCost(fixed=1000, token=0, context=0, overlapped=300, exposed=5, asynchronous=asynchronous)
        (end,) = columns(World(trace, cost=cost), "finished_ns")
        assert end.tolist() == [expected]


def test_a_front_end_delays_requests_on_the_way_in_and_tokens_on_the_way_out() -> None:
    world = World(toy_trace([0, 40], [1, 1], [2, 1]), cost=constant(100), out_ns=7)
    cluster = world.cluster()
    cluster.workload = FrontEnd(cluster.workload, FrontTerms(in_ns=30, out_ns=7))
    cluster.run()
    rows = dict(zip(REQUEST_COLUMNS, cluster.recorder.requests.array().T.tolist(), strict=True))
    assert rows["row"] == [0, 1]
    assert rows["arrival_ns"] == [0, 40]
    assert rows["scheduled_ns"] == [30, 130]
    assert rows["first_token_ns"] == [137, 237]
    assert rows["finished_ns"] == [237, 237]


class TwoStages(ToyCost):
    """A pipeline whose stages take 60 and 40 ns a step."""

    num_stages = 2

    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        return np.full(k, 100, dtype=np.int64)

    def stages(self, batch: Batch) -> tuple[int, ...]:
        return (60, 40)


def test_pipeline_stages_work_on_different_steps_at_once() -> None:
    # Budget 8: r0's step is planned first, r1's right after it; the second enters stage one at 60.
    trace = toy_trace([0, 0], [8, 8], [3, 3])
    world = World(trace, max_num_batched_tokens=8, cost=TwoStages(), depth=2)
    first, end = columns(world, "first_token_ns", "finished_ns")
    assert first.tolist() == [100, 160]
    # r0: steps start at 0, 120 (stage one is free then), 240; r1 follows 60 behind.
    assert end.tolist() == [340, 400]
    assert columns(world, "finished_ns", mode="reference")[0].tolist() == end.tolist()


def test_memory_is_integrated_over_time_once_although_stages_overlap() -> None:
    trace = toy_trace([0, 0], [8, 8], [3, 3])
    cluster = World(trace, max_num_batched_tokens=8, cost=TwoStages(), depth=2).run()
    assert cluster.recorder.steps.column("elapsed_ns").sum() == cluster.now_ns
    held = cluster.recorder.steps.column("kv_used_ns") / cluster.recorder.steps.column("elapsed_ns")
    assert held.max() <= 8 + 8 + 2 * 3
