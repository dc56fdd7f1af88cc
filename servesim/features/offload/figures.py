"""Figures of the summary's `offload`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from servesim.contracts.figures import Figure, Group, Rows, Summary
from servesim.engine.core import EngineCore
from servesim.features.offload.connector import Offload
from servesim.features.offload.lmcache import LMCache
from servesim.features.offload.tiers import Tier
from servesim.metrics.distribution import describe
from servesim.metrics.requests import MS, SECOND, Requests, per
from servesim.metrics.words import number, percent
from servesim.schemas import COUNT, DISTRIBUTION, FIGURE, NUMBER, SHARE, a_map, an_object

TIER = an_object(peak_share=SHARE, read_busy_share=FIGURE, write_busy_share=FIGURE)


class Behind(NamedTuple):
    """Transfers to and from the memory beyond the GPUs, for the figures."""

    found: Sequence[tuple[EngineCore, Offload | LMCache]]
    """Each core and its connector."""
    requests: Requests
    last: Sequence[Offload | LMCache]
    """Last connector of each replica; one that has crashed has had several."""

    @property
    def counts(self) -> list[Any]:
        """Counts of each connector."""
        return [each.counts for _, each in self.found]

    @property
    def hosts(self) -> list[Tier]:
        """Host memory of each replica."""
        return [each.tiers[0] for _, each in self.found]

    @property
    def seconds(self) -> float:
        """Duration of the run, summed over all replicas."""
        return self.requests.duration_ns / SECOND * len(self.last)

    @property
    def tiers(self) -> dict[str, int]:
        """Tokens that admitted requests found, by tier."""
        names = [tier.name for tier in self.found[0][1].tiers]
        return {name: sum(each.tier_tokens.get(name, 0) for each in self.counts) for name in names}

    def sum(self, name: str) -> int:
        """Return the sum of a count over all replicas."""
        return sum(getattr(each, name) for each in self.counts)


def _hit_rate(m: Behind) -> dict[str, float | None]:
    queried, gpu = m.requests.total("queried_tokens"), m.requests.total("hit_tokens")
    return {"gpu": per(gpu, queried), **{name: per(tokens, queried) for name, tokens in m.tiers.items()}}


def _slower(m: Behind) -> dict[str, Any] | None:
    tiers = [one.tiers for _, one in m.found]
    slower = {name: i for i, name in enumerate(m.tiers) if i}
    return {name: _tier([each[i] for each in tiers], m.seconds) for name, i in slower.items()} or None


def _tier(tiers: Sequence[Tier], seconds: float) -> dict[str, Any]:
    """Return the figures of a tier beyond host memory: its peak usage, and the busy share of each direction."""
    return {
        "peak_share": max(tier.most / tier.memory.num_blocks for tier in tiers),
        "read_busy_share": per(sum(tier.reading.busy_ns for tier in tiers) / SECOND, seconds),
        "write_busy_share": per(sum(tier.writing.busy_ns for tier in tiers) / SECOND, seconds),
    }


def _rows(summary: Summary) -> Rows:
    """Return the tiers in which KV was found, and how busy the link was."""
    figures = summary["offload"]
    rates, load = figures["hit_rate"], figures["load_ms"]
    slower = "".join(
        f", {percent(rates[name])} {where} ({percent(tier['peak_share'])} full)"
        for name, tier in figures.get("tiers", {}).items()
        for where in ["on the disk" if name == "disk" else "in the remote store"]
    )
    took = f"loads took {number(load['mean'])} ms on average, " if load else ""
    return [
        (
            "offload",
            f"prompt tokens found: {percent(rates['gpu'])} on the GPU, {percent(rates['cpu'])} in host memory (at "
            f"most {percent(figures['peak_share'])} full){slower}; {took}link busy "
            f"{percent(figures['load_busy_share'])} loading, {percent(figures['store_busy_share'])} storing",
        )
    ]


OFFLOAD = Group(
    "offload",
    "offload",
    (
        Figure("hit_rate", "for admitted requests, prompt tokens found on the GPU and in each tier, divided by "
               "`queried_tokens`", _hit_rate, "share", a_map(FIGURE)),
        Figure("loaded_tokens", "number of tokens loaded, including tokens for preempted requests",
               lambda m: sum(m.tiers.values()) + m.sum("again_tokens"), schema=COUNT),
        Figure("stored_tokens", "tokens stored", lambda m: m.sum("stored_tokens"), schema=COUNT),
        Figure("capacity_tokens", "number of tokens that fit in host memory",
               lambda m: sum(one.tiers[0].memory.num_blocks * one.block_tokens for one in m.last), schema=COUNT),
        Figure("peak_share", "largest share of a replica's host memory in use at any time",
               lambda m: max(host.most / host.memory.num_blocks for host in m.hosts), "share", SHARE),
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
               lambda m: per(sum(host.reading.busy_ns for host in m.hosts) / SECOND, m.seconds), "share"),
        Figure("store_busy_share", "share of the time during which the link to host memory was storing",
               lambda m: per(sum(host.writing.busy_ns for host in m.hosts) / SECOND, m.seconds), "share"),
        Figure("stalled_s", "time that steps waited for copies of the KV of preempted requests, or for chunks that "
               "they load and store", lambda m: sum(core.stalled_ns for core, _ in m.found) / SECOND, "s", NUMBER,
               "lower", "difference"),
        Figure("tiers", "the peak usage of each disk or remote store, and the busy shares of its link", _slower,
               schema=a_map(TIER), optional=True),
    ),
    doc="Present if KV is kept outside the GPUs (`offload`, [offload.md](offload.md)). All figures cover all replicas.",
    rows=_rows,
    after=("prefix cache",),
)  # fmt: skip
