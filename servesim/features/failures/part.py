"""Failures and operations: replicas that crash and restart with a cold cache, are slow for a time, drain, are added or
replaced, one by one or all those of a node, and networks that are slow.

They are known before a run, or happen while it goes on (`Failing.happens`); either way they do the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from simpy.events import Event

from servesim.contracts.part import ClusterView, Finished, Part
from servesim.contracts.request import ParentRequest, Request, State
from servesim.contracts.router import ReplicaState
from servesim.cost.slowed import Slowed
from servesim.draws import uniform_one
from servesim.engine import turnover
from servesim.engine.clock import CHANGE, RECALL, REPORT
from servesim.engine.pool import Pool
from servesim.engine.telling import LOST
from servesim.errors import UserError
from servesim.features.failures.again import migrate, renew
from servesim.features.failures.happenings import Add, Crash, Drain, Failures, Happening, OnNode, Slowdown
from servesim.features.failures.networks import Networks, SlowNet
from servesim.features.failures.nodes import Nodes, Outage
from servesim.features.failures.samples import SampleGroups
from servesim.features.failures.upgrade import Rollout, Upgrade
from servesim.metrics.requests import RequestColumns

NEVER = 1 << 62
"""Time of a restart that does not come."""


class Failing(Part):
    """Part that crashes, slows, drains, adds or replaces replicas of a cluster, and reroutes requests that were lost
    before their first token. `nodes`: the nodes that replicas are on; by default, each has a GPU on a node of eight."""

    def __init__(self, failures: Failures, nodes: Nodes | None = None) -> None:
        self._failures = failures
        self.nodes = nodes if nodes is not None else Nodes(8, lambda pool: 1)
        self._here: dict[Request, int] = {}  # on a replica, or on the way from one to another: output length
        self._pausing: dict[Request, int] = {}  # to be rerouted: output length
        self._attempts: dict[Request, int] = {}
        self._slow: dict[int, Slowdown] = {}  # now, by replica
        self._drained: set[int] = set()
        self._down_until: dict[int, int] = {}  # by replica that has crashed
        self._rollouts: list[Rollout] = []

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._networks = Networks(cluster, self.nodes)
        self._samples = SampleGroups(cluster, self._failures.reroutes, self._pause_ns)

    def held(self) -> int:
        return len(self._pausing) + self._samples.num_held()

    def keeps(self, index: int) -> bool:
        return self._samples.keeps(index)

    def start(self) -> None:
        known = self._failures
        of_replicas: list[Happening] = [*known.crashes, *known.slowdowns, *known.drains, *known.adds]
        for each in (*of_replicas, *known.nodes, *known.networks, *known.upgrades):
            self.happens(each)

    def happens(self, what: Happening) -> None:
        """Schedule something that happens in this run, now or later."""
        clock = self._cluster.clock
        if isinstance(what, SlowNet):
            self._networks.expect(what)
        elif isinstance(what, OnNode):
            order = REPORT if isinstance(what.what, Slowdown) else CHANGE
            clock.at(what.what.at_ns, order, partial(self._on_node, what))
        elif isinstance(what, Upgrade):
            clock.at(what.at_ns, CHANGE, partial(self._upgrade, what))
        elif isinstance(what, Crash):
            clock.at(what.at_ns, CHANGE, partial(self._crash_one, what))
        elif isinstance(what, Drain):
            clock.at(what.at_ns, CHANGE, partial(self._drain, what))
        elif isinstance(what, Add):
            clock.at(what.at_ns, CHANGE, partial(self._add, what))
        else:
            clock.at(what.at_ns, REPORT, partial(self._slower, what))

    def slow(self, index: int) -> Slowdown | None:
        """Return why a replica is slow now, or None if it is not."""
        return self._slow.get(index)

    def sent(self, request: Request, output_len: int, index: int) -> None:
        if request.parent is not None:
            self._samples.sent(request.parent, request, output_len)
        else:
            self._here[request.owner or request] = output_len

    def passed_on(self, request: Request, output_len: int, index: int) -> None:
        self._here[request] = output_len

    def reaches(self, request: Request, index: int) -> bool:
        if self._cluster.replicas[index].up:
            return True
        if request.parent is not None:
            self._samples.missed(request.parent, request)
        else:
            self._lose(request.owner or request)
        return False

    def left(self, request: Request) -> None:
        self._here.pop(request, None)
        self._pausing.pop(request, None)
        self._attempts.pop(request, None)
        index = request.replica
        if request.parent is not None:
            index = request.parent.replica  # forked samples are sent nowhere
            self._samples.left(request.parent, request)
        if index in self._drained:
            turnover.left_draining(self._cluster, index)

    def state_changed(self, index: int, state: ReplicaState) -> None:
        for rollout in self._rollouts:
            rollout.state_changed(index, state)
        if state == "starting":
            self._networks.looked_over()

    def replacing(self, pool: Pool) -> Iterable[tuple[int, int]]:
        return [pair for rollout in self._rollouts for pair in rollout.pairs(pool)]

    def figures(self, finished: Finished) -> dict[str, Any]:
        if not self._rollouts or not isinstance(finished.requests, RequestColumns):
            return {}
        from servesim.features.failures.figures import UPGRADES, Upgraded

        fleet, now = self._cluster.fleet, self._cluster.clock.ns
        return {"upgrades": UPGRADES.of(Upgraded.of(self._rollouts, fleet, finished.requests, now))}

    def _replica(self, what: Crash | Slowdown | Drain) -> Any:
        replicas = self._cluster.replicas
        if what.replica >= len(replicas):
            raise UserError(f"cluster.failures: there is no replica {what.replica} at {what.at_ns / 1e9:g} s")
        return replicas[what.replica]

    def _slower(self, slow: Slowdown, event: Event) -> None:
        replica, cost = self._replica(slow), self._cluster.fleet.pool_of[slow.replica].cost
        self._slow[slow.replica] = slow
        replica.reprice(Slowed(cost, slow.factor) if slow.factor != 1 else cost)
        self._cluster.clock.at(slow.until_ns, REPORT, partial(self._as_before, slow))

    def _as_before(self, slow: Slowdown, event: Event) -> None:
        if self._slow.get(slow.replica) is slow:  # else another slowdown has begun since
            del self._slow[slow.replica]
            self._replica(slow).reprice(self._cluster.fleet.pool_of[slow.replica].cost)

    def _drain(self, drain: Drain, event: Event) -> None:
        if self._replica(drain).state not in ("draining", "gone"):
            self._let_drain(drain.replica)

    def _let_drain(self, index: int) -> None:
        self._drained.add(index)
        turnover.drain(self._cluster, index)

    def _add(self, add: Add, event: Event) -> None:
        turnover.begin(self._cluster, self._cluster.fleet.pools[add.pool], add.start_ns)

    def _upgrade(self, upgrade: Upgrade, event: Event) -> None:
        def kill(index: int) -> int:
            return self._crash([Crash(index, self._cluster.clock.ns, -1)])

        self._rollouts.append(Rollout(self._cluster, upgrade, self._let_drain, kill))
        self._rollouts[-1].begin()

    def _on_node(self, each: OnNode, event: Event) -> None:
        now, node, what = self._cluster.clock.ns, each.node, each.what
        there = self.nodes.on(node, self._cluster.fleet)
        if isinstance(what, Slowdown):
            for index in there:
                self._slower(what._replace(replica=index), event)
        elif isinstance(what, Drain):
            for index in there:
                self._drain(what._replace(replica=index), event)
        else:
            until = now + what.restart_ns if what.restart_ns >= 0 else None
            self.nodes.outages.append(Outage(node, now, until))
            self._crash([what._replace(replica=index) for index in there])

    def _crash_one(self, crash: Crash, event: Event) -> None:
        if self._replica(crash).up:
            self._crash([crash])

    def _crash(self, crashes: Sequence[Crash]) -> int:
        """Let replicas crash together; return the number of requests that were lost with them. Replicas that are
        starting or down already will not be up before the rest."""
        cluster, lost = self._cluster, list[Request]()
        for crash in crashes:
            if cluster.replicas[crash.replica].up:
                lost += self._stop(crash.replica)
        for crash in crashes:
            self._respond(crash)
        samples: dict[ParentRequest, list[Request]] = {}
        alone: list[Request] = []
        for request in dict.fromkeys(lost):
            (alone if request.parent is None else samples.setdefault(request.parent, [])).append(request)
        for request in alone:
            self._lose(request)
        for parent, those in samples.items():
            self._samples.lose(parent, those)
        return len(alone) + len(samples)

    def _stop(self, index: int) -> list[Request]:
        """Let a replica lose all its state; return the requests that it had."""
        there = [each for each in self._here if each.replica == index and each.leg is None]
        return there + self._samples.at(index) + turnover.lose(self._cluster, index)

    def _respond(self, crash: Crash) -> None:
        """Schedule what follows from the crash of a replica."""
        cluster, clock, now = self._cluster, self._cluster.clock, self._cluster.clock.ns
        index, down = crash.replica, crash.restart_ns
        state = cluster.replicas[index].state
        if state == "draining":  # nothing would restart it
            cluster.set_state(index, "gone")
            return
        self._down_until[index] = max(self._down_until.get(index, 0), now + down if down >= 0 else NEVER)
        if down >= 0:
            clock.at(now + down, CHANGE, partial(self._restart, index))
        if self._failures.detect_ns == 0 or state == "starting":
            self._detect(index)
        elif down < 0 or self._failures.detect_ns < down:
            clock.at(now + self._failures.detect_ns, CHANGE, lambda event: self._detect(index))

    def _detect(self, index: int) -> None:
        if self._cluster.replicas[index].state in ("starting", "ready"):
            self._cluster.set_state(index, "failed")

    def _restart(self, index: int, event: Event) -> None:
        cluster, replica = self._cluster, self._cluster.replicas[index]
        again = cluster.clock.ns < self._down_until[index]  # it has crashed again since
        if replica.state == "gone" or replica.up or again:
            return
        if replica.state == "ready":
            self._detect(index)
        cluster.set_state(index, "starting")
        replica.up = True
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
        pause = 0 if begun else self._pause_ns(request.row, attempts - 1)
        cluster.clock.at(cluster.clock.ns + pause, RECALL, partial(self._again, request))

    def _pause_ns(self, row: int, attempt: int) -> int:
        failures = self._failures
        usual = min(failures.backoff_ns * failures.growth**attempt, failures.most_ns)
        spread = 2 * uniform_one(failures.seed, "reroute", row, attempt) - 1
        return int(usual * (1 + failures.jitter * spread) + 0.5)

    def _again(self, request: Request, event: Event) -> None:
        output_len = self._pausing.pop(request, None)
        if output_len is not None:
            self._cluster.place(request, output_len)
