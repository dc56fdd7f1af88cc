"""Fate of requests between prefill and decode replicas, and of their KV, when a replica crashes or drains.

What a crash does to the peers is known to them at that instant (connections to a process that has ended are reset);
`cluster.detection_s` is the router's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servesim.contracts.request import Request, State
from servesim.engine import remote_kv, turnover
from servesim.engine.telling import LOST

if TYPE_CHECKING:
    from servesim.features.handoff.part import Handoff
    from servesim.features.handoff.passage import Passage

GONE = "the prefill side discarded its KV"
CRASHED = "its KV was lost with its prefill replica"
PEER_LOST = "the replica of its other half failed"


def crashed(handoff: Handoff, index: int) -> list[Request]:
    """Handle a replica that has lost all its state. Return the requests that were lost with it: those whose prompt was
    not computed yet or that were at its decode side."""
    for passage in dict.fromkeys([*handoff.passages.values(), *handoff._held.values()]):
        if passage.decode == index and passage.loading:
            _break_off(passage)
            passage.loading = False
            if handoff.passages.get(passage.request) is not passage:  # its client gave up while it was read
                handoff.unread(passage, told=True)
        if passage.prefill == index and handoff._held.pop(passage.leg, None) is not None:
            passage.released_ns, passage.crashed = handoff.clock.ns, True
            _break_off(passage)
            if passage.loading:
                handoff.source_lost(passage)
    return [passage.request for passage in handoff.passages.values() if not passage.lost and _was_at(passage, index)]


def _was_at(passage: Passage, index: int) -> bool:
    unfinished = passage.leg.state is not State.FINISHED
    known = passage.sent_ns >= 0 or passage.promised  # llm-d's request goes through a proxy beside its decode engine
    return (passage.prefill == index and unfinished) or (passage.decode == index and known)


def _break_off(passage: Passage) -> None:
    if passage.stop is not None:
        passage.stop()
        passage.stop = None


def take_back(handoff: Handoff, passage: Passage) -> None:
    """Remove a request that was lost with one replica from the other one, and notify the routers. The memory at the
    source stays."""
    cluster, leg, request = handoff.cluster, passage.leg, passage.request
    passage.lost, passage.loading = True, False
    _break_off(passage)
    if leg.state is not State.FINISHED:
        _remove(handoff, leg, passage.prefill)
        cluster.telling.finish(leg)
    if request.replica == passage.decode:
        _remove(handoff, request, passage.decode)
        (handoff.telling or cluster.telling).finish(request)
    if passage.promised and handoff.straight is not None:
        request.state, request.reason = State.ABORTED, LOST
        handoff.straight.withdraw(request, passage.decode)
        passage.promised = False
    for index in (passage.prefill, passage.decode):
        if index >= 0:
            turnover.left_draining(cluster, index)


def _remove(handoff: Handoff, request: Request, index: int) -> None:
    """Remove a lost request, or what computes its prompt, from a replica, unless that has lost it itself."""
    replica = handoff.cluster.replicas[index]
    if replica.up:
        if handoff.arrived(request):
            remote_kv.withdraw(replica, request, PEER_LOST)
        request.state, request.reason = State.ABORTED, PEER_LOST
    else:
        request.state, request.reason = State.ABORTED, LOST


def load_fails(handoff: Handoff, passage: Passage, reason: str) -> None:
    """Handle a request whose memory on the decode side is waiting for KV that is gone: it fails, or computes the KV
    itself if there is no `reason`."""
    replica = handoff.cluster.replicas[passage.decode]
    if passage.loading:
        passage.loading = False
        if passage.request in replica.core.fetched:  # else both sides have crashed at this instant
            remote_kv.load_failed(replica, passage.request, reason)
        turnover.left_draining(handoff.cluster, passage.decode)


def keeps(handoff: Handoff, index: int) -> bool:
    """Return whether a replica is to compute a prompt, keeps one's KV until it has been read, or is to compute or
    receives an answer's KV."""
    held = handoff._held
    for passage in (*handoff.passages.values(), *held.values()):
        here = not passage.lost
        if passage.prefill == index and (passage.leg in held or (here and passage.leg.state < State.FINISHED)):
            return True
        if passage.decode == index and here and (passage.loading or passage.request.state < State.FINISHED):
            return True
    return False
