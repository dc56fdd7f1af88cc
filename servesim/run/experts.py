"""How experts are spread over the GPUs of a replica, its data-parallel ranks among them."""

from __future__ import annotations

from collections.abc import Iterator

from servesim.cost.expert_load import MEASURED_OVER, MEASURED_SKEW, most_loaded
from servesim.errors import UserError
from servesim.hardware import ModelSpec
from servesim.run.scenario import Scenario


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


def check_copies(scenario: Scenario) -> None:
    """Raise UserError for copies of experts that nothing places."""
    if scenario.engine.num_redundant_experts and not scenario.engine.enable_eplb:
        raise UserError("engine.num_redundant_experts are copies that EPLB places: set engine.enable_eplb too")


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
