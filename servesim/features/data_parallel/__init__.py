"""Data-parallel ranks: separate schedulers whose steps begin and end together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from servesim.contracts.feature import Feature, features
from servesim.errors import UserError

if TYPE_CHECKING:
    from servesim.contracts.part import Part

BALANCERS = {"vllm": "vllm-dp", "sglang": "round-robin", "tensorrt-llm": "least-outstanding"}
"""Router that an engine uses to spread requests over its own ranks: vLLM's internal balancer; SGLang's
--load-balance-method round_robin; TensorRT-LLM's attention DP picks the rank with the fewest active requests."""


@features.register("data_parallel")
class DataParallelFeature(Feature):
    """Data-parallel ranks that step together."""

    rank, section = 60, ""
    acts = True
    claims = ("dp",)
    searched: ClassVar[Mapping[str, tuple[Any, ...]]] = {"dp": (1, 2, 4, 8)}

    def complete(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Add the engine's router for its ranks if a scenario names no router."""
        dp = settings.get("dp")
        if not isinstance(dp, int) or dp <= 1 or settings.get("router") is not None:
            return settings
        name = BALANCERS.get(settings.get("preset") or "vllm", "round-robin")
        if name != "vllm-dp":
            return settings | {"router": {"name": name}}
        if "view_lag" not in features.names():
            raise UserError(
                "dp: vLLM chooses ranks by delayed counts, which need the feature view_lag. Install this feature, or "
                "choose a router."
            )
        pools = settings.get("pools") or []
        alike = all(pool["dp"] == dp for pool in pools)  # else replicas have different numbers of ranks
        return settings | {"router": {"name": name, "ranks": dp if alike else 0}}

    def refuses(self, scenario: Any) -> Mapping[str, str]:
        return {
            "jobs": "data-parallel ranks step together",
        }

    def build(self, setup: Any) -> Part | None:
        pools = [pool for pool in setup.pools if pool.scenario.dp > 1]
        if not pools:
            return None
        from servesim.features.data_parallel.setup import ranks_of

        return ranks_of(pools)

    def in_world(self, world: Any, draws: Any) -> Any:
        from servesim.features.data_parallel.world import with_ranks

        return with_ranks(world, draws)
