"""KV offloaded from the GPUs to host memory, a disk or a store."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator

from servesim.contracts.feature import Feature, features
from servesim.contracts.section import Section, Settings, policy_settings

if TYPE_CHECKING:
    from servesim.contracts.figures import Group
    from servesim.contracts.part import Part


class OffloadSettings(Section):
    """Memory beyond the GPU."""

    offload: Settings | None = None
    """Memory outside the GPU in which each replica keeps KV. `vllm:cpu=64GiB` (or `cpu=64GiB`) is vLLM's offloading
    connector, with eviction_policy=lru or arc, block_size_factor and gb_s. `lmcache:cpu=64GiB,disk=2TB,disk_gb_s=5` is
    LMCache, also with remote and remote_gb_s. `store:store=2TB,gb_s=25` is one store of all replicas (Mooncake's).
    `hicache:ratio=2` is SGLang's. `file.py:Class` is your own. None (or `none`) disables offloading. A pool may have
    its own, such as only those of the role prefill."""

    @field_validator("offload", mode="before")
    @classmethod
    def _offload(cls, value: Any) -> Settings | None:
        if isinstance(value, str) and re.match(r"\w+=", value):
            value = f"vllm:{value}"
        found = policy_settings(value) if value is not None else None
        return None if found is not None and found["name"] == "none" else found


@features.register("offload")
class OffloadFeature(Feature):
    """Memory beyond the GPU."""

    rank, section, Settings = 50, "", OffloadSettings
    acts, serves = True, ("connector",)
    of_pool = ("offload",)
    searched: ClassVar[Mapping[str, tuple[Any, ...]]] = {"offload": (None, "cpu=64GiB", "cpu=256GiB")}

    def resolved(self, scenario: Any) -> dict[str, Any]:
        from servesim.contracts.connector import connectors

        given = scenario.offload
        if not given:
            return {}
        return {"offload": {"name": given["name"], **dataclasses.asdict(connectors.configured(given)[1])}}

    def refuses(self, scenario: Any) -> Mapping[str, str]:
        given = [pool for pool in scenario.pools or [scenario.model_dump()] if pool.get("offload")]
        unstaged = [pool["offload"]["name"] for pool in given if pool["pp"] > 1 and not _staged(pool["offload"])]
        reasons = {
            **({"pp": f"pipeline stages (pp), for {unstaged[0]}"} if unstaged else {}),
        }
        said = {what: f"offload: not modeled with {reason}" for what, reason in reasons.items()}
        return said | {"jobs": "offload is counted over all replicas"}

    def build(self, setup: Any) -> Part | None:
        if all(pool.scenario.offload is None for pool in setup.pools):
            return None
        from servesim.features.offload.part import part_of

        return part_of(setup.pools)

    def groups(self) -> tuple[Group, ...]:
        from servesim.features.offload.figures import OFFLOAD

        return (OFFLOAD,)

    def in_world_with(self, world: Any, draws: Any, cls: type[Any], params: Any) -> Any:
        from servesim.features.offload.world import offloaded_by

        return offloaded_by(world, draws, cls, params)

    def in_world(self, world: Any, draws: Any) -> Any:
        from servesim.features.offload.world import with_offload

        return with_offload(world, draws)


def _staged(offload: Settings) -> bool:
    from servesim.contracts.connector import connectors

    return connectors.resolve(offload["name"])[0].staged
