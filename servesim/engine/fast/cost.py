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
        """Price successive steps of a batch of decodes of one token each and nothing else, as many as would begin in
        `until_ns` (by the first one's length), at least one and at most `most`."""

    def gpu_over(self, batch: Batch, contexts: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the GPU ns of decode steps that differ from `batch` in their contexts alone, by the sums of those,
        which never fall; None: it takes more than the sums to tell."""


def decode_run(cost: CostModel, batch: Batch, most: int, until_ns: int) -> Run:
    """Do as `RunCost.decode_run`, for any cost model."""
    model = _run_cost(cost)
    if model is not None and not batch.padded_tokens:
        return model.decode_run(batch, most, until_ns)
    return plain_run(cost, batch, most, until_ns)


def plain_run(cost: CostModel, batch: Batch, most: int, until_ns: int) -> Run:
    """Do as `RunCost.decode_run`, by the verbs that every cost model has."""
    price = cost.price(batch)
    gpu = cost.gpu_run(batch, min(most, until_ns // max(price.ns, 1) + 1))
    return gpu.tolist(), cost.run_ns(gpu, price.host).tolist(), sum(price.host), price.shares


def gpu_over(cost: CostModel, batch: Batch, contexts: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Do as `RunCost.gpu_over`; None for a model without it."""
    model = _run_cost(cost)
    return model.gpu_over(batch, contexts) if model is not None else None


def _run_cost(cost: CostModel) -> RunCost | None:
    own: Any = cost
    return own if hasattr(own, "decode_run") else None
