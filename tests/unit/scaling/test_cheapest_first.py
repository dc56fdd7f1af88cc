"""One autoscaler for pools of unlike GPUs: the cheapest grows first and shrinks last, and each pool has its price."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from servesim.contracts.scaler import PoolLoad, Scaler
from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.setup import set_up
from servesim.run.simulate import simulate
from servesim.workload.trace import Trace
from tests.unit.scaling.test_scalers import Plain, load, scaler

S = 10**9


class Priced(Plain):
    def __init__(self, usd_per_hour: float) -> None:
        self.usd_per_hour = usd_per_hour


def wva(**usd: float) -> Scaler:
    made = scaler("llm-d-wva")
    made.profiles = {name: Priced(each) for name, each in usd.items()}  # type: ignore[misc]
    return made


def of(at_s: float, kv: float, **counts: tuple[int, int, int]) -> dict[str, PoolLoad]:
    """Loads of pools with (replicas, min, max), all of whose replicas use this share of their memory."""
    first, loads = 0, {}
    for name, (count, least, most) in counts.items():
        loads[name] = load(at_s, [0] * count, [kv] * count)
        ready = {first + i: report for i, report in enumerate(loads[name].ready.values())}
        loads[name] = loads[name]._replace(ready=ready, least=least, most=most)
        first += count
    return loads


def test_the_cheap_pool_grows_to_its_maximum_and_then_the_dear_one() -> None:
    made, counts = wva(dear=3, cheap=1), {"dear": 1, "cheap": 1}
    seen = []
    for minute in range(1, 6):
        counts = dict(made.wanted_of(of(60 * minute, 0.75, dear=(counts["dear"], 1, 2), cheap=(counts["cheap"], 1, 3))))
        seen.append((counts["dear"], counts["cheap"]))
    assert seen == [(1, 2), (1, 3), (2, 3), (2, 3), (2, 3)]


def test_the_dear_pool_shrinks_to_its_minimum_and_then_the_cheap_one() -> None:
    made, counts = wva(dear=3, cheap=1), {"dear": 2, "cheap": 3}
    seen = []
    for minute in range(1, 6):
        counts = dict(made.wanted_of(of(60 * minute, 0.1, dear=(counts["dear"], 0, 2), cheap=(counts["cheap"], 1, 3))))
        seen.append((counts["dear"], counts["cheap"]))
    assert seen == [(1, 3), (0, 3), (0, 2), (0, 1), (0, 1)]


def test_replicas_of_all_pools_are_judged_together() -> None:
    # spare memory of 0.05 in one pool and 0.35 in the other: 0.2 in the mean; one fewer: 0.8 - 2 x 0.6 < 0.1
    loads = of(60, 0.75, dear=(1, 1, 2)) | {"cheap": of(60, 0.45, dear=(1, 1, 3))["dear"]}
    loads["cheap"] = loads["cheap"]._replace(ready={7: loads["cheap"].ready[0]})
    assert wva(dear=3, cheap=1).wanted_of(loads) == {"dear": 1, "cheap": 1}


def test_nothing_is_decided_while_a_replica_of_any_pool_starts() -> None:
    loads = of(60, 0.75, dear=(1, 1, 2), cheap=(1, 1, 3))
    loads["dear"] = loads["dear"]._replace(num_starting=1)
    assert wva(dear=3, cheap=1).wanted_of(loads) == {"dear": 2, "cheap": 1}


def test_equal_prices_are_decided_by_name() -> None:
    assert wva(b=1, a=1).wanted_of(of(60, 0.75, b=(1, 1, 3), a=(1, 1, 3))) == {"b": 1, "a": 2}
    assert wva(b=1, a=1).wanted_of(of(60, 0.1, b=(2, 1, 3), a=(2, 1, 3))) == {"b": 1, "a": 2}


def test_from_nothing_the_cheap_pool_starts() -> None:
    loads = {name: load(15, [], num_held=3)._replace(least=0, most=2) for name in ("dear", "cheap")}
    assert wva(dear=3, cheap=1).wanted_of(loads) == {"dear": 0, "cheap": 1}


PEAK = Trace.from_lengths(
    "peak",
    np.concatenate([np.arange(1680) * S // 7, 240 * S + np.arange(120) * 6 * S]).tolist(),
    [500] * 1800,
    [300] * 1800,
)
"""Four minutes of 7 requests/s, then one every 6 s for twelve minutes."""


def scenario(**more: Any) -> dict[str, Any]:
    pools = [
        {"name": "dear", "gpu": "h100", "usd_per_gpu_hour": 3.0, "scaler": "llm-d-wva:max=2"},
        {"name": "cheap", "gpu": "l40s", "usd_per_gpu_hour": 1.0, "scaler": "llm-d-wva:max=3"},
    ]
    # so few at once that requests wait, which is what the autoscaler looks at
    base = {
        "trace": "object:x",
        "model": "llama-3.1-8b",
        "router": "least-requests",
        "scheduler": "vllm:max_num_seqs=8",
    }
    return {**base, "pools": pools, "start": {"compile_s": 0.0, "graphs_s": 0.0}, **more}


def test_pools_of_unlike_gpus_are_scaled_by_one_autoscaler_and_priced_each_by_its_own_price() -> None:
    result = simulate(scenario(), trace=PEAK)
    summary = result.summary
    cheap, dear = summary["pools"]["cheap"], summary["pools"]["dear"]
    assert (cheap["replicas"], dear["replicas"]) == (3, 2)
    changes = sorted(
        (seconds, one["pool"], state) for one in summary["replicas"] for seconds, state in one["states"] if seconds
    )
    assert [pool for _, pool, state in changes if state == "starting"] == ["cheap", "cheap", "dear"]
    assert [pool for _, pool, state in changes if state == "gone"] == ["dear", "cheap", "cheap"]
    assert cheap["usd"] == pytest.approx(cheap["gpu_hours"] * 1.0)
    assert dear["usd"] == pytest.approx(dear["gpu_hours"] * 3.0)
    assert summary["price"]["usd"] == pytest.approx(cheap["usd"] + dear["usd"])


def test_dynamo_s_planner_has_a_planner_for_each_pool_that_does_both() -> None:
    pools = [{**pool, "scaler": "dynamo-planner"} for pool in scenario()["pools"]]
    setup = set_up(Scenario.of(scenario(pools=pools)), PEAK)
    part: Any = setup.parts[0]
    assert len({id(each.scaler) for each in part.scaled}) == 2


def test_a_pool_outside_its_bounds_is_refused() -> None:
    pools = [{**pool, "replicas": 4} for pool in scenario()["pools"]]
    with pytest.raises(UserError, match="replicas is 4 but must be from 1 to 2"):
        set_up(Scenario.of(scenario(pools=pools)), PEAK)
