"""KEDA (documented rule and defaults): the horizontal pod autoscaler, driven by a sum, plus scaling to and from 0.

The metric is the sum over replicas, including requests that wait in the router; desired = ceil(sum / target), with no
change within the tolerance (an external metric of type AverageValue). If `min` is 0, the last replica is removed once
there has been no load for the cool-down period, and the first is added at the next poll that finds load.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from servesim.contracts.params import check_least
from servesim.contracts.profile import Profile
from servesim.contracts.scaler import PoolLoad, Scaler, ScalerParams, scalers
from servesim.policies.scaling.hpa import Metric, Stabilized, value_of


@dataclass(frozen=True)
class KedaParams(ScalerParams):
    """Settings of a ScaledObject."""

    metric: Metric = "waiting"
    """Metric. waiting: waiting requests, including those in the router; running: requests that hold a slot; kv: share
    of KV memory in use."""
    target: float = 3.0
    """Target value of the metric per replica."""
    polling_s: float = 30.0
    """pollingInterval."""
    cooldown_s: float = 300.0
    """cooldownPeriod."""
    tolerance: float = 0.1
    """Tolerance of the horizontal pod autoscaler."""
    down_window_s: float = 300.0
    """Its behavior.scaleDown.stabilizationWindowSeconds."""
    up_window_s: float = 0.0
    """Its behavior.scaleUp.stabilizationWindowSeconds."""
    up_pods: int = 4
    """Number of pods that may be added in 15 s, or 100 % if that is more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "tolerance", "down_window_s", "up_window_s", "cooldown_s")
        check_least(self, 1, "up_pods")
        if self.target <= 0 or self.polling_s <= 0:
            raise ValueError("target and polling_s must be more than 0")


@scalers.register("keda")
class Keda(Scaler):
    """KEDA driven by a metric, with scaling to zero if `min` is 0."""

    Params = KedaParams

    def __init__(self, params: Any, profile: Profile) -> None:
        super().__init__(params, profile)
        self._stabilized = Stabilized(params)
        self._active_ns = 0

    @property
    def every_s(self) -> float:
        return float(self.params.polling_s)

    def wanted(self, load: PoolLoad) -> int:
        params, now = self.params, load.num_replicas
        total = load.num_held * (params.metric == "waiting") + sum(
            value_of(report, params.metric) for report in load.ready.values()
        )
        busy = load.num_held or any(report.num_waiting + report.num_running for report in load.ready.values())
        if busy:
            self._active_ns = load.at_ns
        if now == 0:
            return 1 if busy else 0
        if params.min == 0 and not busy and load.at_ns - self._active_ns >= params.cooldown_s * 1e9:
            return 0
        ratio = total / params.target / now
        desired = now if abs(ratio - 1) <= params.tolerance else max(ceil(total / params.target), 1)
        return self._stabilized.hold(load.at_ns, now, desired)
