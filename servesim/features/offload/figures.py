"""Figures of the summary's `offload`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servesim.engine.core import EngineCore
from servesim.features.offload.connector import Offload
from servesim.features.offload.lmcache import LMCache
from servesim.features.offload.tiers import Tier
from servesim.metrics.distribution import describe
from servesim.metrics.requests import MS, SECOND, Requests, per
from servesim.metrics.words import number, percent


def offload_figures(found: Sequence[tuple[EngineCore, Offload | LMCache]], requests: Requests) -> dict[str, Any]:
    """Return the figures of the summary's `offload`, over all replicas: tokens, shares of the prompt tokens of admitted
    requests by where their KV was found, times in ms. `capacity_tokens` and the figures of links are those of host
    memory."""
    counts, hosts = [each.counts for _, each in found], [each.tiers[0] for _, each in found]
    queried, gpu = requests.total("queried_tokens"), requests.total("hit_tokens")
    tiers = {tier.name: sum(each.tier_tokens.get(tier.name, 0) for each in counts) for tier in found[0][1].tiers}
    loads = np.array([ns for each in counts for ns in each.load_ns], dtype=np.int64)
    seconds = requests.duration_ns / SECOND * len(found)
    slower = {name: i for i, name in enumerate(tiers) if i}
    return {
        "hit_rate": {"gpu": per(gpu, queried), **{name: per(tokens, queried) for name, tokens in tiers.items()}},
        "loaded_tokens": sum(tiers.values()) + sum(each.again_tokens for each in counts),
        "stored_tokens": sum(each.stored_tokens for each in counts),
        "capacity_tokens": sum(each.tiers[0].memory.num_blocks * each.block_tokens for _, each in found),
        "peak_share": max(host.most / host.memory.num_blocks for host in hosts),
        "dropped_blocks": sum(each.dropped_blocks for each in counts),
        "refused_stores": sum(each.refused for each in counts),
        "deferred": sum(each.deferred for each in counts),
        "load_ms": describe(loads, MS),
        "load_busy_share": per(sum(host.reading.busy_ns for host in hosts) / SECOND, seconds),
        "store_busy_share": per(sum(host.writing.busy_ns for host in hosts) / SECOND, seconds),
        "stalled_s": sum(core.stalled_ns for core, _ in found) / SECOND,
        **(
            {"tiers": {name: _tier([o.tiers[i] for _, o in found], seconds) for name, i in slower.items()}}
            if slower
            else {}
        ),
    }


def _tier(tiers: Sequence[Tier], seconds: float) -> dict[str, Any]:
    """Return the figures of a tier beyond host memory: how full it was at most, and how busy the way each way."""
    return {
        "peak_share": max(tier.most / tier.memory.num_blocks for tier in tiers),
        "read_busy_share": per(sum(tier.reading.busy_ns for tier in tiers) / SECOND, seconds),
        "write_busy_share": per(sum(tier.writing.busy_ns for tier in tiers) / SECOND, seconds),
    }


def offload_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return in words where KV was found, by tier, and how busy the link was."""
    rates, load = figures["hit_rate"], figures["load_ms"]
    slower = "".join(
        f", {percent(rates[name])} {where} ({percent(tier['peak_share'])} full)"
        for name, tier in figures.get("tiers", {}).items()
        for where in ["on the disk" if name == "disk" else "in the remote store"]
    )
    took = f"loads took {number(load['mean'])} ms in the mean, " if load else ""
    return [
        (
            "offload",
            f"of prompt tokens {percent(rates['gpu'])} on the GPU, {percent(rates['cpu'])} in host memory "
            f"({percent(figures['peak_share'])} full at most){slower}; {took}link busy "
            f"{percent(figures['load_busy_share'])} loading, {percent(figures['store_busy_share'])} storing",
        )
    ]
