"""Search for the number of replicas that would have absorbed a burst, by sending the same requests to more
replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from servesim.contracts.request import State
from servesim.metrics.slo import time_text
from servesim.run.replica_search import ReplicaSearch
from servesim.run.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

ENOUGH = 0.99
"""Share of a burst's requests that must be served well enough (`held_share`) for the burst to count as absorbed; the
same default as in `capacity`."""
MOST = 64
"""Maximum number of replicas tried; the same default as in `capacity`."""
NS_PER_S, NS_PER_MS = 1e9, 1e6


def held_share(requests: pd.DataFrame, found: Mapping[str, Any], slo: Mapping[str, float]) -> float:
    """Return the share of a burst's requests that completed within `slo` (milliseconds by metric). Without limits,
    return the share that waited no longer than the longest wait before the burst in its original run.

    `requests`: requests of any run of the same trace, as in Result.requests; `found`: the figures of the burst
    (servesim.features.bursts.burst). The burst's requests are those that arrived between the beginning of the burst and
    the time when, in the run of `found`, the queue was as short as before the burst.
    """
    start = found["at_s"] * NS_PER_S
    recovery = found["recovery_s"]
    until = float("inf") if recovery is None else start + (found["for_s"] + recovery) * NS_PER_S
    mine = requests[(requests["arrival_ns"] >= start) & (requests["arrival_ns"] <= until)]
    if not len(mine):
        return 1.0
    if not slo:
        left = mine["scheduled_ns"].where(mine["scheduled_ns"] >= 0, mine["finished_ns"])
        return float(((left - mine["arrival_ns"]) <= found["longest_wait_before_ms"] * NS_PER_MS).mean())
    good = mine["state"] == int(State.FINISHED)
    for name, limit in slo.items():
        good &= mine[f"{name}_ns"].fillna(0) <= limit * NS_PER_MS
    return float(good.mean())


def holding(
    found: Mapping[str, Any], scenario: Scenario, requests: pd.DataFrame, again: Callable[[int], pd.DataFrame]
) -> dict[str, Any]:
    """Return the smallest number of `replicas` that absorbs a burst (None if even MOST do not), the `share` they reach,
    the number of `runs` that the search took, and the answer in words (`says`). `requests`: the requests of the run
    that `found` is from; `again`: runs the scenario with a given number of replicas. Per-class limits are not applied;
    if there are any, requests are judged by their wait."""
    slo = {} if scenario.slo_classes else scenario.slo
    what = (
        "within " + " and ".join(f"{name.upper()} {time_text(limit)}" for name, limit in slo.items())
        if slo
        else "scheduled as quickly as earlier requests"
    )
    share = held_share(requests, found, slo)
    if share >= ENOUGH:
        return _answer(scenario.replicas, share, 0, what, "held it")
    search = ReplicaSearch(max(MOST, scenario.replicas), scenario.replicas, step=scenario.replicas)
    search.tell(scenario.replicas, False)
    shares: dict[int, float] = {}
    while (replicas := search.next()) is not None:
        shares[replicas] = share = held_share(again(replicas), found, slo)
        search.tell(replicas, share >= ENOUGH)
    if search.fewest is None:
        best = max([share, *shares.values()])
        return {
            "replicas": None,
            "share": best,
            "runs": len(shares),
            "says": f"not even {max(MOST, scenario.replicas)} replicas would have absorbed it: at best "
            f"{100 * best:.1f} % of its requests {what}",
        }
    return _answer(search.fewest, shares[search.fewest], len(shares), what, "would have absorbed it")


def _answer(replicas: int, share: float, runs: int, what: str, verb: str) -> dict[str, Any]:
    says = f"{replicas} replica{'s' * (replicas != 1)} {verb}: {100 * share:.1f} % of its requests {what}"
    return {"replicas": replicas, "share": share, "runs": runs, "says": says}
