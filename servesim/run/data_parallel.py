"""From a scenario to its data-parallel ranks: how many, who may wait for whom, and how experts are spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from servesim.cost.expert_load import MEASURED_OVER, MEASURED_SKEW, most_loaded
from servesim.engine.pool import DataParallel
from servesim.errors import UserError
from servesim.hardware import ModelSpec
from servesim.run.scenario import Scenario

FINISH_SYNC = {"vllm": 32}
"""Steps after which ranks find out that all have finished, by preset (vllm/v1/engine/core.py, DPEngineCoreProc); others
find out in every step."""
BALANCERS = {"vllm": "vllm-dp", "sglang": "round-robin", "tensorrt-llm": "least-outstanding"}
"""How an engine spreads requests over its own ranks: vLLM's internal balancer; SGLang's --load-balance-method
round_robin; TensorRT-LLM's attention DP gives to the rank with the fewest active requests."""
COUNTS_EVERY_S = 0.1
"""Seconds between two counts that vLLM's coordinator publishes (vllm/v1/engine/coordinator.py)."""


def balanced(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that data-parallel ranks imply where a scenario says nothing: router and age of its views."""
    dp = settings.get("dp")
    if not isinstance(dp, int) or dp <= 1 or settings.get("router") is not None:
        return {}
    name = BALANCERS.get(settings.get("preset") or "vllm", "round-robin")
    if name != "vllm-dp":
        return {"router": {"name": name}}
    cluster = settings.get("cluster") or {}
    aged = {"report_every_s": COUNTS_EVERY_S} | dict(cluster) if isinstance(cluster, Mapping) else cluster
    return {"router": {"name": name, "ranks": dp}, "cluster": aged}


def ranks_of(scenario: Scenario) -> DataParallel | None:
    """Return how ranks step together; None where there is one."""
    if scenario.dp == 1:
        return None
    return DataParallel(scenario.dp, FINISH_SYNC.get(scenario.preset or "vllm", 1))


def experts_over(scenario: Scenario) -> int:
    """Return the GPUs that experts are dealt out to whole."""
    if scenario.ep is not None:
        return scenario.ep
    return scenario.tp * scenario.dp if scenario.engine.enable_expert_parallel else 1


def load_of(scenario: Scenario, model: ModelSpec) -> float | None:
    """Return the load of the most loaded GPU in mean loads; None: as kernels were measured, over a box of 8 at most."""
    engine, ep = scenario.engine, experts_over(scenario)
    asked = engine.expert_skew is not None or engine.enable_eplb
    if model.experts is None or ep == 1 or (ep <= MEASURED_OVER and not asked):
        return None
    skew = engine.expert_skew if engine.expert_skew is not None else MEASURED_SKEW
    moe = model.experts
    return most_loaded(moe.count, moe.per_token, ep, skew, engine.num_redundant_experts, engine.enable_eplb)


def check_ranks_apart(scenario: Scenario) -> None:
    """Raise UserError for settings that data-parallel ranks cannot have."""
    if scenario.engine.num_redundant_experts and not scenario.engine.enable_eplb:
        raise UserError("engine.num_redundant_experts are copies that EPLB places: set engine.enable_eplb too")
    if scenario.dp == 1:
        return
    if scenario.cluster.failures:
        raise UserError(
            "cluster.failures: data-parallel ranks do not fail one by one, and failing together is not modeled"
        )
    if scenario.speculation["name"] != "none":
        raise UserError("speculation: drafts of data-parallel ranks are not modeled (use dp 1)")


def on_ranks(scenario: Scenario, model: ModelSpec) -> Iterator[str]:
    """Yield what is assumed of data-parallel ranks and of experts dealt out."""
    load = load_of(scenario, model)
    if load is not None:
        yield f"experts over {experts_over(scenario)} GPUs: the most loaded one has {load:.2f} times the mean load"
    if scenario.dp > 1:
        yield (
            f"dp={scenario.dp}: `replica` in records is a rank, and capacities of KV memory are those of one; steps "
            "are taken one by one, as none is over before that of the slowest rank"
        )
    if scenario.engine.all2all_backend != "auto" and scenario.dp == 1:
        yield f"engine.all2all_backend={scenario.engine.all2all_backend} changes nothing with one data-parallel rank"
