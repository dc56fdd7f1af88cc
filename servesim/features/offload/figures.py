"""Figures of the summary's `offload`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from servesim.contracts.connector import Connector
from servesim.contracts.figures import Figure, Group, Rows, Summary
from servesim.contracts.part import Finished
from servesim.contracts.place import Counts
from servesim.engine.core import EngineCore
from servesim.features.offload.tiers import Direction, Tier
from servesim.metrics.distribution import describe
from servesim.metrics.requests import MS, SECOND, per
from servesim.metrics.words import number, percent
from servesim.schemas import COUNT, DISTRIBUTION, FIGURE, NUMBER, SHARE, a_map, an_object

HOST = "cpu"
"""Name of the tier of host memory; figures of all others are in `tiers`."""
WHERE = {
    "gpu": "on the GPU",
    HOST: "in host memory",
    "disk": "on the disk",
    "remote": "in the remote store",
    "store": "in the store",
}
"""Words for a tier, if its name is not clear by itself."""
TIER = an_object(
    {"server_read_busy_share": FIGURE, "server_write_busy_share": FIGURE},
    peak_share=SHARE,
    read_busy_share=FIGURE,
    write_busy_share=FIGURE,
)
POOL = an_object(hit_rate=a_map(FIGURE), loaded_tokens=COUNT, stored_tokens=COUNT)


class Connected(NamedTuple):
    """A core with memory beyond its GPUs."""

    replica: int
    pool: str
    core: EngineCore
    connector: Connector


class Behind(NamedTuple):
    """Transfers to and from the memory beyond the GPUs, for the figures."""

    found: Sequence[tuple[EngineCore, Connector]]
    """Each core and its connector."""
    last: Sequence[Connector]
    """Last connector of each replica; one that has crashed has had several."""
    prompt_tokens: float
    """Prompt tokens that these cores looked up in their prefix caches when requests were first admitted."""
    hit_tokens: float
    """Those that were found there."""
    duration_ns: int
    pools: Mapping[str, Behind] = {}
    """Data of each pool, if there are several."""

    @classmethod
    def of(cls, places: Sequence[Connected], finished: Finished, num_pools: int) -> Behind:
        """Return the input of the figures of a run with this number of pools."""
        requests, totals = finished.requests, finished.records.replicas
        if num_pools == 1:
            return cls._at(places, requests.total("queried_tokens"), requests.total("hit_tokens"), requests.duration_ns)
        pools = {}
        for name in dict.fromkeys(place.pool for place in places):
            own = [place for place in places if place.pool == name]
            replicas = dict.fromkeys(place.replica for place in own)
            queried, hits = (totals.sum_of(key, replicas) for key in ("prompt_tokens", "hit_tokens"))
            pools[name] = cls._at(own, queried, hits, requests.duration_ns)
        queried = sum(pool.prompt_tokens for pool in pools.values())
        hits = sum(pool.hit_tokens for pool in pools.values())
        return cls._at(places, queried, hits, requests.duration_ns)._replace(pools=pools)

    @classmethod
    def _at(cls, places: Sequence[Connected], queried: float, hits: float, duration_ns: int) -> Behind:
        last = {place.replica: place.connector for place in places}
        found = [(place.core, place.connector) for place in places]
        return cls(found, [*last.values()], queried, hits, duration_ns)

    @property
    def counts(self) -> list[Counts]:
        """Counts of each connector."""
        return [each.counts for _, each in self.found]

    @property
    def hosts(self) -> list[Tier]:
        """Host memory of each core that has any."""
        return [tier for _, each in self.found for tier in each.tiers if tier.name == HOST]

    @property
    def capacity_tokens(self) -> int:
        """Number of tokens that fit in host memory. Replicas of a node may share it."""
        held = {
            id(tier.memory): tier.memory.num_blocks * one.block_tokens
            for one in self.last
            for tier in one.tiers
            if tier.name == HOST
        }
        return sum(held.values())

    @property
    def tiers(self) -> dict[str, int]:
        """Tokens that admitted requests found, by tier."""
        names = dict.fromkeys(tier.name for _, each in self.found for tier in each.tiers)
        names |= dict.fromkeys(name for each in self.counts for name in each.tier_tokens)
        return {name: sum(each.tier_tokens.get(name, 0) for each in self.counts) for name in names}

    @property
    def loaded_tokens(self) -> int:
        """Number of tokens loaded."""
        return sum(self.tiers.values()) + self.sum("again_tokens")

    def sum(self, name: str) -> int:
        """Return the sum of a count over all replicas."""
        return sum(getattr(each, name) for each in self.counts)


def _hit_rate(m: Behind) -> dict[str, float | None]:
    queried = m.prompt_tokens
    return {"gpu": per(m.hit_tokens, queried), **{name: per(tokens, queried) for name, tokens in m.tiers.items()}}


def _slower(m: Behind) -> dict[str, Any] | None:
    slower: dict[str, list[Tier]] = {}
    for _, one in m.found:
        for tier in one.tiers:
            if tier.name != HOST:
                slower.setdefault(tier.name, []).append(tier)
    replicas = Counter(tier.name for one in m.last for tier in one.tiers)
    return {name: _tier(tiers, m.duration_ns / SECOND, replicas[name]) for name, tiers in slower.items()} or None


def _pools(m: Behind) -> dict[str, Any] | None:
    """Return the figures of each pool, or None if there is only one."""
    return {
        name: {
            "hit_rate": _hit_rate(pool),
            "loaded_tokens": pool.loaded_tokens,
            "stored_tokens": pool.sum("stored_tokens"),
        }
        for name, pool in m.pools.items()
    } or None


def _tier(tiers: Sequence[Tier], duration: float, replicas: int) -> dict[str, Any]:
    """Return the figures of a tier beyond host memory: its peak usage, and the busy share of each direction, of the
    links of this number of replicas and of what all share. `duration`: that of the run, in s."""
    seconds = duration * replicas
    figures = {
        "peak_share": max(tier.most / tier.memory.num_blocks for tier in tiers),
        "read_busy_share": per(sum(tier.reading.busy_ns for tier in tiers) / SECOND, seconds),
        "write_busy_share": per(sum(tier.writing.busy_ns for tier in tiers) / SECOND, seconds),
    }
    ways = {"read": [tier.reading for tier in tiers], "write": [tier.writing for tier in tiers]}
    for way, links in ways.items():
        channels = dict.fromkeys(link.channel for link in links if link.channel is not None)
        if channels:
            busy = sum(channel.busy_ns for channel in channels) / SECOND
            figures[f"server_{way}_busy_share"] = per(busy, duration * len(channels))
    return figures


def _of_hosts(share: Callable[[Behind], float | None]) -> Callable[[Behind], float | None]:
    """Return the function of a figure of host memory, which is undefined where no replica has any."""
    return lambda m: share(m) if m.hosts else None


def _busy(links: Iterable[Direction], m: Behind) -> float | None:
    seconds = m.duration_ns / SECOND * sum(tier.name == HOST for one in m.last for tier in one.tiers)
    return per(sum(link.busy_ns for link in links) / SECOND, seconds)


def _rows(summary: Summary) -> Rows:
    """Return the tiers in which KV was found, and how busy the links were."""
    figures = summary["offload"]
    full = {name: tier["peak_share"] for name, tier in figures.get("tiers", {}).items()}
    full[HOST] = figures.get("peak_share")
    found = [
        f"{percent(rate)} {WHERE.get(name, f'in {name}')}"
        + (f" ({'at most ' * (name == HOST)}{percent(full[name])} full)" if full.get(name) is not None else "")
        for name, rate in figures["hit_rate"].items()
    ]
    said = [f"prompt tokens found: {', '.join(found)}"]
    if load := figures["load_ms"]:
        said.append(f"loads took {number(load['mean'])} ms on average")
    if "load_busy_share" in figures:
        busy = (percent(figures[f"{way}_busy_share"]) for way in ("load", "store"))
        said.append("link busy {} loading, {} storing".format(*busy))
    return [("offload", ", ".join([f"{said[0]}; {said[1]}", *said[2:]]) if said[1:] else said[0])]


OFFLOAD = Group(
    "offload",
    "offload",
    (
        Figure("hit_rate", "for admitted requests, prompt tokens found on the GPU and in each tier, divided by "
               "`queried_tokens`. With several pools, of the replicas that have such memory; a prompt is admitted on "
               "both sides if prefill and decode are separate", _hit_rate, "share", a_map(FIGURE)),
        Figure("loaded_tokens", "number of tokens loaded, including tokens for preempted and migrated requests",
               lambda m: m.loaded_tokens, schema=COUNT),
        Figure("stored_tokens", "tokens stored", lambda m: m.sum("stored_tokens"), schema=COUNT),
        Figure("capacity_tokens", "number of tokens that fit in host memory, if there is any",
               _of_hosts(lambda m: m.capacity_tokens), schema=COUNT, optional=True),
        Figure("peak_share", "largest share of a replica's host memory in use at any time", _of_hosts(lambda m:
               max(host.most / host.memory.num_blocks for host in m.hosts)), "share", SHARE, optional=True),
        Figure("dropped_blocks", "number of blocks dropped to make room", lambda m: m.sum("dropped_blocks"),
        schema=COUNT), Figure("refused_stores", "number of stores refused because there was no room", lambda m:
        m.sum("refused"), schema=COUNT), Figure("deferred", "number of times a request waited for blocks that were "
            "being loaded for another request",
               lambda m: m.sum("deferred"), schema=COUNT),
        Figure("load_ms",
               "time from the request for a load to its completion. For LMCache, the time that a load adds to a step",
               lambda m: describe(np.array([ns for each in m.counts for ns in each.load_ns], dtype=np.int64), MS),
               "ms", DISTRIBUTION),
        Figure("load_busy_share", "share of the time during which the link to host memory was busy with loads",
               _of_hosts(lambda m: _busy((host.reading for host in m.hosts), m)), "share", optional=True),
        Figure("store_busy_share", "share of the time during which the link to host memory was storing",
               _of_hosts(lambda m: _busy((host.writing for host in m.hosts), m)), "share", optional=True),
        Figure("stalled_s", "time that steps waited for copies of the KV of preempted requests, or for chunks that "
               "they load and store", lambda m: sum(core.stalled_ns for core, _ in m.found) / SECOND, "s", NUMBER,
               "lower", "difference"),
        Figure("tiers", "the peak usage of each disk or store, and the busy shares of the replicas' links to it and, "
               "if all share its bandwidth, of that (`server_`)", _slower,
               schema=a_map(TIER), optional=True),
        Figure("pools", "`hit_rate`, `loaded_tokens` and `stored_tokens` of each pool that has such memory, if there "
               "are several pools", _pools, schema=a_map(POOL), optional=True),
    ),
    doc="Present if KV is kept outside the GPUs (`offload`, [offload.md](offload.md)). All figures cover all replicas "
    "that have such memory.",
    rows=_rows,
    after=("prefix cache",),
)  # fmt: skip
