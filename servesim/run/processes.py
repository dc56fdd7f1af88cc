"""Execution of independent replicas in separate processes, with results byte-identical to a single process's.

Every process replays and routes all arrivals, so that clocks, tokenizers and horizons are the same everywhere, and
serves the requests of its own replicas. Their records are put in the order in which one process would have written
them: by the time of the event that recorded them, then by replica. A worker reads a pickled Task from its standard
input and writes a pickled Share or error.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servesim.contracts.part import RUN_VERBS
from servesim.cost.stage import Priced
from servesim.engine.cluster import Cluster
from servesim.errors import PolicyError, UserError
from servesim.plugins.user_policies import is_own
from servesim.records.columns import REQUEST_COLUMNS, STEP_COLUMNS, Rows
from servesim.records.recorder import Recorder, Table
from servesim.records.spec_stats import SpecStats
from servesim.run.records import clients_of
from servesim.run.scenario import Scenario, features_of
from servesim.run.setup import Setup, set_up
from servesim.sentinels import NEVER
from servesim.workload.trace import Trace
from servesim.workload.workload import TraceWorkload


@dataclass(frozen=True)
class Task:
    """Input of a worker."""

    scenario: dict[str, Any]
    trace: Trace | None
    """The trace, if it is a Python object."""
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class Share:
    """Output of a worker."""

    steps: tuple[Rows, Rows]
    """Rows, and the time at which each was recorded."""
    deliveries: tuple[Rows, Rows]
    requests: Rows
    reasons: dict[int, str]
    gaps: tuple[Rows, Rows]
    """ns, counts."""
    drafts: dict[int, SpecStats]
    """Speculative decoding counts by replica."""
    priced: list[Priced]
    cpu_s: float


def check_independent(setup: Setup) -> None:
    """Raise UserError if replicas depend on each other, or arrivals on answers."""
    scenario, clients = setup.scenario, setup.scenario.clients
    reasons = {
        f"router {scenario.router['name']} looks at the state of replicas": not setup.router.blind
        or bool(setup.router.hears()),
        "there are several pools": bool(scenario.pools),
        **dict.fromkeys([*_reasons(scenario), *_followers(setup)], True),
        "requests wait for other requests": setup.trace.after is not None or clients.max_sessions is not None,
        "requests ask for several samples (n > 1)": setup.facts.samples,
        "clients.max_concurrency makes requests wait for other requests": clients.max_concurrency is not None,
        "clients.retries sends requests again": clients.retries > 0,
        "clients give up, and cancellations reach replicas in order": setup.trace.cancel_ns is not None
        or clients.timeout_s is not None
        or clients.ttft_timeout_s is not None,
        "a streamed run writes requests in the order in which they finish": scenario.stream,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UserError(f"jobs: replicas cannot run in separate processes: {reason}")


def _reasons(scenario: Scenario) -> list[str]:
    """Return the reasons why active features need all replicas in one process."""
    on = [feature for feature in features_of(scenario) if feature.is_on(scenario)]
    return [feature.refuses(scenario)["jobs"] for feature in on if "jobs" in feature.refuses(scenario)]


def _followers(setup: Setup) -> list[str]:
    """Return the reasons why user-defined parts need all replicas in one process, because a part could not see what
    runs in other processes."""
    own = [part for part in setup.parts if is_own(type(part))]
    seen = [(part, [verb for verb in RUN_VERBS if part.wants(verb)]) for part in own]
    return [f"{type(part).__name__} observes the whole run ({', '.join(verbs)})" for part, verbs in seen if verbs]


def run_apart(setup: Setup, trace: Trace | None, jobs: int, recorder: Recorder) -> float:
    """Serve all requests in up to `jobs` processes and record them; return the CPU seconds of their loops. The setup
    was made from `trace`, if there is one."""
    count = len(setup.cores)
    jobs = min(jobs, count)
    tasks = [Task(setup.asked.model_dump(), trace, tuple(range(first, count, jobs))) for first in range(jobs)]
    workers = [_start(task) for task in tasks]
    try:
        shares = [_answer(worker) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.__exit__(None, None, None)  # closes its pipes and waits
    requests = np.concatenate([share.requests for share in shares])
    replica_of = np.zeros(int(requests[:, 0].max(initial=0)) + 1, dtype=np.int64)
    replica_of[requests[:, REQUEST_COLUMNS.index("row")]] = requests[:, REQUEST_COLUMNS.index("replica")]
    by_replica = STEP_COLUMNS.index("replica")
    _merge(recorder.steps, [share.steps for share in shares], lambda rows: rows[:, by_replica])
    _merge(recorder.deliveries, [share.deliveries for share in shares], lambda rows: replica_of[rows[:, 0]])
    recorder.requests.extend(requests)
    for share in shares:
        recorder.reasons.update(share.reasons)
        recorder.pooled(*share.gaps)
        setup.cost.add_priced(share.priced)
        for replica, stats in share.drafts.items():
            setup.cores[replica].spec_stats = stats
    return sum(share.cpu_s for share in shares)


def _merge(table: Table, parts: Sequence[tuple[Rows, Rows]], replica: Any) -> None:
    rows, ns = (np.concatenate(column) for column in zip(*parts, strict=True))
    table.extend(rows[np.lexsort((replica(rows), ns))])


def _start(task: Task) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    # The process inherits blocked signals, so that an interrupt goes only to its parent from the first import on.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert worker.stdin is not None
    pickle.dump(task, worker.stdin)
    worker.stdin.flush()  # left open: a worker ends when its parent is gone
    return worker


def _answer(worker: subprocess.Popen[bytes]) -> Share:
    assert worker.stdout is not None
    try:
        answer = pickle.load(worker.stdout)
    except EOFError:
        raise UserError(f"jobs: a process died (exit code {worker.wait()}; out of memory?)") from None
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, Share)
    return answer


class _Dated(Table):
    """A table that records the time at which each row was added."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.columns, build=table.build)
        self.ns = array("q")
        self.cluster: Cluster | None = None
        self.closing = False
        """Whether the run has ended; records that were still waiting for a running step are then placed at the end."""

    def add(self, row: tuple[int, ...]) -> None:
        assert self.cluster is not None
        self.ns.append(NEVER if self.closing else self.cluster.now_ns)
        super().add(row)

    def extend(self, rows: Rows) -> None:
        assert self.cluster is not None
        self.ns.extend([self.cluster.now_ns] * len(rows))
        super().extend(rows)

    def put_off(self, run: Any, most: int) -> None:
        assert self.build is not None
        self.extend(self.build([run])[0])

    def dated(self) -> tuple[Rows, Rows]:
        """Return all rows and their times."""
        return self.array(), np.array(self.ns, dtype=np.int64)


class _DatedRecorder(Recorder):
    steps: _Dated
    deliveries: _Dated

    def __init__(self, out_ns: int) -> None:
        super().__init__(out_ns=out_ns)
        self.steps, self.deliveries = _Dated(self.steps), _Dated(self.deliveries)

    def close(self) -> None:
        self.steps.closing = True
        super().close()


def serve(task: Task) -> Share:
    """Serve the requests of some replicas and return their records."""
    setup = set_up(Scenario.of(task.scenario), task.trace)
    recorder = _DatedRecorder(setup.out_ns)
    workload = TraceWorkload(setup.trace, setup.predicted, clients_of(setup.scenario))
    cluster = setup.cluster(workload, recorder, only=frozenset(task.replicas))
    recorder.steps.cluster = recorder.deliveries.cluster = cluster
    began = time.process_time()
    cluster.run()
    return Share(
        recorder.steps.dated(),
        recorder.deliveries.dated(),
        recorder.requests.array(),
        recorder.reasons,
        recorder.itl(),
        {replica: setup.cores[replica].spec_stats for replica in task.replicas},
        setup.cost.priced(),
        time.process_time() - began,
    )


def main() -> None:
    """Run one task."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps policy output out of answers
    task = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer: Share | Exception = serve(task)
    except (UserError, PolicyError) as error:
        answer = error
    with answers:
        pickle.dump(answer, answers, protocol=5)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
