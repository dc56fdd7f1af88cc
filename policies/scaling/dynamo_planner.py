"""NVIDIA Dynamo's SLA planner for prefill and decode, apart or together (ai-dynamo 1.6.1, dynamo/planner).

One planner scales a prefill and a decode pool, or one of them, or a pool that does both: its modes disagg, prefill,
decode and agg.

The throughput loop runs every 180 s: it forecasts the requests and the prompt and answer lengths of the next interval;
replicas = ceil(demand / rate of one replica within the TTFT and ITL limits). The load loop runs every 5 s: it adds one
replica if every replica's next TTFT or ITL would exceed its limit, and removes one if each would stay below 0.8 of what
its limit allows with N/(N-1) of the load. Neither loop makes a decision while a replica is starting or draining. If
both loops run, the throughput loop sets the minimum. The planner estimates step costs from profiles and recorded
passes; here the simulator's step costs are used directly.

Prefill and decode pools (_dynamo_pair): prefill replicas are demand over the prompts/s of a replica within the TTFT
limit, decode replicas are demand over its answers/s within the ITL limit, and both together keep a GPU budget. Up to
version 1.0.1, correction factors compared what was observed with the profile (`correction`): the prefill demand is
multiplied by min(1, TTFT / profiled TTFT), and the ITL limit is divided by ITL / profiled ITL at the mean concurrency.
Not modeled: the discount by the router's cache hit rate, and a load loop that cancels starting replicas.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from servesim.contracts.params import check_least
from servesim.contracts.profile import Profile
from servesim.contracts.scaler import PoolLoad, Scaler, ScalerParams, scalers
from servesim.errors import UserError
from servesim.policies.scaling._dynamo_pair import (
    Sides,
    decode_rate,
    decode_step,
    fitted,
    prefill_rate,
    prefill_step,
    prompt_s,
    within_budget,
)
from servesim.policies.scaling._forecast import FORECASTS, Forecast

UNLIMITED = 1 << 30
"""GPU budget if there is none."""
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
    max_gpu_budget: int = -1
    """Maximum number of GPUs of a prefill and a decode pool together; -1 for no limit but `max` (Dynamo's default is
    8)."""
    correction: bool = False
    """Whether the throughput loop corrects its profile of prefill and decode by what it observed, as up to version
    1.0.1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "min", "isl", "osl", "most_at_once")
        check_least(self, -1, "max_gpu_budget")
        if 0 <= self.max_gpu_budget < 2:
            raise ValueError("max_gpu_budget must be -1 or at least 2: a GPU for each role")
        if min(self.ttft_ms, self.itl_ms, self.throughput_s, self.load_s, self.sensitivity) <= 0:
            raise ValueError("ttft_ms, itl_ms, throughput_s, load_s and sensitivity must be more than 0")


@dataclass
class Observed:
    """Sums of latencies over finished requests, in seconds."""

    finished: int = 0
    ttft_s: float = 0.0
    itl_s: float = 0.0
    e2e_s: float = 0.0

    def add(self, load: PoolLoad) -> None:
        """Add the requests that finished in a pool."""
        if load.finished and load.ttft_s is not None and load.e2e_s is not None:
            self.finished += load.finished
            self.ttft_s += load.ttft_s * load.finished
            self.itl_s += (load.tpot_s or 0.0) * load.finished
            self.e2e_s += load.e2e_s * load.finished


@scalers.register("dynamo-planner")
class DynamoPlanner(Scaler):
    """Planner that divides the forecast demand by the rate of a replica and corrects the result by the current load."""

    Params = DynamoParams
    needs = frozenset({"pools", "latency"})

    def __init__(self, params: Any, profile: Profile) -> None:
        super().__init__(params, profile)
        self._forecasts: list[Forecast] = [FORECASTS[params.predictor]() for _ in range(3)]
        self._isl, self._osl = float(params.isl), float(params.osl)
        self._sums = [0, 0, 0, 0]  # arrived, prompt tokens, finished, output tokens
        self._begun_ns = 0
        self._least = params.min
        self._least_of = Sides(params.min, params.min)
        self._observed = Observed()

    @classmethod
    def shared(cls, params: DynamoParams, profile: Profile) -> Hashable:
        return None if profile.role == "both" else params

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
            rate, isl, osl = self._predicted((load.at_ns - self._begun_ns) / 1e9)
            self._least = max(ceil(rate / self.rate_of_one(isl, osl)), params.min)
            wanted = self._least if params.loops == "throughput" else max(now, self._least)
        if due:
            self._begun_ns, self._sums = load.at_ns, [0, 0, 0, 0]
        if not load.settled:
            return now
        if params.loops != "throughput" and wanted == now and load.ready:
            wanted = max(now + self._by_load(load), self._least if params.loops == "both" else params.min)
        most: int = params.most_at_once
        return min(max(wanted, now - most), now + most)

    def _predicted(self, seconds: float) -> tuple[float, int, int]:
        """Return the requests/s and the tokens of prompts and answers that are expected in the next interval."""
        arrived, prompt, finished, output = self._sums
        if arrived:
            self._isl = prompt / arrived
        if finished:
            self._osl = output / finished
        for forecast, value in zip(self._forecasts, (arrived / seconds, self._isl, self._osl), strict=True):
            forecast.add(value)
        rate, isl, osl = (max(forecast.next(), 0.0) for forecast in self._forecasts)
        return rate, max(round(isl), 1), max(round(osl), 1)

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

    # Prefill and decode pools.

    def wanted_of(self, loads: Mapping[str, PoolLoad]) -> Mapping[str, int]:
        names = {self.profiles[name].role: name for name in loads if name in self.profiles}
        if set(names) <= {"both"}:
            return super().wanted_of(loads)
        if len(names) < len(loads):
            raise UserError(f"scaler {self.name}: scales one prefill and one decode pool, not {', '.join(loads)}")
        first = next(iter(loads.values()))
        prefill, decode = (
            next(load for name, load in {**first.others, **loads}.items() if self.profiles[name].role == role)
            for role in ("prefill", "decode")
        )
        now = Sides(prefill.num_replicas, decode.num_replicas)
        settled = all(load.settled for load in loads.values())
        wanted = self._pair(prefill, decode, now, settled, Sides("prefill" in names, "decode" in names))
        return {name: getattr(wanted, role) for role, name in names.items()}

    def _pair(self, prefill: PoolLoad, decode: PoolLoad, now: Sides, settled: bool, own: Sides) -> Sides:
        """Return the replicas wanted of both sides; those of a side that is not its `own` stay as they are."""
        params, seconds = self.params, (prefill.at_ns - self._begun_ns) / 1e9
        come = (prefill.arrived, prefill.prompt_tokens, decode.finished, decode.output_tokens)
        self._sums = [a + b for a, b in zip(self._sums, come, strict=True)]
        self._observed.add(decode)
        bound, due = now, seconds >= params.throughput_s - 1e-9
        if due and params.loops != "load":
            bound = self._of_own(self._pair_by_throughput(seconds, now), now, own)
            self._least_of = fitted(now, bound, self._gpus(own), self._budget, params.min)
        if due:
            self._begun_ns, self._sums, self._observed = prefill.at_ns, [0, 0, 0, 0], Observed()
        if not settled:
            return now
        if params.loops == "throughput":
            wanted = bound
        else:
            least = self._least_of if params.loops == "both" else Sides(params.min, params.min)
            steps = self._pair_by_load(prefill, decode)
            wanted = Sides(*(max(n + step, low) for n, step, low in zip(now, steps, least, strict=True)))
        return within_budget(now, self._of_own(wanted, now, own), self._gpus(own), self._budget, params.min)

    def _pair_by_throughput(self, seconds: float, now: Sides) -> Sides:
        """Return the replicas that the next interval needs, at most `most_at_once` from the present ones."""
        params = self.params
        prefill, decode = (self._of_role(role) for role in ("prefill", "decode"))
        observed, arrived = self._observed, self._sums[0]
        rate, isl, osl = self._predicted(seconds)
        ttft_s, itl_s, share = params.ttft_ms / 1e3, params.itl_ms / 1e3, 1.0
        prompts = prefill_rate(prefill, isl, ttft_s)
        if params.correction:
            prompts = 1 / prompt_s(prefill, isl)  # profiled one by one
            if observed.finished:
                ttft, itl, e2e = (s / observed.finished for s in (observed.ttft_s, observed.itl_s, observed.e2e_s))
                share = min(1.0, ttft / prompt_s(prefill, round(self._isl)))
                concurrency = max(round(arrived / max(now.decode, 1) * e2e / seconds), 1)
                expected = decode.decode_s(concurrency, round(self._isl + self._osl / 2))
                itl_s = itl_s * expected / itl if itl else itl_s
        needed = (ceil(rate * share / prompts), ceil(rate / decode_rate(decode, isl, osl, itl_s)))
        most = params.most_at_once
        return Sides(*(max(min(max(n, h - most), h + most), params.min) for n, h in zip(needed, now, strict=True)))

    def _pair_by_load(self, prefill: PoolLoad, decode: PoolLoad) -> tuple[int, int]:
        """Return the changes in replicas: 1, 0, or -1 each."""
        isl, osl = max(round(self._isl), 1), max(round(self._osl), 1)
        return (
            prefill_step(self.params, self._of_role("prefill"), prefill.ready, isl) if prefill.ready else 0,
            decode_step(self.params, self._of_role("decode"), decode.ready, isl + osl // 2) if decode.ready else 0,
        )

    def _of_own(self, wanted: Sides, now: Sides, own: Sides) -> Sides:
        return Sides(*(w if mine else n for w, n, mine in zip(wanted, now, own, strict=True)))

    def _of_role(self, role: str) -> Profile:
        return next(profile for profile in self.profiles.values() if profile.role == role)

    def _gpus(self, own: Sides) -> Sides:
        """Return the GPUs of a replica of each side; the GPUs of a side that is not its `own` are not in the budget."""
        return Sides(*(self._of_role(role).num_gpus * mine for role, mine in zip(own._fields, own, strict=True)))

    @property
    def _budget(self) -> int:
        budget: int = self.params.max_gpu_budget
        return budget if budget >= 0 else UNLIMITED
