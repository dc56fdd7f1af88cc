"""Prefill and decode on different replicas, and the KV transfer between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from servesim.contracts.feature import Feature, features
from servesim.contracts.section import PolicySettings, Section

if TYPE_CHECKING:
    from servesim.contracts.figures import Group
    from servesim.contracts.part import Part


class HandoffSettings(Section):
    """Settings that separate prefill and decode."""

    pd: str | None = None
    """Prefill and decode on different replicas. `2x1:1x4` means 2 prefill replicas of 1 GPU and 1 decode replica of 4
    GPUs, with otherwise equal settings. It is shorthand for two pools. In `capacity`, a number of GPUs stands for
    every way to split these GPUs, and for deployments without a split. None (or `none`): no split."""
    handoff: PolicySettings | None = None
    """KV transfer from prefill pools to decode pools, such as `vllm-nixl:link=rdma-400,http_ms=1`. None uses the
    default for the preset of the decode pool."""
    disaggregate: PolicySettings | None = None
    """Decider of which prompts prefill pools compute, such as `llm-d:non_cached_tokens=512`, `dynamo` or
    `file.py:Class`; decode pools compute the others themselves. None: prefill pools compute all of them."""


@features.register("handoff")
class HandoffFeature(Feature):
    """Disaggregated prefill and decode."""

    rank, section, Settings = 10, "", HandoffSettings
    acts = True
    claims = ("pools.role",)
    searched: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "pd": (
            *(None, "1x1:1x1", "2x1:1x1", "1x1:2x1", "1x1:3x1", "3x1:1x1", "1x1:1x2", "1x2:1x2", "2x1:1x2", "1x2:2x1"),
            *("1x2:1x4", "2x2:1x4", "1x4:1x4", "1x4:2x2", "1x4:1x8"),
        )
    }

    def is_on(self, scenario: Any) -> bool:
        return any(pool["role"] != "both" for pool in scenario.pools)

    def spell_out(self, settings: dict[str, Any]) -> dict[str, Any]:
        from servesim.features.handoff.setup import with_pd

        return with_pd(settings) if settings.get("pd") else settings

    def refuses(self, scenario: Any) -> Mapping[str, str]:
        return {
            "samples": "pools: several samples of a request (n > 1) cannot have their prompt computed apart: its KV is "
            "freed once one request has read it (vLLM 0.33, nixl/pull_worker.py)",
        }

    def build(self, setup: Any) -> Part | None:
        from servesim.features.handoff.setup import handoff_of

        settings = self.settings(setup.scenario)
        handoff = handoff_of(settings.handoff, settings.disaggregate, setup.pools, setup.make_router)
        if handoff is not None and setup.stream is not None:
            handoff.stages.sketch()
        return handoff

    def groups(self) -> tuple[Group, ...]:
        from servesim.features.handoff.figures import DISAGGREGATION

        return (DISAGGREGATION,)

    def in_world(self, world: Any, draws: Any) -> Any:
        from servesim.features.handoff.world import with_handoff

        return with_handoff(world, draws)
