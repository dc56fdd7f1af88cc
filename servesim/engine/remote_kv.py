"""Remote KV of a replica: handling of loads that complete, fail or are called off, and of copies that have been read.

A request whose KV is being loaded holds memory and does not run (`EngineCore.fetched`). One that has ended may keep its
memory until its KV has been read by another replica (`EngineCore.keeping`). All of this happens at the current instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servesim.contracts.connector import LATER
from servesim.contracts.request import Request, State

if TYPE_CHECKING:
    from servesim.engine.replica import Replica


def loaded(replica: Replica, request: Request, first: bool = False) -> None:
    """Handle the end of a request's load: the request waits again or, if its client gave up, its memory is freed.
    `first` means that its first token has also arrived."""
    replica.catch_up()
    core, now = replica.core, replica.clock.ns
    load = core.fetched[request]
    if request.state is not State.LOADING:
        del core.fetched[request]
        core.kv.free(request)
        core.ledger.release(load.start)
        replica.go_on()
        return
    if first:
        request._num_tokens += 1
        if request.first_token_ns < 0:
            request.first_token_ns = now
            if core.on_first is not None:
                core.on_first(request)
        else:
            core.on_late(now, [(request.row, request._last_token_ns, 1)])
        request._last_token_ns = now
        if core.on_output is not None:
            core.on_output(request, 1)
    come = min(load.stop, request.num_tokens - 1)  # the last token is always computed
    core.ledger.hold(come - load.start)
    request.state = load.state
    request._num_computed_tokens = come
    request.loaded_tokens += come - load.start
    if core.shares:
        core.kv.publish(request, come)
    core.scheduler.on_arrival(request)
    if first and request._num_tokens >= request._end_tokens:
        core.finish([request], State.FINISHED, now)
    _changed(replica)


def load_failed(replica: Replica, request: Request, reason: str = "") -> None:
    """Handle a load that will not complete. If a `reason` is given, the request fails; otherwise it waits again and its
    KV is computed on this replica."""
    replica.catch_up()
    core, now = replica.core, replica.clock.ns
    load = core.fetched.pop(request)
    core.kv.free(request)
    core.ledger.release(load.start)
    if request.state is State.LOADING:  # otherwise its client gave up
        request._num_computed_tokens = 0
        if reason:
            request.state, request.finished_ns, request.reason = State.ABORTED, now, reason
            core.on_leave(request)
        else:
            request.state = load.state
            core.scheduler.on_arrival(request)
    _changed(replica)


def withdraw(replica: Replica, request: Request, reason: str) -> None:
    """Remove a request that goes on elsewhere or has ended there: it leaves no record here. Its memory is freed now if
    the end of its load is not known, because nothing more comes, otherwise when its load ends."""
    replica.catch_up()
    core, on_leave = replica.core, replica.core.on_leave
    core.on_leave = lambda request: None
    core.abort(request, replica.clock.ns, reason)
    core.on_leave = on_leave
    load = core.fetched.get(request)
    if load is not None and load.end_ns == LATER:
        load_failed(replica, request)
    else:
        replica.go_on()


def read(replica: Replica, request: Request) -> None:
    """Handle the end of a copy of a request's KV to another place; the last one frees the memory of a request that has
    ended."""
    request.being_read -= 1
    core = replica.core
    if request not in core.keeping or request.being_read:
        replica.go_on()
        return
    replica.catch_up()
    del core.keeping[request]
    core.kv.free(request)
    core.ledger.release(request._num_computed_tokens)
    _changed(replica)


def _changed(replica: Replica) -> None:
    if replica.core.checks:
        replica.core.check_integrity()
    replica.go_on()
