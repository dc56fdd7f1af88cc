"""Replicas that start and that drain while a run goes on."""

from __future__ import annotations

from functools import partial

from simpy.events import Event

from servesim.contracts.part import ClusterView
from servesim.engine.clock import CHANGE
from servesim.engine.pool import Pool


def begin(cluster: ClusterView, pool: Pool, start_ns: int) -> int:
    """Add a replica to a pool, which takes requests after `start_ns`, and return its index."""
    assert pool.spawn is not None
    replica = cluster.fleet.add(pool.spawn(), pool)
    replica.up = False
    cluster.set_state(replica.index, "starting")
    cluster.new_core(replica)
    cluster.clock.at(cluster.clock.ns + start_ns, CHANGE, partial(_ready, cluster, replica.index))
    return int(replica.index)


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
    """Let a replica be gone if it drains and is down, or is empty and no part keeps it."""
    replica = cluster.replicas[index]
    if replica.state != "draining":
        return
    if not replica.up or (replica.core.num_unfinished == 0 and not cluster.keeps(index)):
        end(cluster, index)


def end(cluster: ClusterView, index: int) -> None:
    """Let a replica be gone."""
    cluster.replicas[index].up = False
    cluster.set_state(index, "gone")
