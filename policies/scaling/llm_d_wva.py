"""Saturation rule of llm-d's workload variant autoscaler v0.5.1 (commit b08b1c7), for one variant.

A replica's spare KV memory is 0.80 minus its usage, and its spare queue is 5 minus its waiting requests, both at their
worst in the last minute; the replica is saturated if either is 0 or less. A replica is added if the unsaturated
replicas' mean spare memory or mean spare queue is below its trigger. One is removed if at least two are unsaturated and
the others, with its load distributed among them, would not fall below the triggers. No decision is made while a replica
is starting or draining. The autoscaler scales from zero as soon as requests wait. From memory, not checked against the
source: metrics every 15 s, a decision every 60 s. The pod autoscaler that acts on its recommendation is not modeled.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from servesim.contracts.params import check_least
from servesim.contracts.scaler import PoolLoad, Profile, Scaler, ScalerParams, scalers


@dataclass(frozen=True)
class WvaParams(ScalerParams):
    """Saturation thresholds."""

    kv_threshold: float = 0.80
    """Share of KV memory in use at which a replica is saturated."""
    queue_threshold: float = 5.0
    """Number of waiting requests at which a replica is saturated."""
    kv_spare_trigger: float = 0.1
    """Mean spare KV memory below which a replica is added."""
    queue_spare_trigger: float = 3.0
    """Mean spare queue slots below which a replica is added."""
    window_s: float = 60.0
    """Length in seconds of the window whose worst value counts."""
    sample_s: float = 15.0
    """Seconds between reads of the metrics."""
    decide_s: float = 60.0
    """Seconds between decisions."""
    poll_s: float = 0.1
    """Seconds between queue checks while there is no replica."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "window_s", "kv_threshold", "queue_threshold", "kv_spare_trigger", "queue_spare_trigger")
        if min(self.sample_s, self.decide_s, self.poll_s) <= 0:
            raise ValueError("sample_s, decide_s and poll_s must be more than 0")


@scalers.register("llm-d-wva")
class LlmDWva(Scaler):
    """Autoscaler based on the spare KV memory and spare queue of unsaturated replicas."""

    Params = WvaParams

    def __init__(self, params: Any, profile: Profile) -> None:
        super().__init__(params, profile)
        self._seen: dict[int, deque[tuple[int, float, float]]] = {}  # replica -> (ns, KV, queue)
        self._decided_ns = 0
        self._empty = False

    @property
    def every_s(self) -> float:
        return float(self.params.poll_s if self._empty else self.params.sample_s)

    def wanted(self, load: PoolLoad) -> int:
        now = load.num_replicas
        self._empty = now == 0
        if self._empty:
            return 1 if load.num_held else 0
        worst = self._worst(load)
        if load.at_ns - self._decided_ns < self.params.decide_s * 1e9 or not load.settled or not worst:
            return now
        self._decided_ns = load.at_ns
        return now + self._step(worst)

    def _worst(self, load: PoolLoad) -> list[tuple[float, float]]:
        """Return, for each ready replica, the highest KV usage and the longest queue in the window."""
        for gone in self._seen.keys() - load.ready.keys():
            del self._seen[gone]
        found = []
        for index, report in load.ready.items():
            seen = self._seen.setdefault(index, deque())
            seen.append((load.at_ns, report.kv_usage, report.num_waiting))
            while seen[0][0] < load.at_ns - self.params.window_s * 1e9:
                seen.popleft()
            found.append((max(kv for _, kv, _ in seen), max(queue for _, _, queue in seen)))
        return found

    def _step(self, worst: list[tuple[float, float]]) -> int:
        params = self.params
        spare = [(params.kv_threshold - kv, params.queue_threshold - queue) for kv, queue in worst]
        sound = [each for each in spare if min(each) > 0]
        if not sound:
            return 1
        count = len(sound)
        kv, queue = sum(kv for kv, _ in sound) / count, sum(queue for _, queue in sound) / count
        if kv < params.kv_spare_trigger or queue < params.queue_spare_trigger:
            return 1
        if count < 2:
            return 0
        # One replica's load (the mean of the unsaturated ones) is distributed among the others.
        kv_after = params.kv_threshold - (params.kv_threshold - kv) * count / (count - 1)
        queue_after = params.queue_threshold - (params.queue_threshold - queue) * count / (count - 1)
        keeps = kv_after >= params.kv_spare_trigger and queue_after >= params.queue_spare_trigger
        return -1 if keeps else 0
