"""Several pools: both modes agree, no request is lost, and each goes to a pool that serves its model."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from servesim.records.columns import REQUEST_COLUMNS
from tests.property.test_router_life import AGES, LIVELY, assert_hears_the_same, breakages, heard
from tests.support.examples import examples
from tests.support.pooled import MODELS, Pooled, pooled_worlds


@examples(12)
@given(pooled_worlds(), AGES, st.one_of(st.none(), breakages()))
def test_both_modes_agree_with_two_pools_whose_speed_memory_and_model_differ(
    world: Pooled, ages: tuple[int, int], failures: object
) -> None:
    world.failures = failures  # type: ignore[assignment]
    assert_hears_the_same(world, "Lively", ages)
    event(f"models: {world.models}")


@examples(8)
@given(pooled_worlds())
def test_a_request_is_sent_to_a_pool_that_serves_what_it_asks_for(world: Pooled) -> None:
    world.router = f"{LIVELY}:Lively"
    cluster, _ = heard(world, "fast")
    asked = world.trace.labels["model"]
    columns = [REQUEST_COLUMNS.index(name) for name in ("row", "replica")]
    for row, replica in cluster.recorder.requests.array()[:, columns].tolist():
        if replica >= 0 and asked[row] and world.models:
            assert cluster.replicas[replica].pool == asked[row]
    assert [replica.pool for replica in cluster.replicas] == [MODELS[0]] * world.sizes[0] + [MODELS[1]] * world.sizes[1]
