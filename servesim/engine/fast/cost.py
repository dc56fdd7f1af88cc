"""Fast mode's queries to a cost model, which price many steps in one call. A model without these methods is queried
step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Batch, CostModel, Host, RunSources, Sources, Split, Times

Run = tuple[Times, Times, int, RunSources]
"""GPU ns of each step, total ns of each step, host ns of one step, and the sources of the GPU times."""


class OverRun(Protocol):
    """Prices of steps as functions of the sums of their contexts, which never decrease."""

    host: Host
    """Host time of each step."""

    def price(self, contexts: NDArray[np.int64]) -> tuple[NDArray[np.int64], Split | NDArray[np.int64]]:
        """Return the GPU ns at each sum, and their sources: of shape (steps, 4) where a `Split` cannot express them."""


class RunCost(Protocol):
    """Prices of steps that differ only in their contexts."""

    def decode_run(self, batch: Batch, most: int, until_ns: int) -> Run:
        """Price successive steps of a batch, perhaps padded, that holds only decodes of one token each. Price as many
        steps as would begin within `until_ns` (if all took as long as the first), at least one and at most `most`."""

    def over_contexts(self, batch: Batch) -> OverRun | None:
        """Return the prices of decode steps that differ from `batch` only in their contexts. Return None if the sums of
        these do not determine the times."""


class JointCost(Protocol):
    """Prices of data-parallel ranks: each that of its own step plus that of their joint work."""

    def together(self, batches: Sequence[Batch | None]) -> list[tuple[int, list[int]]]:
        """Return the GPU ns, in all and by source, of each part of the joint work in one step (None for a rank without
        work). They stay the same while all ranks only decode, one token each for the same requests."""


class PlainRuns:
    """Runs priced with only the methods that every cost model has."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost

    def decode_run(self, batch: Batch, most: int, until_ns: int) -> Run:
        """See `RunCost`."""
        return plain_run(self._cost, batch, most, until_ns)

    def over_contexts(self, batch: Batch) -> OverRun | None:
        """See `RunCost`."""
        return None


def runs_of(cost: CostModel) -> RunCost:
    """Return an object that prices runs of steps by a cost model: the model itself if it has the methods."""
    own: Any = cost
    return own if hasattr(own, "decode_run") else PlainRuns(cost)


def plain_run(cost: CostModel, batch: Batch, most: int, until_ns: int) -> Run:
    """Price a run as `RunCost.decode_run` does, using only the methods that every cost model has."""
    price = cost.price(batch)
    gpu = cost.gpu_run(batch, min(most, until_ns // max(price.ns, 1) + 1))
    times = gpu.tolist()
    return times, cost.run_ns(gpu, price.host).tolist(), sum(price.host), _PlainSources(cost, batch, times)


class _PlainSources(RunSources):
    """Sources of steps priced one by one. If the model gives no sources, all time counts as formula."""

    def __init__(self, cost: CostModel, batch: Batch, gpu: list[int]) -> None:
        own: Any = type(cost)
        self._silent = own.shares is CostModel.shares and own.price is CostModel.price
        self._cost, self._batch, self._gpu = cost, batch, gpu

    def of(self, first: int, stop: int) -> Sources:
        """See `RunSources`."""
        if self._silent:
            return (0, 0, 0, sum(self._gpu[first:stop]))
        a = b = c = d = 0
        for i in range(first, stop):
            p, q, r, s = self._cost.price(self._batch.advance(i) if i else self._batch).sources
            a, b, c, d = a + p, b + q, c + r, d + s
        return (a, b, c, d)
