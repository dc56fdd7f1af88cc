"""Checks for broken policy invariants, livelock, and requests left over at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servesim.contracts.request import State
from servesim.errors import PolicyError, UserError

if TYPE_CHECKING:
    from servesim.engine.cluster import Cluster
    from servesim.engine.core import EngineCore

PATIENCE = 1 << 16
"""Number of tokens computed without a delivery before the first check for livelock."""


def check_integrity(core: EngineCore) -> None:
    """Raise AssertionError if an invariant of the scheduler or the allocator, or one between them, is broken."""
    scheduler, kv, fetched = core.scheduler, core.kv, core.fetched
    scheduler.check_integrity()
    held = sum(r.num_computed_tokens for r in [*scheduler.running, *core.keeping, *fetched])
    assert kv.held_tokens == held, f"held tokens {kv.held_tokens}, should be {held}"
    kv.check_integrity()
    for request in scheduler.running:
        assert kv.slots(request) >= request.num_computed_tokens, f"{request} has too little memory"
    for request, load in fetched.items():
        assert kv.slots(request) >= load.stop, f"{request} has too little memory for its next tokens"
    for request in scheduler.waiters():
        if request in fetched:
            assert request.state is fetched[request].state, f"{request} waits before its KV has arrived"
            continue
        assert kv.slots(request) == 0, f"{request} waits but uses memory"
        swapped = request.state is State.SWAPPED
        assert swapped or request.num_computed_tokens == 0, f"{request} waits and has computed tokens"


def check_progress(core: EngineCore, now: int) -> None:
    """Raise PolicyError on livelock. Before a token is delivered or a request leaves, all tokens of the requests here
    may have to be computed once; many times that amount means that requests are preempted and recomputed endlessly."""
    scheduler, kv = core.scheduler, core.kv
    core.patience = PATIENCE + 4 * sum(r.num_tokens for r in [*scheduler.running, *scheduler.waiters()])
    if core.tokens_since_output > core.patience:
        raise PolicyError(
            f"{scheduler.name} at {now} ns: on kv {kv.name} {core.tokens_since_output} tokens have been computed "
            f"since a token was delivered or a request left. {len(scheduler.running)} requests are running, "
            f"{scheduler.num_waiting()} are waiting, and {kv.usage().free} of {kv.capacity_tokens} tokens are free, "
            "so requests preempt each other forever"
        )


def check_served(cluster: Cluster) -> None:
    """Raise PolicyError if requests are left over when a run has ended, or UserError if they are left because the
    memory is too small: the first request in the queue needs memory that is reserved for the remote KV of requests
    behind it."""
    when, cores = f"at {cluster.now_ns} ns", [replica.core for replica in cluster.replicas]
    if held := cluster.num_waiting:
        raise PolicyError(f"router {cluster.router.name} {when}: {held} requests wait in the router forever")
    names = ", ".join(sorted({core.scheduler.name for core in cores}))
    arrived = cluster.num_arrived + sum(core.num_forked for core in cores)
    stuck = sum(core.num_unfinished for core in cores)
    if lost := arrived - cluster.num_left - stuck:
        raise PolicyError(f"{names} {when}: {lost} requests are no longer in any queue")
    if stuck or cluster.workload.remaining():
        for core in cores:
            holding = sum(State.WAITING <= r.state < State.FINISHED for r in core.fetched)
            if not holding or next(iter(core.scheduler.waiters()), None) in core.fetched:
                continue
            raise UserError(
                f"the KV memory of a replica ({core.kv.capacity_tokens} tokens) is too small for the transfer of KV: "
                f"{when} {stuck} requests wait forever, because memory is reserved for the KV of {holding} of them "
                "and too little is left for the first request in the queue. Increase engine.num_gpu_blocks."
            )
        raise PolicyError(f"{names} {when}: plans nothing although {stuck} requests wait")
