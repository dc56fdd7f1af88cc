"""Prompts and answers computed by different replicas, and how KV gets from one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from servesim.contracts.feature import Feature, Rows, features
from servesim.contracts.schemas import COUNT, DISTRIBUTION, FIGURE, NUMBER, TEXT, an_object
from servesim.contracts.section import PolicySettings, Section

if TYPE_CHECKING:
    from servesim.contracts.part import Part


class HandoffSettings(Section):
    """How prompts and answers are kept apart."""

    pd: str | None = None
    """Prompts and answers on different replicas: `2x1:1x4` are 2 prefill replicas of 1 GPU and 1 decode replica of 4,
    otherwise alike; short for two pools. In `capacity` a number of GPUs: all splits of them, and all together."""
    handoff: PolicySettings | None = None
    """How KV gets from prefill pools to decode pools: `vllm-nixl:link=rdma-400,http_ms=1`. None: that."""


APART = "on different replicas"


@features.register("handoff")
class HandoffFeature(Feature):
    """Prefill and decode apart."""

    rank, section, Settings = 10, "", HandoffSettings
    acts = True
    claims = ("pools.role",)

    def is_on(self, scenario: Any) -> bool:
        return any(pool["role"] != "both" for pool in scenario.pools)

    def spell_out(self, settings: dict[str, Any]) -> dict[str, Any]:
        from servesim.features.handoff.setup import with_pd

        return with_pd(settings) if settings.get("pd") else settings

    def refuses(self, scenario: Any) -> Mapping[str, str]:
        return {
            "samples": "pools: several samples of a request (n > 1) are not modeled where prompts are apart",
            "failures": f"cluster.failures: not modeled where prompts and answers are {APART}",
            "scaling": f"scaler: not modeled where prompts and answers are {APART}",
            "stream": f"stream: not possible where prompts and answers are {APART}",
        }

    def build(self, setup: Any) -> Part | None:
        from servesim.features.handoff.setup import handoff_of

        return handoff_of(self.settings(setup.scenario).handoff, setup.pools, setup.make_router)

    def rows(self, summary: Mapping[str, Any]) -> Rows:
        from servesim.features.handoff.figures import stage_rows

        return stage_rows(summary["disaggregation"]) if "disaggregation" in summary else []

    def in_world(self, world: Any, draws: Any) -> Any:
        from servesim.features.handoff.world import with_handoff

        return with_handoff(world, draws)

    def schema(self) -> dict[str, Any]:
        from servesim.features.handoff.figures import STAGES

        found = an_object(
            protocol=TEXT,
            stages_ms=an_object(**dict.fromkeys(STAGES, DISTRIBUTION)),
            transfers=COUNT,
            gigabytes=NUMBER,
            gb_s=FIGURE,
            wire_busy_share=FIGURE,
        )
        return {"disaggregation": found}
