"""Publisher of KV events: which blocks of prompts and answers each replica's prefix cache holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from servesim.contracts.kv_events import AllBlocksCleared, KVEvent
from servesim.contracts.part import ClusterView
from servesim.contracts.router import ReplicaState
from servesim.errors import UserError
from servesim.hardware.model import ModelSpec
from servesim.live.events.channel import Channel, channel_of, check_endpoint
from servesim.live.events.engines import engine_of
from servesim.live.events.formats import Batch, Format, Sglang, Vllm
from servesim.live.watcher import Gap, Watcher
from servesim.records.step import Step
from servesim.run.pools import pool_scenarios
from servesim.run.scenario import Scenario

OPTION = "--kv-events"
NS = 1e9


class _Cache:
    """Prefix cache of one replica, and what is yet to be published of it."""

    def __init__(self, channel: Channel, form: Format) -> None:
        self.channel, self.form = channel, form
        self.events: list[Any] = []


class KVEvents(Watcher):
    """Watcher that publishes the KV events of each replica in the format of its engine, replica i on port + i, when the
    engine would. Their times are the start of the server plus simulated time. After a crash the numbers begin again at
    0, as after a restart of an engine, with AllBlocksCleared."""

    def __init__(
        self,
        scenario: Scenario,
        endpoint: str,
        *,
        topic: str = "",
        replay: str | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Raise UserError for an invalid endpoint, and for an engine that has no such events."""
        check_endpoint(OPTION, endpoint)
        if replay is not None:
            check_endpoint(f"{OPTION}-replay", replay)
        self._endpoint, self._topic, self._replay, self._wall = endpoint, topic.encode(), replay, wall
        for pool in pool_scenarios(scenario):
            engine_of(pool.scenario, OPTION)
        self._caches: dict[int, _Cache] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._encode = msgspec.msgpack.Encoder().encode

    @property
    def endpoints(self) -> list[str]:
        """Endpoints by replica."""
        return [cache.channel.endpoint for cache in self._caches.values()]

    def announced(self) -> str:
        return f"publishing KV events at {', '.join(self.endpoints)}"

    def join(self, cluster: ClusterView) -> None:
        self._clock, self._replicas, self._loop = cluster.clock, cluster.replicas, None
        self._pool_of = cluster.fleet.pool_of
        if not any(replica.core.kv.shares for replica in cluster.replicas):
            name = cluster.replicas[0].core.kv.name
            raise UserError(f"{OPTION}: kv {name} has no prefix cache, so there is nothing to publish")

    def core_made(self, replica: Any) -> None:
        """Listen to a cache, which is empty."""
        if not replica.core.kv.shares:
            return
        replica.listen(self._heard)
        index, cache = replica.index, self._caches.get(replica.index)
        if cache is not None:
            cache.channel.restart()
            cache.events.clear()
            self._heard(index, self._clock.ns, AllBlocksCleared())
            if self._loop is not None:
                self._publish(index, cache)
            return
        running = self._loop is not None
        channel = channel_of(OPTION, self._endpoint, index, self._topic, self._replay, running=running)
        if channel is None:
            return
        scenario = self.driver.scenario_of(self._pool_of[index])
        self._caches[index] = _Cache(channel, format_of(scenario, replica.core.kv))
        if self._loop is not None:
            channel.answer(self._loop)

    def start(self) -> None:
        self._loop, self._began_s = asyncio.get_running_loop(), self._wall()
        for index, cache in self._caches.items():
            cache.channel.answer(self._loop)
            self._publish(index, cache)

    def stepped(self, step: Step, replica: int, gaps: Sequence[Gap]) -> None:
        cache = self._caches.get(replica)
        if cache is not None and cache.form.due(step, self._replicas[replica].core.num_unfinished == 0):
            self._publish(replica, cache)

    def state_changed(self, index: int, state: ReplicaState) -> None:
        """Close the sockets of a replica that is gone for good, as its process would."""
        if state == "gone" and (cache := self._caches.pop(index, None)) is not None:
            cache.channel.close()

    def close(self) -> None:
        for cache in self._caches.values():
            cache.channel.close()
        self._caches.clear()

    def _heard(self, replica: int, ns: int, event: KVEvent) -> None:
        beyond = not isinstance(event, AllBlocksCleared) and event.medium != "gpu"  # not published
        if not beyond and (cache := self._caches.get(replica)) is not None:
            cache.form.add(cache.events, event)

    def _publish(self, index: int, cache: _Cache) -> None:
        if cache.events:
            cache.channel.send(self._encode(Batch(self._began_s + self._clock.ns / NS, cache.events, index)))
            cache.events = []


def format_of(scenario: Scenario, kv: Any) -> Format:
    """Return the format of a scenario's engine."""
    if engine_of(scenario, OPTION) == "sglang":
        return Sglang()
    latent = ModelSpec.load(scenario.model).latent is not None
    return Vllm("mla_attention" if latent else "full_attention", getattr(kv.params, "hash_lookahead_tokens", 0))
