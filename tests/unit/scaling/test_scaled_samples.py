"""Replicas that drain while they serve requests of several samples: every step takes 1,000 ns, autoscalers are asked
every 7,000 ns, and the only replica is to be given back at once."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts.request import State
from servesim.engine.cluster import Cluster
from servesim.features.scaling.part import Scaled, Scaling
from servesim.records.columns import REQUEST_COLUMNS
from tests.support.scaled import Told
from tests.support.worlds import ToyCost, World, toy_trace


def drained(arrival: int, outputs: list[int], mode: str, **policies: Any) -> tuple[Cluster, list[int]]:
    """Serve one request whose samples have these lengths. Return the cluster and the ends of its samples."""
    trace = toy_trace([arrival], [40], outputs[:1], samples={0: outputs[1:]})
    cluster = World(trace, cost=ToyCost(fixed=1000, token=0, context=0), **policies).cluster(mode, True)
    cluster.add(Scaling([Scaled(cluster.fleet.pools[0], Told([0]), 900, 0, 1)]))
    cluster.run()
    rows = sorted(cluster.recorder.requests.array().tolist())
    found = [dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in rows]
    samples = [record for record in found if record["sample"] > 0]
    assert [record["state"] for record in samples] == [State.FINISHED] * len(outputs)
    assert {record["replica"] for record in samples} == {0}
    return cluster, [record["last_token_ns"] for record in samples]


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_samples_still_come_to_the_replica_that_computed_their_prompt_alone(mode: str) -> None:
    # the prompt alone from 6,500 to 7,500; then three steps for the longest sample
    cluster, ends = drained(6500, [3, 2, 1], mode, scheduler="sglang", kv="prefix-radix")
    assert ends == [10_500, 9500, 8500]
    assert cluster.fleet.history == [(7000, 0, "draining"), (10_500, 0, "gone")]


@pytest.mark.parametrize("mode", ["fast", "reference"])
@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ({"kv": "prefix-hash"}, [9500, 8500, 7500]),
        ({"scheduler": "continuous", "kv": "paged"}, [9516, 8516, 7500]),  # forks copy a block, which takes 16 ns
    ],
)
def test_a_replica_is_gone_when_the_last_sample_has_left(
    mode: str, policies: dict[str, Any], expected: list[int]
) -> None:
    cluster, ends = drained(6500, [3, 2, 1], mode, **policies)
    assert ends == expected
    assert cluster.fleet.history == [(7000, 0, "draining"), (expected[0], 0, "gone")]
