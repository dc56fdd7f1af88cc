"""How many replicas would have held a burst."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.contracts.request import State
from servesim.features.bursts.replicas import held_share, holding
from servesim.run.scenario import Scenario

S = 1_000_000_000
FOUND = {"at_s": 10, "for_s": 2, "recovery_s": 3.0, "longest_wait_before_ms": 1000.0}
RUN: dict[str, Any] = {
    "trace": "synth:arrivals=poisson,rate=5,prompt=300,output=20",
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "scheduler": "vllm:max_num_seqs=2",
    "shape": ["burst:at=3,for=2,times=20"],
    "requests": 300,
}


def requests(*waits_s: float, ttft_s: float = 0.5) -> pd.DataFrame:
    """Requests of a burst from 10 s on, half a second apart, that wait so long; one before it and one long after it."""
    come = np.array([9.0, *(10 + 0.5 * i for i in range(len(waits_s))), 15.5]) * S
    wait = np.array([50.0, *waits_s, 50.0]) * S
    return pd.DataFrame(
        {
            "arrival_ns": come,
            "scheduled_ns": come + wait,
            "finished_ns": come + wait + S,
            "ttft_ns": wait + ttft_s * S,
            "tpot_ns": np.nan,
            "state": int(State.FINISHED),
        }
    )


def test_only_requests_of_the_burst_and_of_its_recovery_count() -> None:
    assert held_share(requests(0, 1, 2, 0), FOUND, {}) == 0.75  # as long as the longest before it is no longer
    assert held_share(requests(0, 1, 2, 0), FOUND, {"ttft": 2500, "tpot": 50}) == 1
    assert held_share(requests(0, 1, 2, 0), FOUND, {"ttft": 1499}) == 0.5
    assert held_share(requests(0, 1, 2, 0), FOUND | {"recovery_s": None}, {}) == 0.6  # until the run's end


def test_a_request_that_failed_was_not_held() -> None:
    table = requests(0, 0, 0, 0)
    table.loc[2, "state"] = int(State.ABORTED)
    assert held_share(table, FOUND, {"ttft": 1000}) == 0.75


@pytest.mark.parametrize(("enough", "asked"), [(3, [2, 4, 3]), (5, [2, 4, 8, 6, 5]), (99, [2, 4, 8, 16, 32, 64])])
def test_replicas_are_doubled_and_then_bisected(enough: int, asked: list[int]) -> None:
    tried: list[int] = []

    def again(replicas: int) -> pd.DataFrame:
        tried.append(replicas)
        return requests(*[0 if replicas >= enough else 2] * 4)

    scenario = Scenario.of({"trace": "synth:rate=1", "model": "llama-3.2-1b", "gpu": "h200"})
    got = holding(FOUND, scenario, requests(2, 2, 2, 2), again)
    assert tried == asked
    assert (got["replicas"], got["runs"]) == (enough if enough < 99 else None, len(asked))
    assert got["says"].startswith(
        "not even 64" if enough == 99 else f"{enough} replicas would have absorbed it: 100.0 %"
    )
    held = holding(FOUND, scenario, requests(1, 1, 1, 1), again)
    assert (held["replicas"], held["runs"]) == (1, 0)


@pytest.mark.parametrize("slo", [pytest.param({}, marks=pytest.mark.slow), {"ttft": 300.0}])
def test_the_replicas_named_hold_the_burst_and_one_less_does_not(slo: dict[str, float]) -> None:
    result = servesim.simulate(RUN, slo=slo, burst_replicas=True)
    [found] = result.summary["bursts"]
    fewest = found["held"]["replicas"]
    assert fewest > 1
    with_them, with_less = (servesim.simulate(RUN, slo=slo, replicas=n).requests for n in (fewest, fewest - 1))
    assert held_share(with_them, found, slo) == found["held"]["share"] >= 0.99 > held_share(with_less, found, slo)
    assert [note for note in result.summary["notes"] if note.endswith(found["held"]["says"])] != []
