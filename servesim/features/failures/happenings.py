"""Failures and operations of a run, and the response to them, as data."""

from __future__ import annotations

from typing import NamedTuple

from servesim.features.failures.networks import SlowNet
from servesim.features.failures.upgrade import Upgrade


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


class OnNode(NamedTuple):
    """A happening at all replicas that are on a node then, at once."""

    node: int
    what: Crash | Slowdown | Drain
    """It, for any replica."""


Happening = Crash | Slowdown | Drain | Add | OnNode | SlowNet | Upgrade


class Failures(NamedTuple):
    """Failures and operations, and the response to them. At one instant, crashes come before drains, and these before
    added replicas, what happens to nodes and upgrades."""

    crashes: tuple[Crash, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    drains: tuple[Drain, ...] = ()
    adds: tuple[Add, ...] = ()
    nodes: tuple[OnNode, ...] = ()
    networks: tuple[SlowNet, ...] = ()
    upgrades: tuple[Upgrade, ...] = ()
    detect_ns: int = 0
    """Time from a crash until the router detects it; requests sent there in the meantime fail immediately."""
    reroutes: int = 5
    """Maximum number of times a request is rerouted if its replica is lost before the first token; after that token its
    client gets the error, as in the gateways of SGLang and vLLM, unless it migrates."""
    migrations: int = 0
    """Maximum number of times a request goes on at another replica if its replica is lost after the first token, with
    the tokens generated so far as part of its prompt, without a pause: migration_limit of ai-dynamo 1.6.1, where 0 is
    the default. Requests with several samples do not migrate."""
    backoff_ns: int = 50_000_000
    """Pause before a request is rerouted; each pause is `growth` times the previous one, up to `most_ns`, give or take
    a share `jitter` of it. The defaults are those of sglang-router 0.3.2, smg 1.9.0 and vllm-router 0.1.17."""
    growth: float = 1.5
    most_ns: int = 30_000_000_000
    jitter: float = 0.2
    seed: int = 0
    """Seed of the jitter, which is keyed by request and attempt."""
