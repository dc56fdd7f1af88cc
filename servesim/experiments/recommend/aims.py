"""Aims of a search: the load that tells whether one deployment beats another, and what it costs at a load.

All aims are minimized. A deployment beats a price if it carries, within the SLO, the load at which it would cost that
much; so a single run settles a challenge.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servesim.errors import UserError
from servesim.experiments.axes import Variant
from servesim.experiments.limit_search import LimitSearch, RateSearch
from servesim.experiments.variants import usd_with_all_up
from servesim.run.pools import pool_scenarios
from servesim.run.prices import prices_of, reserved_of
from servesim.run.replica_search import ReplicaSearch
from servesim.run.scenario import Scenario

MOST_REPLICAS = 4096
"""Maximum number of replicas that a budget buys."""
STEP = 1.15
"""First step of a search for a rate that starts at one that is carried."""


def usd_of(settings: Mapping[str, Any]) -> float:
    """Return the hourly price of a deployment, with all its replicas up; infinity if it is invalid."""
    try:
        return usd_with_all_up(Scenario.of(settings))
    except UserError:
        return math.inf


def fleet_usd(v: Variant, replicas: int) -> float:
    """Return the hourly price of a number of replicas of a deployment, of which some GPUs may be reserved. If prefill
    and decode are apart, a replica is all pools together."""
    if v.settings.get("pd"):
        return usd_of(v.settings) * replicas
    if reserves(v):
        return usd_of({**v.settings, "replicas": replicas})
    return usd_of({**v.settings, "replicas": 1}) * replicas


def reserves(v: Variant) -> bool:
    """Return whether some GPUs of the question are reserved."""
    return any(reserved_of(price) for price in prices_of(v.settings.get("price") or {}).values())


def most_for(v: Variant, usd: float, most: int) -> int:
    """Return how many replicas, at most `most`, cost no more than dollars per hour."""
    return bisect_right(range(1, most + 1), usd * (1 + 1e-9), key=lambda n: fleet_usd(v, n))


@dataclass(frozen=True)
class PricePerRequest:
    """Least dollars per request at the highest rate that a deployment carries."""

    key = "rate"
    name = "price per request"
    traffic = False
    """Whether the highest rate is searched, whatever it costs."""
    metric = ""
    """Latency that is minimized, or none for a price."""

    def cost(self, v: Variant) -> float:
        """Return the cost that is divided by the rate: dollars per hour."""
        return usd_of(v.settings)

    def replicas(self, v: Variant) -> int | None:
        """Return the number of replicas that the question asks for, 0 if not one fits in it, None if it asks for
        none."""
        return None

    def admits(self, v: Variant, head: Variant) -> bool:
        """Return whether a deployment that can run may be compared with another one."""
        return True

    def load(self, v: Variant, price: float) -> float | None:
        """Return the load at which a deployment has this price, or None if it cannot have it."""
        return float(f"{self.cost(v) / price:.4g}")

    def price(self, v: Variant, load: float) -> float:
        """Return the price of a deployment that carries a load."""
        return self.cost(v) / load

    def rate_at(self, load: float) -> float:
        """Return the requests/s of a load."""
        return load

    def bound(self, v: Variant, rate: float) -> float:
        """Return the lowest price of a deployment of which a replica serves at most this rate."""
        return self.cost(v) / rate if rate > 0 else math.inf

    def search(self, v: Variant, load: float, tolerance: float) -> LimitSearch:
        """Return a search around a load."""
        return RateSearch(tolerance, load, STEP)

    def rank(self, v: Variant, price: float) -> tuple[float, ...]:
        """Return the sort key of a deployment with a price, lowest first."""
        return (price,)


class _Rate(PricePerRequest):
    """Highest rate, whatever it costs."""

    traffic = True

    def cost(self, v: Variant) -> float:
        return 1.0

    def admits(self, v: Variant, head: Variant) -> bool:
        return gpus_of(v) == gpus_of(head)


@dataclass(frozen=True)
class Headroom(_Rate):
    """Highest rate of deployments whose number of replicas is known: the cheapest first, then the fastest."""

    name = "headroom"

    def rank(self, v: Variant, price: float) -> tuple[float, ...]:
        alone = Variant(v.label, v.axes, {key: value for key, value in v.settings.items() if key != "pd"})
        return (fleet_usd(alone, int(v.settings.get("replicas") or 1)), price)


@dataclass(frozen=True)
class MostTraffic(_Rate):
    """Highest rate of a number of GPUs."""

    gpus: int
    name = "highest rate for the GPUs"

    def replicas(self, v: Variant) -> int | None:
        return self.gpus // gpus_of(v)

    def within(self, gpus: int, usd: float) -> bool:
        """Return whether a number of GPUs is within this one, whatever `usd` per hour they cost."""
        return gpus <= self.gpus

    def __str__(self) -> str:
        return f"{self.gpus} GPU{'s' * (self.gpus > 1)}"


@dataclass(frozen=True)
class MostForBudget(_Rate):
    """Highest rate for dollars per hour."""

    usd: float
    name = "highest rate for the budget"

    def replicas(self, v: Variant) -> int | None:
        if reserves(v):
            return most_for(v, self.usd, MOST_REPLICAS)
        return int(self.usd / fleet_usd(v, 1) + 1e-9)

    def within(self, gpus: int, usd: float) -> bool:
        """Return whether GPUs at `usd` per hour, whatever their number, cost no more than the budget."""
        return usd <= self.usd * (1 + 1e-9)

    def admits(self, v: Variant, head: Variant) -> bool:
        return self.within(0, usd_of(v.settings))

    def __str__(self) -> str:
        return f"${self.usd:,.2f}/h"


@dataclass(frozen=True)
class PriceForRate(PricePerRequest):
    """Least dollars per hour for a rate, in whole replicas."""

    rate: float
    """Requests/s of the question."""
    most: int
    """Maximum number of replicas."""
    key = "replicas"
    name = "price for the rate"

    def cost(self, v: Variant) -> float:
        return fleet_usd(v, 1)

    def load(self, v: Variant, price: float) -> float | None:
        if reserves(v):  # the most replicas that cost less: those on reserved GPUs are paid for anyway
            return most_for(v, price * (1 - 1e-6), self.most) or None
        fewer = math.ceil(price / self.cost(v) - 1e-9) - 1 if price < math.inf else self.most
        return min(fewer, self.most) if fewer >= 1 else None

    def price(self, v: Variant, load: float) -> float:
        return fleet_usd(v, int(load))

    def rate_at(self, load: float) -> float:
        return self.rate

    def bound(self, v: Variant, rate: float) -> float:
        return fleet_usd(v, max(math.ceil(self.rate / rate), 1)) if rate > 0 else math.inf

    def search(self, v: Variant, load: float, tolerance: float) -> LimitSearch:
        return ReplicaSearch(self.most, max(int(load), 1))


@dataclass(frozen=True)
class LeastLatency(PricePerRequest):
    """Least latency at a rate, of deployments within a number of GPUs or a budget. Here a price is a latency in ms, and
    the only load is the rate."""

    most: MostTraffic | MostForBudget
    """Number of GPUs or budget that a deployment must fit in."""
    rate: float
    """Requests/s of the question."""
    metric: str = "ttft_p99"
    name = "least latency for the price"

    def replicas(self, v: Variant) -> int | None:
        return self.most.replicas(v)

    def admits(self, v: Variant, head: Variant) -> bool:
        return self.most.within(gpus_of(v), usd_of(v.settings))

    def load(self, v: Variant, price: float) -> float | None:
        return self.rate

    def rate_at(self, load: float) -> float:
        return self.rate

    def bound(self, v: Variant, rate: float) -> float:
        return 0.0 if rate >= self.rate else math.inf

    def __str__(self) -> str:
        return str(self.most)


Aim = PricePerRequest


def gpus_of(v: Variant) -> int:
    """Return the number of GPUs of a deployment."""
    one = Scenario.of(v.settings)
    return sum(p.scenario.tp * p.scenario.pp * p.scenario.dp * p.scenario.replicas for p in pool_scenarios(one))
