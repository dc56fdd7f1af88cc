"""Reports of engines on their own state: snapshots at fixed times, which reach the router some time later."""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from servesim.contracts.part import ClusterView, Finished, Part
from servesim.contracts.profile import Profile
from servesim.contracts.request import Request
from servesim.contracts.router import Column, ReplicaState, Report, Role, Views
from servesim.engine.clock import REPORT
from servesim.engine.replica import Replica
from servesim.features.view_lag.figures import NO_SENDINGS, ROUTER_VIEW, added, parted, view_columns

Reports = list[tuple[int, Report]]
"""Reports with the indices of their replicas."""
NOTHING = Report(0, 0, 0.0, 0)
IDLE_TICKS = 16
"""Number of consecutive reports after which reports stop until the next request is sent if nothing else happens.
Requests that wait in the router by then are given up."""


class Columns:
    """Figures of the last reports by replica, for routers that weigh all replicas at once."""

    def __init__(self) -> None:
        self.arrays: dict[Column, NDArray[Any]] = {
            "num_waiting": np.zeros(0, np.int64), "num_running": np.zeros(0, np.int64), "kv_usage": np.zeros(0),
        }  # fmt: skip

    def grow(self) -> None:
        """Add a replica of which nothing is known."""
        for name, known in self.arrays.items():
            self.arrays[name] = np.append(known, known.dtype.type(0))

    def take(self, replica: int, report: Report) -> None:
        """Enter a report."""
        arrays = self.arrays
        arrays["num_waiting"][replica] = report.num_waiting
        arrays["num_running"][replica] = report.num_running
        arrays["kv_usage"][replica] = report.kv_usage


class Reported:
    """A replica as it was last reported: a `ReplicaView`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._report = NOTHING

    @property
    def index(self) -> int:
        """Its index."""
        return self._replica.index

    @property
    def state(self) -> ReplicaState:
        """Its current state, as the router sees it."""
        return self._replica.state

    @property
    def pool(self) -> str:
        """The name of the replica's pool."""
        return self._replica.pool

    @property
    def role(self) -> Role:
        """Its role."""
        return self._replica.role

    @property
    def model(self) -> str:
        """The model it serves."""
        return self._replica.model

    @property
    def profile(self) -> Profile:
        """The performance of a replica of its pool."""
        return self._replica.profile

    @property
    def num_waiting(self) -> int:
        """Requests that were left waiting on the replica."""
        return self._report.num_waiting

    @property
    def num_unread(self) -> int:
        """Always 0: engines do not report it."""
        return 0

    @property
    def num_running(self) -> int:
        """Requests that were running on the replica."""
        return self._report.num_running

    @property
    def kv_usage(self) -> float:
        """Share of its KV memory that was in use."""
        return self._report.kv_usage

    @property
    def at_ns(self) -> int:
        """The time of the report."""
        return self._report.at_ns

    def take(self, report: Report) -> None:
        """Switch to another report."""
        self._report = report


class Reporting(Part):
    """Part that replaces a cluster's views with reports: one of each replica every `every` ns from time 0, visible to
    the router `lag` ns later.

    A report shows the state before anything else happens at its instant. One that is asked for during a step is seen
    from the end of that step on: engines set their metrics from a step's outputs (vLLM's `SchedulerStats`), so what a
    plan has changed is unknown outside until its step has ended. Before the first report, views show idle replicas.
    """

    def __init__(self, every: int, lag: int) -> None:
        self._every, self._lag = every, lag
        self._idle = 0
        self._stopped_ns = -1  # time of the last report; -1: they go on
        self.sendings = array("q")
        """Three numbers for each sending, by a router that looks at views, of a request whose records are not complete:
        its row, the number of requests on its replica by the last report, and the true number."""
        self._sums = NO_SENDINGS  # of the others
        self._reported: list[Reported] = []
        self._columns = Columns()

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._tells = "on_report" in cluster.router.hears()
        self._keeps = self.has_end and not cluster.router.blind
        cluster.fleet.view = self._view
        cluster.fleet.views = Views([self._view(replica) for replica in cluster.replicas])
        cluster.fleet.views.columns = self._columns.arrays
        cluster.fleet.sort()

    def _view(self, replica: Replica) -> Reported:
        self._reported.append(Reported(replica))
        self._columns.grow()
        return self._reported[-1]

    def columns(self, rows: Any) -> dict[str, Any]:
        return view_columns(self.sendings, rows) if self._keeps else {}

    def figures(self, finished: Finished) -> dict[str, Any]:
        sums = added(self._sums, self.sendings)
        return {"router_view": ROUTER_VIEW.values(sums)} if sums.sent else {}

    def settled(self, requests: Any) -> None:
        gone, self.sendings = parted(self.sendings, requests.table["row"])
        self._sums = added(self._sums, gone)

    def sent(self, request: Request, output_len: int, index: int) -> None:
        if self._stopped_ns >= 0:
            past = self._cluster.clock.ns - self._stopped_ns
            self._at(self._stopped_ns + (past // self._every + 1) * self._every)
            self._stopped_ns = -1
        if self._keeps:
            seen = self._reported[index]
            there = self._cluster.replicas[index].core.num_unfinished
            self.sendings.extend((request.row, seen.num_waiting + seen.num_running, there))

    def start(self) -> None:
        self._at(self._cluster.clock.ns)

    def _at(self, ns: int) -> None:
        self._cluster.clock.background += 1
        self._cluster.clock.at(ns, REPORT, self._report)

    def _report(self, event: Event) -> None:
        cluster, clock, now = self._cluster, self._cluster.clock, self._cluster.clock.ns
        clock.background -= 1
        due: dict[int, Reports] = {}
        for replica in cluster.replicas:
            waiting, running = replica.num_waiting, replica.num_running
            free, end_ns = replica.observe()
            report = Report(waiting, running, 1 - free / replica.core.kv.capacity_tokens, now)
            due.setdefault(max(now, end_ns) + self._lag, []).append((replica.index, report))
        for ns, reports in due.items():
            if ns > now:
                clock.background += 1
                clock.at(ns, REPORT, partial(self._come, reports))
            else:
                self._take(reports)
        self._idle = 0 if clock.goes_on else self._idle + 1
        if cluster.busy and self._idle < IDLE_TICKS:
            self._at(now + self._every)
        else:
            self._stopped_ns = now

    def _come(self, reports: Reports, event: Event) -> None:
        self._cluster.clock.background -= 1
        self._take(reports)

    def _take(self, reports: Reports) -> None:
        cluster = self._cluster
        for index, report in reports:
            self._reported[index].take(report)
            self._columns.take(index, report)
            if self._tells:
                cluster.router.on_report(index, report)
        cluster.waiting.recall()
