"""Replicas that crash and restart with a cold cache, are slow for a time, drain, are added or replaced, nodes with all
their replicas, and networks that are slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from servesim.contracts.feature import Feature, features
from servesim.contracts.section import Section

if TYPE_CHECKING:
    from servesim.contracts.figures import Group
    from servesim.contracts.part import Part


class FailureSettings(Section):
    """Failures and operations, and the response to them."""

    failures: list[str] = Field(default=[])
    """Failures and operations, with times in seconds. `crash:replica=0,at=10,restart=60` stops a replica. Its cache is
    cold after the restart. Without `restart`, the replica stays down. `slow:replica=1,at=5,until=60,factor=3` slows a
    replica down: its GPU time is multiplied by the factor. `drain:replica=1,at=30` lets a replica finish its requests
    and go. `node=0` instead of a replica means all replicas of a node at once. `add:at=30` starts one more, also of
    another pool, GPU or model (`add:at=30,startup=60,gpu=h200`). `upgrade:at=30,batch=1,surge=1,startup=60,grace=30`
    replaces the replicas of a pool in turn. `slow_net:at=5,until=60,factor=4` divides the bandwidth of the network
    between prefill and decode replicas and to a remote store, also of one replica, node or pool."""
    gpus_per_node: int = Field(default=8, ge=1, le=1024)
    """GPUs of a node, which replicas fill in the order of their indices."""
    detection_s: float = Field(default=0.0, ge=0, le=1e6)
    """Seconds until the router detects a crash. Requests that it sends to the replica in the meantime fail
    immediately."""
    reroutes: int = Field(default=5, ge=0, le=1000)
    """Maximum number of times that a request is rerouted if its replica is lost before the first token. After the first
    token, the request fails or migrates."""
    migrations: int = Field(default=0, ge=0, le=1000)
    """Maximum number of times that a request goes on at another replica if its replica is lost after the first token,
    with the tokens generated so far as part of its prompt (migration_limit of Dynamo). Requests with several samples do
    not migrate."""
    reroute_delay_s: float = Field(default=0.05, ge=0, le=1e6)
    """Seconds before the first reroute. Each later delay is 1.5 times as long, up to 30 s, plus or minus 20 %, as in
    the gateways of SGLang and vLLM."""


@features.register("failures")
class FailuresFeature(Feature):
    """Crashes, stragglers, slow networks, and replicas that are drained, added and replaced."""

    rank, section, Settings = 30, "cluster", FailureSettings
    acts = True

    def is_on(self, scenario: Any) -> bool:
        return bool(self.settings(scenario).failures)

    def fleet_varies(self, scenario: Any) -> bool:
        from servesim.features.failures.setup import VARYING

        return any(text.startswith(VARYING) for text in self.settings(scenario).failures)

    def refuses(self, scenario: Any) -> Mapping[str, str]:
        return {
            "jobs": "cluster.failures moves requests between replicas",
        }

    def build(self, setup: Any) -> Part | None:
        settings = self.settings(setup.scenario)
        if not settings.failures:
            return None
        from servesim.features.failures.added import counts_of, kinds_of, nodes_of
        from servesim.features.failures.part import Failing
        from servesim.features.failures.setup import failures_of

        nodes = nodes_of(setup, settings.gpus_per_node)
        failures = failures_of(settings, counts_of(setup, nodes), setup.scenario.seed, kinds_of(setup))
        return Failing(failures, nodes) if failures is not None else None

    def groups(self) -> tuple[Group, ...]:
        from servesim.features.failures.figures import UPGRADES

        return (UPGRADES,)

    def in_world(self, world: Any, draws: Any) -> Any:
        from servesim.features.failures.world import with_failures

        return with_failures(world, draws)
