"""Pools whose replicas come and go: an autoscaler is queried at intervals, and replicas start or drain."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from servesim.contracts.feature import Feature, features
from servesim.contracts.section import PolicySettings, Section
from servesim.parsing import pairs, spelt

if TYPE_CHECKING:
    from servesim.contracts.part import Part


class ScalingSettings(Section):
    """The autoscaler of a pool, and the start-up time of its replicas."""

    scaler: PolicySettings | None = None
    """Autoscaler for the replicas: hpa, keda, dynamo-planner, llm-d-wva or `file.py:Class`. It takes parameters like
    any policy: `keda:target=4,min=1,max=8`. `replicas` is the initial number. None keeps this number fixed."""
    start: dict[str, float] = Field(default={})
    """Components of a replica's startup time: node_s, pull_s, boot_s, weights_gb_s (GB/s), compile_s,
    graphs_s, warm_up_s."""

    @field_validator("start", mode="before")
    @classmethod
    def _start(cls, value: Any) -> Any:
        value = pairs("start", value) if isinstance(value, str) and value else value
        return {key: spelt(part) for key, part in value.items()} if isinstance(value, Mapping) else value


@features.register("scaling")
class ScalingFeature(Feature):
    """Autoscaling."""

    rank, section, Settings = 40, "", ScalingSettings
    acts, serves = True, ("scaler",)
    alone: ClassVar[Mapping[str, Any]] = {"scaler": None, "start": {}}
    of_pool = ("scaler", "start")

    def is_on(self, scenario: Any) -> bool:
        return scenario.scaler is not None

    def fleet_varies(self, scenario: Any) -> bool:
        return self.is_on(scenario)

    def resolved(self, scenario: Any) -> dict[str, Any]:
        from servesim.contracts.scaler import scalers

        scaler = scenario.scaler
        if scaler is None:
            return {}
        return {"scaler": {"name": scaler["name"], **dataclasses.asdict(scalers.configured(scaler)[1])}}

    def refuses(self, scenario: Any) -> Mapping[str, str]:
        return {
            "jobs": "scaler starts and drains them by load",
        }

    def build(self, setup: Any) -> Part | None:
        from servesim.features.scaling.part import Scaling
        from servesim.features.scaling.setup import scaled_pools

        scaled = scaled_pools((pool, self.settings(pool.scenario)) for pool in setup.pools)
        return Scaling(scaled) if scaled else None

    def in_world_with(self, world: Any, draws: Any, cls: type[Any], params: Any) -> Any:
        from servesim.features.scaling.world import scaled_by

        return scaled_by(world, draws, cls, params)

    def in_world(self, world: Any, draws: Any) -> Any:
        from servesim.features.scaling.world import with_scaler

        return with_scaler(world, draws)
