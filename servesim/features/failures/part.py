"""Failures and operations: replicas that crash and restart with a cold cache, are slow for a time, drain or are added.

They are known before a run, or happen while it goes on (`Failing.happens`); either way they do the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from simpy.events import Event

from servesim.contracts.part import ClusterView, Part
from servesim.contracts.request import Request, State
from servesim.cost.slowed import Slowed
from servesim.draws import uniform_one
from servesim.engine import turnover
from servesim.engine.clock import CHANGE, RECALL, REPORT
from servesim.engine.telling import LOST
from servesim.errors import UserError
from servesim.features.failures.again import migrate, renew


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


class Drain(NamedTuple):
    """A replica that takes no more requests from an instant on, and is gone when its last one has left."""

    replica: int
    at_ns: int


class Add(NamedTuple):
    """A replica that starts under the next index."""

    at_ns: int
    start_ns: int
    """Time from then until it serves."""
    pool: int = 0
    """Number of its pool, in the order of the fleet's."""


Happening = Crash | Slowdown | Drain | Add


class Failures(NamedTuple):
    """Failures and operations, and the response to them. At one instant, crashes come before drains, and these before
    added replicas."""

    crashes: tuple[Crash, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    drains: tuple[Drain, ...] = ()
    adds: tuple[Add, ...] = ()
    detect_ns: int = 0
    """Time from a crash until the router detects it; requests sent there in the meantime fail immediately."""
    reroutes: int = 5
    """Maximum number of times a request is rerouted if its replica is lost before the first token; after that token its
    client gets the error, as in the gateways of SGLang and vLLM, unless it migrates."""
    migrations: int = 0
    """Maximum number of times a request goes on at another replica if its replica is lost after the first token, with
    the tokens generated so far as part of its prompt, without a pause: migration_limit of ai-dynamo 1.6.1, where 0 is
    the default."""
    backoff_ns: int = 50_000_000
    """Pause before a request is rerouted; each pause is `growth` times the previous one, up to `most_ns`, give or take
    a share `jitter` of it. The defaults are those of sglang-router 0.3.2, smg 1.9.0 and vllm-router 0.1.17."""
    growth: float = 1.5
    most_ns: int = 30_000_000_000
    jitter: float = 0.2
    seed: int = 0
    """Seed of the jitter, which is keyed by request and attempt."""


class Failing(Part):
    """Part that crashes, slows, drains or adds replicas of a cluster, and reroutes requests that were lost before their
    first token."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._here: dict[Request, int] = {}  # on a replica, or on the way from one to another: output length
        self._pausing: dict[Request, int] = {}  # to be rerouted: output length
        self._attempts: dict[Request, int] = {}
        self._slow: dict[int, Slowdown] = {}  # now, by replica
        self._drained: set[int] = set()

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def held(self) -> int:
        return len(self._pausing)

    def start(self) -> None:
        failures = self._failures
        all_of_them: list[Happening] = [*failures.crashes, *failures.slowdowns, *failures.drains, *failures.adds]
        for each in all_of_them:
            self.happens(each)

    def happens(self, what: Happening) -> None:
        """Schedule something that happens in this run, now or later."""
        clock = self._cluster.clock
        if isinstance(what, Crash):
            clock.at(what.at_ns, CHANGE, partial(self._crash, what))
        elif isinstance(what, Drain):
            clock.at(what.at_ns, CHANGE, partial(self._drain, what))
        elif isinstance(what, Add):
            clock.at(what.at_ns, CHANGE, partial(self._add, what))
        else:
            clock.at(what.at_ns, REPORT, partial(self._slower, what))
            clock.at(what.until_ns, REPORT, partial(self._as_before, what))

    def slow(self, index: int) -> Slowdown | None:
        """Return why a replica is slow now, or None if it is not."""
        return self._slow.get(index)

    def sent(self, request: Request, output_len: int, index: int) -> None:
        self._here[request.owner or request] = output_len

    def passed_on(self, request: Request, output_len: int, index: int) -> None:
        self._here[request] = output_len

    def reaches(self, request: Request, index: int) -> bool:
        if self._cluster.replicas[index].up:
            return True
        self._lose(request.owner or request)
        return False

    def left(self, request: Request) -> None:
        self._here.pop(request, None)
        self._pausing.pop(request, None)
        self._attempts.pop(request, None)
        if request.replica in self._drained:
            turnover.left_draining(self._cluster, request.replica)

    def _replica(self, what: Crash | Slowdown | Drain) -> Any:
        replicas = self._cluster.replicas
        if what.replica >= len(replicas):
            raise UserError(f"cluster.failures: there is no replica {what.replica} at {what.at_ns / 1e9:g} s")
        return replicas[what.replica]

    def _slower(self, slow: Slowdown, event: Event) -> None:
        replica, cost = self._replica(slow), self._cluster.fleet.pool_of[slow.replica].cost
        self._slow[slow.replica] = slow
        replica.reprice(Slowed(cost, slow.factor) if slow.factor != 1 else cost)

    def _as_before(self, slow: Slowdown, event: Event) -> None:
        if self._slow.get(slow.replica) is slow:  # else another slowdown has begun since
            del self._slow[slow.replica]
            self._replica(slow).reprice(self._cluster.fleet.pool_of[slow.replica].cost)

    def _drain(self, drain: Drain, event: Event) -> None:
        if self._replica(drain).state not in ("draining", "gone"):
            self._drained.add(drain.replica)
            turnover.drain(self._cluster, drain.replica)

    def _add(self, add: Add, event: Event) -> None:
        turnover.begin(self._cluster, self._cluster.fleet.pools[add.pool], add.start_ns)

    def _crash(self, crash: Crash, event: Event) -> None:
        cluster, replica = self._cluster, self._replica(crash)
        if not replica.up:
            return
        spawn = cluster.fleet.pool_of[crash.replica].spawn
        assert spawn is not None
        core = spawn()
        core.max_queued = replica.core.max_queued
        there = [each for each in self._here if each.replica == crash.replica and each.leg is None]
        replica.crash(core)
        cluster.fleet.note(crash.replica, "crashed")
        cluster.new_core(replica)
        there += cluster.crashed(crash.replica)
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
        """Reroute, after a pause, a request that was lost with its replica, migrate it, or let it fail."""
        cluster, output_len = self._cluster, self._here.pop(request)
        attempts = self._attempts[request] = self._attempts.get(request, 0) + 1
        cluster.lost(request)
        request.state, request.reason = State.ABORTED, LOST
        if request.leg is None and cluster.replicas[request.replica].role != "decode":  # else another router sent it
            cluster.telling.finish(request)
        begun = request.first_token_ns >= 0
        if request.num_migrations >= self._failures.migrations if begun else attempts > self._failures.reroutes:
            cluster.end(request, State.ABORTED, LOST)
            return
        if begun:
            migrate(request)
        else:
            renew(request)
        self._pausing[request] = output_len
        pause = 0 if begun else self._pause_ns(request, attempts - 1)
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
