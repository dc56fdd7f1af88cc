"""Prices of runs of rounds, in which all data-parallel ranks only decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Batch, CostModel, Price, RunSources, Sources, Times
from servesim.engine.fast.cost import Run

ByRank = Callable[[Callable[[CostModel], list[Price]]], list[Price]]
"""Function that asks each rank's cost model about its own part."""
Runs = list[Run | None]
"""For each rank, its own GPU time and the time that all take in each of successive rounds; None without work."""
FEW = 32
"""Number of rounds from which their times are kept as arrays."""


def priced(cost: CostModel, batches: Sequence[Batch | None], most: int, until_ns: int) -> Runs:
    """Price successive rounds from these batches on (None for a rank without work), at most `most` and about as many as
    begin within `until_ns`; none if the first takes no time. A cost model that can (`JointCost`) prices all at once:
    each rank takes its own time plus that of the joint work, which stays the same."""
    own: Any = cost
    if not (hasattr(own, "together") and hasattr(own, "decode_run")):
        return priced_singly(lambda ask: ask(cost), batches, most, until_ns)
    more = a = b = c = d = 0
    for ns, (p, q, r, s) in own.together(batches):
        more, a, b, c, d = more + ns, a + p, b + q, c + r, d + s
    alone: Runs = [None if batch is None else own.decode_run(batch, most, until_ns) for batch in batches]
    k = min([len(run[0]) for run in alone if run is not None])
    each = [None if run is None else np.asarray(run[0][:k], np.int64) + more for run in alone]
    of_all = np.zeros(k, np.int64)
    for gpu, batch in zip(each, batches, strict=True):
        if gpu is not None and batch is not None:
            np.maximum(of_all, cost.run_ns(gpu, cost.host(batch)), out=of_all)
    if None in batches:
        prices = zip(cost.prices(batches), batches, strict=True)
        np.maximum(of_all, max([price.ns for price, batch in prices if batch is None]), out=of_all)
    first = int(of_all[0])
    k = min(k, until_ns // first + 1) if first > 0 else 0
    ns_of_all, joint = _times(of_all[:k]), (a, b, c, d)
    return [
        None if run is None or gpu is None else (_times(gpu[:k]), ns_of_all, run[2], _Joint(run[3], joint))
        for run, gpu in zip(alone, each, strict=True)
    ]


def priced_singly(by_rank: ByRank, batches: Sequence[Batch | None], most: int, until_ns: int) -> Runs:
    """Price rounds as `priced` does, one after the other."""
    rounds: list[list[Price]] = []
    of_all: list[int] = []
    elapsed = 0
    while len(rounds) < most and elapsed <= until_ns:
        later = [None if batch is None else batch.advance(len(rounds)) for batch in batches]
        prices = by_rank(partial(_prices, later))
        ns = max([price.ns for price in prices])
        if ns < 1:
            break  # the real plan will raise
        rounds.append(prices)
        of_all.append(ns)
        elapsed += ns
    found: Runs = []
    for i, batch in enumerate(batches):
        own = [prices[i] for prices in rounds]
        run = [price.gpu_ns for price in own], of_all, sum(own[0].host) if own else 0, _Listed(own)
        found.append(None if batch is None else run)
    return found


def _prices(batches: Sequence[Batch | None], cost: CostModel) -> list[Price]:
    return cost.prices(batches)


def _times(ns: NDArray[np.int64]) -> Times:
    """Return times as an array or, if they are few, as a list."""
    times: Times = ns.tolist() if len(ns) < FEW else ns
    return times


class _Joint(RunSources):
    """Sources of steps that all have the same joint work."""

    def __init__(self, alone: RunSources, more: Sources) -> None:
        self._alone, self._more = alone, more

    def of(self, first: int, stop: int) -> Sources:
        """See `RunSources`."""
        a, b, c, d = self._alone.of(first, stop)
        p, q, r, s = self._more
        n = stop - first
        return (a + n * p, b + n * q, c + n * r, d + n * s)


class _Listed(RunSources):
    """Sources of steps priced one by one."""

    def __init__(self, steps: Sequence[Price]) -> None:
        self._steps = steps

    def of(self, first: int, stop: int) -> Sources:
        """See `RunSources`."""
        a = b = c = d = 0
        for price in self._steps[first:stop]:
            p, q, r, s = price.sources
            a, b, c, d = a + p, b + q, c + r, d + s
        return (a, b, c, d)
