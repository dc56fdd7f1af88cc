"""NVIDIA Dynamo's SLA planner (ai-dynamo 1.6.1, dynamo/planner) for replicas that do both prefill and decode.

The throughput loop runs every 180 s: it forecasts the requests and the prompt and answer lengths of the next interval;
replicas = ceil(demand / rate of one replica within the TTFT and ITL limits). The load loop runs every 5 s: it adds one
replica if every replica's next TTFT or ITL would exceed its limit, and removes one if each would stay below 0.8 of what
its limit allows with N/(N-1) of the load. Neither loop makes a decision while a replica is starting or draining. If
both loops run, the throughput loop sets the minimum. The planner reads step costs from profiled grids and regressions
of recorded passes; here the simulator's step costs are used directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from servesim.contracts.params import check_least
from servesim.contracts.scaler import PoolLoad, Profile, Scaler, ScalerParams, scalers
from servesim.policies.scaling._forecast import FORECASTS, Forecast

MOST_SEQUENCES = 1024
"""Maximum number of concurrent sequences for which a replica's rate is evaluated."""


@dataclass(frozen=True)
class DynamoParams(ScalerParams):
    """Configuration of the planner."""

    loops: Literal["throughput", "load", "both"] = "both"
    """Loops that make decisions."""
    predictor: Literal["constant", "arima", "kalman"] = "arima"
    """Forecasting method of the throughput loop (the planner's Prophet option is not available here)."""
    ttft_ms: float = 500.0
    """Limit on the time to first token."""
    itl_ms: float = 50.0
    """Limit on the time between tokens."""
    throughput_s: float = 180.0
    """Seconds between decisions of the throughput loop."""
    load_s: float = 5.0
    """Seconds between decisions of the load loop."""
    isl: int = 3000
    """Assumed prompt tokens per request before any arrive."""
    osl: int = 150
    """Assumed answer tokens per request before any finish."""
    sensitivity: float = 0.8
    """Share of a limit's headroom below which a replica is removed."""
    most_at_once: int = 8
    """Maximum number of replicas by which one decision changes the pool."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "min", "isl", "osl", "most_at_once")
        if min(self.ttft_ms, self.itl_ms, self.throughput_s, self.load_s, self.sensitivity) <= 0:
            raise ValueError("ttft_ms, itl_ms, throughput_s, load_s and sensitivity must be more than 0")


@scalers.register("dynamo-planner")
class DynamoPlanner(Scaler):
    """Planner that divides the forecast demand by the rate of a replica and corrects the result by the current load."""

    Params = DynamoParams

    def __init__(self, params: Any, profile: Profile) -> None:
        super().__init__(params, profile)
        self._forecasts: list[Forecast] = [FORECASTS[params.predictor]() for _ in range(3)]
        self._isl, self._osl = float(params.isl), float(params.osl)
        self._sums = [0, 0, 0, 0]  # arrived, prompt tokens, finished, output tokens
        self._begun_ns = 0
        self._least = params.min

    @property
    def every_s(self) -> float:
        return float(self.params.throughput_s if self.params.loops == "throughput" else self.params.load_s)

    def wanted(self, load: PoolLoad) -> int:
        params, now = self.params, load.num_replicas
        come = (load.arrived, load.prompt_tokens, load.finished, load.output_tokens)
        self._sums = [a + b for a, b in zip(self._sums, come, strict=True)]
        wanted = now
        due = load.at_ns - self._begun_ns >= params.throughput_s * 1e9 - 1
        if due and params.loops != "load":
            self._least = max(self._by_throughput((load.at_ns - self._begun_ns) / 1e9), params.min)
            wanted = self._least if params.loops == "throughput" else max(now, self._least)
        if due:
            self._begun_ns, self._sums = load.at_ns, [0, 0, 0, 0]
        if not load.settled:
            return now
        if params.loops != "throughput" and wanted == now and load.ready:
            wanted = max(now + self._by_load(load), self._least if params.loops == "both" else params.min)
        most: int = params.most_at_once
        return min(max(wanted, now - most), now + most)

    def _by_throughput(self, seconds: float) -> int:
        """Return the number of replicas that the next interval needs."""
        arrived, prompt, finished, output = self._sums
        if arrived:
            self._isl = prompt / arrived
        if finished:
            self._osl = output / finished
        for forecast, value in zip(self._forecasts, (arrived / seconds, self._isl, self._osl), strict=True):
            forecast.add(value)
        rate, isl, osl = (max(forecast.next(), 0.0) for forecast in self._forecasts)
        return ceil(rate / self.rate_of_one(max(round(isl), 1), max(round(osl), 1)))

    def rate_of_one(self, isl: int, osl: int) -> float:
        """Return the maximum requests/s of one replica within the limits.

        With c concurrent sequences, a token takes a decode step plus its share of the prompts that arrive in the
        meantime: ITL = step + c prefill / osl, and c / (osl ITL) requests arrive per second. A prompt waits for one
        step and is then computed.
        """
        params, prefill = self.params, self.profile.prefill_s(isl)
        best, low, high = 0.0, 1, MOST_SEQUENCES
        while low <= high:
            count = (low + high) // 2
            step = self.profile.decode_s(count, isl + osl // 2)
            itl = step + count * prefill / osl
            if itl * 1e3 <= params.itl_ms and (prefill + step) * 1e3 <= params.ttft_ms:
                best, low = count / (osl * itl), count + 1
            else:
                high = count - 1
        if best:
            return best
        return 1 / (prefill + osl * self.profile.decode_s(1, isl + osl // 2))  # limits cannot be met: run one by one

    def _by_load(self, load: PoolLoad) -> int:
        """Return the change in replicas: 1, 0, or -1."""
        params, count = self.params, len(load.ready)
        isl, osl = max(round(self._isl), 1), max(round(self._osl), 1)
        prefill = self.profile.prefill_s(isl) * 1e3

        def estimates(factor: float) -> list[tuple[float, float]]:
            found = []
            for report in load.ready.values():
                running = max(round(report.num_running * factor), 1)
                itl = self.profile.decode_s(running, isl + osl // 2) * 1e3
                found.append((report.num_waiting * factor * prefill, itl))
            return found

        own_itl = self.profile.decode_s(1, isl + osl // 2) * 1e3
        if all(ttft + prefill > params.ttft_ms or itl > params.itl_ms for ttft, itl in estimates(1.0)):
            return 1
        if count < 2:
            return 0
        spare_ttft, spare_itl = params.ttft_ms - prefill, params.itl_ms - own_itl
        after = estimates(count / (count - 1))
        below = all(
            ttft < params.sensitivity * spare_ttft and itl - own_itl < params.sensitivity * spare_itl
            for ttft, itl in after
        )
        return -1 if below else 0
