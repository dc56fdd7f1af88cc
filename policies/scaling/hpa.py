"""Kubernetes' horizontal pod autoscaler (autoscaling/v2, its documented rule and defaults) on a metric of the pods.

desired = ceil(replicas x mean / target), unchanged within the tolerance; when scaling up, pods that are not ready count
as 0. When scaling down, the highest recommendation of the last stabilization window applies. The autoscaler adds at
most the larger of `up_pods` and 100 % in 15 s. It cannot scale to or from zero. Metrics are read without a scraping
delay.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from servesim.contracts.params import check_least
from servesim.contracts.profile import Profile
from servesim.contracts.router import Report
from servesim.contracts.scaler import PoolLoad, Scaler, ScalerParams, scalers

Metric = Literal["waiting", "running", "kv"]


@dataclass(frozen=True)
class HpaParams(ScalerParams):
    """Settings of the autoscaler object, and flags of its controller."""

    metric: Metric = "waiting"
    """Metric per replica. waiting: waiting requests; running: requests that hold a slot; kv: share of KV memory in
    use."""
    target: float = 3.0
    """Target value of the metric per replica (typically 1 to 5 for waiting, 0.7 to 0.8 for kv)."""
    sync_s: float = 15.0
    """--horizontal-pod-autoscaler-sync-period."""
    tolerance: float = 0.1
    """--horizontal-pod-autoscaler-tolerance."""
    down_window_s: float = 300.0
    """behavior.scaleDown.stabilizationWindowSeconds."""
    up_window_s: float = 0.0
    """behavior.scaleUp.stabilizationWindowSeconds."""
    up_pods: int = 4
    """behavior.scaleUp: number of pods that may be added in 15 s, or 100 % if that is more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "min", "up_pods")
        check_least(self, 0, "tolerance", "down_window_s", "up_window_s")
        if self.target <= 0 or self.sync_s <= 0:
            raise ValueError("target and sync_s must be more than 0")


def value_of(report: Report, metric: Metric) -> float:
    """Return the value of the metric at one replica."""
    return {"waiting": report.num_waiting, "running": report.num_running, "kv": report.kv_usage}[metric]


class Stabilized:
    """Stabilization windows and scaling policy applied to recommendations."""

    def __init__(self, params: Any, up_period_s: float = 15.0) -> None:
        self._params, self._up_period_s = params, up_period_s
        self._answers: deque[tuple[int, int]] = deque()  # (ns, replicas)
        self._sizes: deque[tuple[int, int]] = deque()  # (ns, replicas), for the scaling policy

    def hold(self, at_ns: int, now: int, desired: int) -> int:
        """Return the number of replicas that results from a recommendation of `desired` when there are `now`
        replicas."""
        params = self._params
        self._answers.append((at_ns, desired))
        longest = max(params.down_window_s, params.up_window_s)
        while self._answers[0][0] < at_ns - longest * 1e9:
            self._answers.popleft()
        least = max([n for ns, n in self._answers if ns >= at_ns - params.down_window_s * 1e9])
        most = min([n for ns, n in self._answers if ns >= at_ns - params.up_window_s * 1e9])
        wanted = most if now < most else least if now > least else now
        self._sizes.append((at_ns, now))
        while self._sizes[0][0] <= at_ns - self._up_period_s * 1e9 and len(self._sizes) > 1:
            self._sizes.popleft()
        before = self._sizes[0][1]
        most_now: int = max(before + params.up_pods, 2 * before)
        return min(wanted, most_now) if wanted > now else wanted


@scalers.register("hpa")
class Hpa(Scaler):
    """Kubernetes' horizontal pod autoscaler, driven by the mean of a metric over the pods."""

    Params = HpaParams

    def __init__(self, params: Any, profile: Profile) -> None:
        super().__init__(params, profile)
        self._stabilized = Stabilized(params)

    @property
    def every_s(self) -> float:
        return float(self.params.sync_s)

    def wanted(self, load: PoolLoad) -> int:
        now = load.num_replicas
        return self._stabilized.hold(load.at_ns, now, self._desired(load, now)) if load.ready else now

    def _desired(self, load: PoolLoad, now: int) -> int:
        params = self.params
        total = sum(value_of(report, params.metric) for report in load.ready.values())
        ratio: float = total / len(load.ready) / params.target
        if abs(ratio - 1) <= params.tolerance:
            return now
        if ratio < 1 or not load.num_starting:
            return ceil(ratio * len(load.ready))  # scaling down ignores unready pods
        ratio = total / now / params.target  # unready pods count as 0
        return now if ratio <= 1 + params.tolerance else ceil(ratio * now)
