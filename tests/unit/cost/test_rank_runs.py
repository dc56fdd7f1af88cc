"""Runs of rounds of data-parallel ranks are priced all at once as they are one by one."""

from __future__ import annotations

import pytest

from servesim.contracts.cost import Batch, CostModel
from servesim.cost import build_cost_model
from servesim.cost.host import HostTerms
from servesim.cost.slowed import Slowed
from servesim.features.data_parallel.prices import FEW, Runs, priced, priced_singly
from servesim.hardware import Gpu, ModelSpec

ROUNDS = 200
EVER = 1 << 60


def model(asynchronous: bool = True) -> CostModel:
    host = HostTerms(pads_to_graphs=True, sustained_after=1e6, sustained_flops_share=0.4)
    cost = build_cost_model(ModelSpec.load("qwen3-30b-a3b"), Gpu.load("h200"), dp=3, ep=3, host=host)
    cost.asynchronous = asynchronous
    return cost


def listed(runs: Runs) -> list[object]:
    """The times and sources of every step of every rank."""
    found: list[object] = []
    for run in runs:
        if run is None:
            found.append(None)
            continue
        gpu, ns, host, sources = run
        steps = [sources.of(i, i + 1) for i in range(len(gpu))]
        found.append(([int(x) for x in gpu], [int(x) for x in ns], host, steps, sources.of(3, len(gpu))))
    return found


FULL, SHORT = Batch.decodes(24, 60_000, 24 * 2500**2, 4_000), Batch.decodes(3, 90, 2_700, 40)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("most", [5, FEW + 1, ROUNDS])
@pytest.mark.parametrize("batches", [(FULL, SHORT, SHORT), (FULL, None, SHORT), (None, SHORT, None)])
def test_all_at_once_costs_what_each_round_costs(
    batches: tuple[Batch | None, ...], most: int, asynchronous: bool
) -> None:
    cost = model(asynchronous)
    runs = priced(cost, batches, most, EVER)
    assert {len(run[1]) for run in runs if run is not None} == {most}
    assert listed(runs) == listed(priced_singly(lambda ask: ask(cost), batches, most, EVER))


def test_a_round_lasts_as_long_as_its_slowest_rank_and_ranks_keep_their_own_gpu_time() -> None:
    short, full = priced(model(), (SHORT, FULL, None), 10, EVER)[:2]
    assert short is not None
    assert full is not None
    first = model().prices([SHORT, FULL, None])
    assert (short[0][0], full[0][0]) == (first[0].gpu_ns, first[1].gpu_ns)
    assert short[1][0] == full[1][0] == max(price.ns for price in first) > first[0].ns


def test_a_slow_rank_is_priced_by_its_own_model() -> None:
    cost = model()
    slow = Slowed(cost, 3.0)
    (run, _, _) = priced_singly(lambda ask: [ask(slow)[0], *ask(cost)[1:]], (SHORT, FULL, FULL), 4, EVER)
    assert run is not None
    assert run[0][0] == slow.prices([SHORT, FULL, FULL])[0].gpu_ns > cost.prices([SHORT, FULL, FULL])[0].gpu_ns


@pytest.mark.parametrize("slowly", [False, True])
def test_no_more_rounds_are_priced_than_begin_in_the_time_asked_for(slowly: bool) -> None:
    cost = model()
    ns = cost.prices([SHORT, FULL, FULL])[1].ns
    batches = (SHORT, FULL, FULL)
    within = 3 * ns + ns // 2
    runs = (
        priced_singly(lambda ask: ask(cost), batches, ROUNDS, within)
        if slowly
        else priced(cost, batches, ROUNDS, within)
    )
    assert [len(run[1]) for run in runs if run is not None] == [4, 4, 4]


def test_ranks_that_take_no_time_are_left_to_the_real_plan_which_says_so() -> None:
    class Nothing(Slowed):
        def __init__(self) -> None:
            super().__init__(model(), 0.0)

    cost = Nothing()
    cost._cost.terms = None  # type: ignore[attr-defined]
    assert [run and len(run[1]) for run in priced(cost, (SHORT, None), 5, EVER)] == [0, None]
