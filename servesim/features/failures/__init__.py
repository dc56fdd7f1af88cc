"""Replicas that crash and restart with a cold cache, are slow for a time, drain or are added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from servesim.contracts.feature import Feature, features
from servesim.contracts.section import Section

if TYPE_CHECKING:
    from servesim.contracts.part import Part


class FailureSettings(Section):
    """Failures and operations, and the response to them."""

    failures: list[str] = Field(default=[])
    """Failures and operations, with times in seconds. `crash:replica=0,at=10,restart=60` stops a replica. Its cache is
    cold after the restart. Without `restart`, the replica stays down. `slow:replica=1,at=5,until=60,factor=3` slows a
    replica down: its GPU time is multiplied by the factor. `drain:replica=1,at=30` lets a replica finish its requests
    and go. `add:at=30` starts one more, also of another pool, GPU or model (`add:at=30,startup=60,gpu=h200`)."""
    detection_s: float = Field(default=0.0, ge=0, le=1e6)
    """Seconds until the router detects a crash. Requests that it sends to the replica in the meantime fail
    immediately."""
    reroutes: int = Field(default=5, ge=0, le=1000)
    """Maximum number of times that a request is rerouted if its replica is lost before the first token. After the first
    token, the request fails or migrates."""
    migrations: int = Field(default=0, ge=0, le=1000)
    """Maximum number of times that a request goes on at another replica if its replica is lost after the first token,
    with the tokens generated so far as part of its prompt (migration_limit of Dynamo)."""
    reroute_delay_s: float = Field(default=0.05, ge=0, le=1e6)
    """Seconds before the first reroute. Each later delay is 1.5 times as long, up to 30 s, plus or minus 20 %, as in
    the gateways of SGLang and vLLM."""


@features.register("failures")
class FailuresFeature(Feature):
    """Crashes, stragglers, and replicas that are drained and added."""

    rank, section, Settings = 30, "cluster", FailureSettings
    acts = True

    def is_on(self, scenario: Any) -> bool:
        return bool(self.settings(scenario).failures)

    def fleet_varies(self, scenario: Any) -> bool:
        from servesim.features.failures.setup import VARYING

        return any(text.startswith(VARYING) for text in self.settings(scenario).failures)

    def refuses(self, scenario: Any) -> Mapping[str, str]:
        return {
            "samples": "cluster.failures: requests with several samples (n > 1) cannot be rerouted",
            "jobs": "cluster.failures moves requests between replicas",
        }

    def build(self, setup: Any) -> Part | None:
        settings = self.settings(setup.scenario)
        if not settings.failures:
            return None
        from servesim.features.failures.added import kinds_of
        from servesim.features.failures.part import Failing
        from servesim.features.failures.setup import failures_of
        from servesim.run.scenario import fleet_varies

        scenario = setup.scenario
        replicas = None if fleet_varies(scenario) else len(setup.cores)
        failures = failures_of(settings, replicas, scenario.seed, kinds_of(setup))
        return Failing(failures) if failures is not None else None

    def in_world(self, world: Any, draws: Any) -> Any:
        from servesim.features.failures.world import with_failures

        return with_failures(world, draws)
