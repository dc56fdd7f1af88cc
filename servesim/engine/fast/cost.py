"""What fast mode asks of a cost model: many steps in one question. One that has no answer is asked step by step."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Batch, CostModel

Run = tuple[list[int], list[int], int, tuple[float, float, float, float]]
"""GPU ns of each step, ns of each, host time of a step, and the first one's shares."""


class RunCost(Protocol):
    """Prices of steps that differ in their contexts alone."""

    def decode_run(self, batch: Batch, most: int, until_ns: int) -> Run:
        """Price successive steps of a batch of decodes of one token each, perhaps padded, and nothing else, as many as
        would begin in `until_ns` (by the first one's length), at least one and at most `most`."""

    def gpu_over(self, batch: Batch, contexts: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the GPU ns of decode steps that differ from `batch` in their contexts alone, by the sums of those,
        which never fall; None: it takes more than the sums to tell."""


class PlainRuns:
    """Runs priced by the verbs that every cost model has."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost

    def decode_run(self, batch: Batch, most: int, until_ns: int) -> Run:
        """See `RunCost`."""
        return plain_run(self._cost, batch, most, until_ns)

    def gpu_over(self, batch: Batch, contexts: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """See `RunCost`."""
        return None


def runs_of(cost: CostModel) -> RunCost:
    """Return what prices runs of steps by a cost model: the model itself, where it can."""
    own: Any = cost
    return own if hasattr(own, "decode_run") else PlainRuns(cost)


def plain_run(cost: CostModel, batch: Batch, most: int, until_ns: int) -> Run:
    """Do as `RunCost.decode_run`, by the verbs that every cost model has."""
    price = cost.price(batch)
    gpu = cost.gpu_run(batch, min(most, until_ns // max(price.ns, 1) + 1))
    return gpu.tolist(), cost.run_ns(gpu, price.host).tolist(), sum(price.host), price.shares
