"""Replicas that come and go: both modes agree, and no request is lost or served twice."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from tests.property.test_router_life import AGES, LIVELY, assert_hears_the_same, breakages, heard
from tests.support.examples import examples
from tests.support.scaled import ScaledWorld, scaled_worlds


@examples(12)
@given(scaled_worlds(), AGES, st.one_of(st.none(), breakages()))
def test_both_modes_agree_where_replicas_come_and_go_and_crash_and_nothing_is_lost(
    world: ScaledWorld, ages: tuple[int, int], failures: object
) -> None:
    world.failures = failures  # type: ignore[assignment]
    assert_hears_the_same(world, "Lively", ages)


@examples(6)
@given(scaled_worlds(samples=True))
def test_autoscalers_see_the_same_in_both_modes(world: ScaledWorld) -> None:
    world.router = f"{LIVELY}:Lively"
    saw = []
    for mode in ("fast", "reference"):
        heard(world, mode)
        saw.append([scaler.saw for scaler in world.scalers])
    assert saw[0] == saw[1]
    event(f"held: {any(load.num_held for loads in saw[0] for load in loads)}")


@examples(6)
@given(scaled_worlds(samples=True))
def test_what_an_autoscaler_wants_is_there_one_question_later_or_is_coming(world: ScaledWorld) -> None:
    world.router = f"{LIVELY}:Lively"
    cluster, told = heard(world, "fast")
    for scaler in world.scalers:
        for number, (load, after) in enumerate(zip(scaler.saw, scaler.saw[1:], strict=False)):
            asked = scaler.answers[min(number, len(scaler.answers) - 1)]
            wanted = max(asked, 1) if load.num_held else asked
            assert after.num_replicas == wanted
    states: dict[int, list[str]] = {}
    for _, kind, *what in told:
        if kind == "replica":
            states.setdefault(what[0], []).append(what[1])
    finished, replica = (cluster.recorder.requests.column(name) for name in ("finished_ns", "replica"))
    orders = [["starting", "ready", "draining", "gone"], ["starting", "gone"], ["draining", "gone"]]
    initial = sum(world.sizes)
    for index, found in states.items():
        assert any(order[: len(found)] == found for order in orders), found
        assert (found[0] == "starting") == (index >= initial)
    for index, (since, until) in enumerate(cluster.fleet.spans):
        gone = states.get(index, [""])[-1] == "gone"
        assert gone == (until is not None)
        assert since == 0 or index >= initial
        last = finished[replica == index].max(initial=0)
        assert until is None or last <= until
    event(f"came: {len(cluster.replicas) > initial}, went: {any('gone' in found for found in states.values())}")
