"""False alarms of windows: two random routers on one trace differ by luck alone, which queues carry from window to
window."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import servesim
from servesim.contracts import Request
from servesim.contracts.router import ReplicaView, Router, ready
from servesim.experiments.statistics import successive_interval, t_interval
from servesim.workload.trace import Trace

pytestmark = pytest.mark.slow
WINDOWS = 10


class Luck(Router):
    """Router that sends a request to a replica drawn by its row and a number of the router's own."""

    blind = True

    @dataclass(frozen=True)
    class Params:
        """Parameters."""

        number: int = 0

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        choices = ready(views)
        return choices[random.Random(self.params.number * 1_000_003 + request.row).randrange(len(choices))]


def trace(seed: int) -> Trace:
    """Return 1,000 requests at a load of .4 to .6; those of odd seeds have a burst that leaves a backlog."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / (5 + 2.5 * (seed % 4) / 3), 1000)
    if seed % 2:
        gaps[300:500] /= 4
    lengths = rng.integers(1000, 3000, 1000), rng.integers(50, 300, 1000)
    return Trace.from_lengths(str(seed), (np.cumsum(gaps) * 1e9).astype(np.int64), *lengths)


def test_of_windows_of_one_run_at_most_a_tenth_call_luck_a_difference() -> None:
    dependent = independent = count = 0
    for seed in range(40):
        settings = {"trace": trace(seed), "model": "llama-3.1-8b", "gpu": "l40s", "replicas": 2}
        a, b = (
            servesim.simulate(**settings, router=f"{__file__}:Luck:number={2 * seed + i}").requests.sort_values("row")
            for i in range(2)
        )
        for name in ("ttft_ns", "tpot_ns", "e2el_ns"):
            d = np.array(
                [
                    np.log(b[name].to_numpy()[part].mean() / a[name].to_numpy()[part].mean())
                    for part in np.array_split(np.arange(1000), WINDOWS)
                ]
            )
            low, high = t_interval(d)
            independent += not low <= 0 <= high
            dependent += successive_interval(d)[1] < 0.05
            count += 1
    print(f"of {count} differences by luck {dependent} called one, {independent} if windows were independent")
    assert dependent <= count / 10
    assert independent > count / 10
