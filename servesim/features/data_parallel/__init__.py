"""Data-parallel ranks: separate schedulers whose steps begin and end together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from servesim.contracts.feature import Feature, features
from servesim.errors import UserError

if TYPE_CHECKING:
    from servesim.contracts.part import Part

FINISH_SYNC = {"vllm": 32}
"""Number of steps between checks of whether all ranks have finished, by preset (vllm/v1/engine/core.py,
DPEngineCoreProc); other engines check in every step."""
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
        return settings | {"router": {"name": name, "ranks": dp}}

    def refuses(self, scenario: Any) -> Mapping[str, str]:
        return {
            "failures": "cluster.failures: failures are not modeled with data-parallel ranks, which cannot fail one by "
            "one",
            "speculation": "speculation: not modeled with data-parallel ranks (use dp 1)",
            "jobs": "data-parallel ranks step together",
        }

    def build(self, setup: Any) -> Part | None:
        terms = [(pool, pool.scenario) for pool in setup.pools if pool.scenario.dp > 1]
        if not terms:
            return None
        from servesim.features.data_parallel.part import DataParallel, Ranks

        sync = [FINISH_SYNC.get(scenario.preset or "vllm", 1) for _, scenario in terms]
        return Ranks(
            [(p.pool, DataParallel(scenario.dp, every)) for (p, scenario), every in zip(terms, sync, strict=True)]
        )

    def in_world(self, world: Any, draws: Any) -> Any:
        from servesim.features.data_parallel.world import with_ranks

        return with_ranks(world, draws)
