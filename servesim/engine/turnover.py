"""Replicas that start, drain and lose all their state while a run goes on."""

from __future__ import annotations

from functools import partial

from simpy.events import Event

from servesim.contracts.part import ClusterView
from servesim.contracts.request import Request
from servesim.engine.clock import CHANGE
from servesim.engine.pool import Pool


def begin(cluster: ClusterView, pool: Pool, start_ns: int) -> int:
    """Add a server to a pool, one replica or as many as the pool's `ranks`, which takes requests after `start_ns`, and
    return the index of its first replica."""
    assert pool.spawn is not None
    added = [cluster.fleet.add(pool.spawn(), pool) for _ in range(pool.ranks)]
    first = added[0]
    first.up = False
    cluster.set_state(first.index, "starting")
    for replica in added:
        cluster.new_core(replica)
    cluster.clock.at(cluster.clock.ns + start_ns, CHANGE, partial(_ready, cluster, first.index))
    return int(first.index)


def _ready(cluster: ClusterView, index: int, event: Event) -> None:
    replica = cluster.replicas[index]
    if replica.state == "starting":
        replica.up = True
        cluster.set_state(index, "ready")


def drain(cluster: ClusterView, index: int) -> None:
    """Let a replica finish its requests and be gone; at once if it is starting, down, or empty and not kept."""
    if cluster.replicas[index].state == "starting":
        end(cluster, index)
    else:
        cluster.set_state(index, "draining")
        end_if_empty(cluster, index)


def left_draining(cluster: ClusterView, index: int) -> None:
    """Handle a request, or KV kept for one, that has left a replica, which is gone at the end of this instant if it
    drains and is empty."""
    if cluster.replicas[index].state == "draining":
        cluster.clock.at(cluster.clock.ns, CHANGE, lambda event: end_if_empty(cluster, index))


def end_if_empty(cluster: ClusterView, index: int) -> None:
    """Let a server be gone if it drains and is down, or all its replicas are empty and no part keeps one."""
    replica = cluster.replicas[index]
    if replica.state != "draining":
        return
    empty = all(_is_empty(cluster, each) for each in cluster.fleet.server(index))
    if empty or not replica.up:
        end(cluster, index)


def _is_empty(cluster: ClusterView, index: int) -> bool:
    return cluster.replicas[index].core.num_unfinished == 0 and not cluster.keeps(index)


def lose(cluster: ClusterView, index: int) -> list[Request]:
    """Let a replica lose all its state and go down, with a new core to restart with. Return the requests lost with it
    that parts had there."""
    replica, pool = cluster.replicas[index], cluster.fleet.pool_of[index]
    core = pool.spawn()
    core.max_queued = replica.core.max_queued
    replica.crash(core)
    cluster.fleet.note(index, "crashed")
    cluster.new_core(replica)
    return cluster.crashed(index)


def end(cluster: ClusterView, index: int) -> None:
    """Let a replica be gone."""
    cluster.replicas[index].up = False
    cluster.set_state(index, "gone")
