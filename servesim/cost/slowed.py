"""Cost model whose GPU is slower by a factor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Batch, CostModel, Host, Price, by_source


class Slowed(CostModel):
    """Another cost model with GPU times multiplied by `factor`; host times are unchanged."""

    def __init__(self, cost: CostModel, factor: float) -> None:
        self._cost, self._factor = cost, factor
        self.asynchronous, self.num_stages = cost.asynchronous, cost.num_stages

    def _longer(self, ns: int) -> int:
        return int(ns * self._factor + 0.5)

    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        return np.array([self._longer(ns) for ns in self._cost.gpu_run(batch, k).tolist()], dtype=np.int64)

    def stages(self, batch: Batch) -> tuple[int, ...]:
        return self._slower_stages(self._cost.stages(batch))

    def rank_stages(self, batches: Sequence[Batch | None]) -> list[tuple[int, ...]]:
        return [self._slower_stages(stages) for stages in self._cost.rank_stages(batches)]

    def _slower_stages(self, stages: tuple[int, ...]) -> tuple[int, ...]:
        first, *others = stages
        rest = [self._longer(ns) for ns in others]
        return (self._longer(first + sum(others)) - sum(rest), *rest)

    def prices(self, batches: Sequence[Batch | None]) -> list[Price]:
        return [self._slower(price) for price in self._cost.prices(batches)]

    def _slower(self, price: Price) -> Price:
        gpu_ns = self._longer(price.gpu_ns)
        return Price(self.step_ns(gpu_ns, price.host), gpu_ns, price.host, by_source(gpu_ns, price.shares))

    def host(self, batch: Batch) -> Host:
        return self._cost.host(batch)

    def shares(self, batch: Batch) -> tuple[float, float, float, float]:
        return self._cost.shares(batch)
