"""Saturation rule of llm-d's workload variant autoscaler v0.5.1 (commit b08b1c7).

A replica's spare KV memory is 0.80 minus its usage, and its spare queue is 5 minus its waiting requests, both at their
worst in the last minute; the replica is saturated if either is 0 or less. A replica is added if the unsaturated
replicas' mean spare memory or mean spare queue is below its trigger. One is removed if at least two are unsaturated and
the others, with its load distributed among them, would not fall below the triggers. No decision is made while a replica
is starting or draining. The autoscaler scales from zero as soon as requests wait.

Pools of one model that name it are its variants (internal/saturation/analyzer.go): replicas of all of them are judged
together, the cheapest variant grows and the most expensive one shrinks, by the price of a replica, with ties broken by
name. There a variant never shrinks below one replica, and none has a maximum; here `min` and `max` of its pool apply,
and a variant at its bound is passed over. From memory, not checked against the source: metrics every 15 s, a decision
every 60 s, and the cheapest variant from zero. The pod autoscaler that acts on the recommendation is not modeled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from servesim.contracts.params import check_least
from servesim.contracts.profile import Profile
from servesim.contracts.router import Report
from servesim.contracts.scaler import PoolLoad, Scaler, ScalerParams, scalers


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
    """Autoscaler based on the spare KV memory and spare queue of unsaturated replicas, cheapest variant first."""

    Params = WvaParams

    def __init__(self, params: Any, profile: Profile) -> None:
        super().__init__(params, profile)
        self._seen: dict[int, deque[tuple[int, float, float]]] = {}  # replica -> (ns, KV, queue)
        self._decided_ns = 0
        self._empty = False

    @property
    def every_s(self) -> float:
        return float(self.params.poll_s if self._empty else self.params.sample_s)

    @classmethod
    def shared(cls, params: WvaParams, profile: Profile) -> Hashable:
        """Return the same key for all variants of a model, whatever their bounds."""
        return replace(params, min=0, max=1), profile.models, profile.role

    def wanted(self, load: PoolLoad) -> int:
        return self.wanted_of({"": load})[""]

    def wanted_of(self, loads: Mapping[str, PoolLoad]) -> Mapping[str, int]:
        now = {name: load.num_replicas for name, load in loads.items()}
        self._empty = not any(now.values())
        if self._empty:
            return self._moved(now, loads, int(any(load.num_held for load in loads.values())))
        at_ns = next(iter(loads.values())).at_ns
        worst = self._worst(at_ns, {i: report for load in loads.values() for i, report in load.ready.items()})
        settled = all(load.settled for load in loads.values())
        if at_ns - self._decided_ns < self.params.decide_s * 1e9 or not settled or not worst:
            return now
        self._decided_ns = at_ns
        return self._moved(now, loads, self._step(worst))

    def _moved(self, now: dict[str, int], loads: Mapping[str, PoolLoad], step: int) -> dict[str, int]:
        """Return the numbers of replicas with one more of the cheapest variant that may grow (step 1), or one fewer of
        the most expensive one that may shrink (step -1)."""
        able = {
            1: [(self._usd(name), name) for name, load in loads.items() if now[name] < load.most],
            -1: [(self._usd(name), name) for name, load in loads.items() if now[name] > load.least],
        }.get(step)
        if able:
            _, name = min(able) if step > 0 else max(able)
            now[name] += step
        return now

    def _usd(self, name: str) -> float:
        return self.profiles.get(name, self.profile).usd_per_hour

    def _worst(self, at_ns: int, ready: Mapping[int, Report]) -> list[tuple[float, float]]:
        """Return, for each ready replica, the highest KV usage and the longest queue in the window."""
        for gone in self._seen.keys() - ready.keys():
            del self._seen[gone]
        found = []
        for index, report in ready.items():
            seen = self._seen.setdefault(index, deque())
            seen.append((at_ns, report.kv_usage, report.num_waiting))
            while seen[0][0] < at_ns - self.params.window_s * 1e9:
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
