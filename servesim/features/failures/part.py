"""Failures: replicas that crash and restart with a cold cache, and replicas that are slow for a time."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from simpy.events import Event

from servesim.contracts.part import ClusterView, Part
from servesim.contracts.request import LAST, Request, State
from servesim.cost.slowed import Slowed
from servesim.draws import uniform_one
from servesim.engine.clock import CHANGE, RECALL, REPORT
from servesim.engine.telling import LOST


class Crash(NamedTuple):
    """A crash in which a replica loses all its state."""

    replica: int
    at_ns: int
    restart_ns: int
    """Time from the crash until the replica serves again, or -1 if it never does."""


class Slowdown(NamedTuple):
    """A period in which a replica's GPU time is longer: a straggler."""

    replica: int
    at_ns: int
    until_ns: int
    factor: float


class Failures(NamedTuple):
    """Failures, and the response to them."""

    crashes: tuple[Crash, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    detect_ns: int = 0
    """Time from a crash until the router detects it; requests sent there in the meantime fail immediately."""
    reroutes: int = 5
    """Maximum number of times a request is rerouted if its replica is lost before the first token; after that token its
    client gets the error, as in the gateways of SGLang and vLLM."""
    backoff_ns: int = 50_000_000
    """Pause before a request is rerouted; each pause is `growth` times the previous one, up to `most_ns`, give or take
    a share `jitter` of it. The defaults are those of sglang-router 0.3.2, smg 1.9.0 and vllm-router 0.1.17."""
    growth: float = 1.5
    most_ns: int = 30_000_000_000
    jitter: float = 0.2
    seed: int = 0
    """Seed of the jitter, which is keyed by request and attempt."""


class Failing(Part):
    """Part that crashes or slows replicas of a cluster, and reroutes requests that were lost before their first
    token."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._here: dict[Request, int] = {}  # on a replica: output length
        self._pausing: dict[Request, int] = {}  # to be rerouted: output length
        self._attempts: dict[Request, int] = {}

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def held(self) -> int:
        return len(self._pausing)

    def start(self) -> None:
        clock = self._cluster.clock
        for crash in self._failures.crashes:
            clock.at(crash.at_ns, CHANGE, partial(self._crash, crash))
        for slow in self._failures.slowdowns:
            clock.at(slow.at_ns, REPORT, partial(self._reprice, slow.replica, slow.factor))
            clock.at(slow.until_ns, REPORT, partial(self._reprice, slow.replica, 1.0))

    def sent(self, request: Request, output_len: int, index: int) -> None:
        self._here[request] = output_len

    def reaches(self, request: Request, index: int) -> bool:
        if self._cluster.replicas[index].up:
            return True
        self._lose(request)
        return False

    def left(self, request: Request) -> None:
        self._here.pop(request, None)
        self._pausing.pop(request, None)
        self._attempts.pop(request, None)

    def _reprice(self, index: int, factor: float, event: Event) -> None:
        cost = self._cluster.fleet.pool_of[index].cost
        self._cluster.replicas[index].reprice(Slowed(cost, factor) if factor != 1 else cost)

    def _crash(self, crash: Crash, event: Event) -> None:
        cluster, replica = self._cluster, self._cluster.replicas[crash.replica]
        if not replica.up:
            return
        spawn = cluster.fleet.pool_of[crash.replica].spawn
        assert spawn is not None
        core = spawn()
        core.max_queued = replica.core.max_queued
        there = [request for request in self._here if request.replica == crash.replica]
        replica.crash(core)
        cluster.fleet.note(crash.replica, "crashed")
        cluster.new_core(replica)
        clock, now = cluster.clock, cluster.clock.ns
        down = crash.restart_ns
        if replica.state == "draining":  # nothing would restart it
            cluster.set_state(crash.replica, "gone")
        elif down >= 0:
            clock.at(now + down, CHANGE, partial(self._restart, crash.replica))
        if replica.state == "gone":
            pass
        elif self._failures.detect_ns == 0:
            self._detect(crash.replica)
        elif down < 0 or self._failures.detect_ns < down:
            clock.at(now + self._failures.detect_ns, CHANGE, lambda event: self._detect(crash.replica))
        for request in there:
            self._lose(request)

    def _detect(self, index: int) -> None:
        if self._cluster.replicas[index].state != "gone":
            self._cluster.set_state(index, "failed")

    def _restart(self, index: int, event: Event) -> None:
        cluster = self._cluster
        if cluster.replicas[index].state == "gone":
            return
        if cluster.replicas[index].state == "ready":
            self._detect(index)
        cluster.set_state(index, "starting")
        cluster.replicas[index].up = True
        cluster.set_state(index, "ready")

    def _lose(self, request: Request) -> None:
        """Reroute, after a pause, a request that was lost with its replica, or let it fail."""
        cluster, output_len = self._cluster, self._here.pop(request)
        attempts = self._attempts[request] = self._attempts.get(request, 0) + 1
        request.state, request.reason = State.ABORTED, LOST
        cluster.telling.finish(request)
        if request.first_token_ns >= 0 or attempts > self._failures.reroutes:
            cluster.end(request, State.ABORTED, LOST)
            return
        renew(request)
        self._pausing[request] = output_len
        pause = self._pause_ns(request, attempts - 1)
        cluster.clock.at(cluster.clock.ns + pause, RECALL, partial(self._again, request))

    def _pause_ns(self, request: Request, attempt: int) -> int:
        failures = self._failures
        usual = min(failures.backoff_ns * failures.growth**attempt, failures.most_ns)
        spread = 2 * uniform_one(failures.seed, "reroute", request.row, attempt) - 1
        return int(usual * (1 + failures.jitter * spread) + 0.5)

    def _again(self, request: Request, event: Event) -> None:
        output_len = self._pausing.pop(request, None)
        if output_len is not None:
            self._cluster.place(request, output_len)


def renew(request: Request) -> None:
    """Reset a request that has no output token yet to its state on arrival."""
    request.state, request.reason, request.replica = State.WAITING, "", -1
    request.finished_ns = request.scheduled_ns = request._last_token_ns = -1
    request._num_tokens = request.prompt_len
    request._num_computed_tokens = request._num_output_placeholders = request.num_draft_tokens = 0
    request.hit_tokens = request.loaded_tokens = request.lost_tokens = 0
    request._order, request._walk, request._keeper = LAST, None, None
