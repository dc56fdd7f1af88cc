"""The part of a scenario's server that does not depend on a trace: policies, speculation, cost of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from servesim.contracts import Defaults, KVAllocator, Scheduler, kv_allocators, schedulers
from servesim.contracts.warn import Warn
from servesim.cost import TableCostModel, build_cost_model
from servesim.cost.data_parallel import check_ranks
from servesim.cost.expert_load import MEASURED_OVER, MEASURED_SKEW, ROUTED_SKEW, most_loaded
from servesim.cost.host import HostTerms, host_terms
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec, VllmDefaults, vllm_defaults
from servesim.hardware.blocks import check_blocks
from servesim.hardware.model import check_tp
from servesim.plugins.user_policies import blaming
from servesim.run.presets import facts_of
from servesim.run.scenario import Scenario
from servesim.run.sizing import with_groups
from servesim.run.speculation import Speculation
from servesim.versions import EngineFacts


@dataclass(frozen=True)
class Policies:
    """The classes and parameters of scheduler and KV allocator, and the limits of the scheduler."""

    scheduler: type[Scheduler]
    scheduler_params: Any
    kv: type[KVAllocator]
    kv_params: Any
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True)
class Server:
    """A replica of a pool, without its memory."""

    scenario: Scenario
    model: ModelSpec
    gpu: Gpu
    defaults: VllmDefaults
    policies: Policies
    speculation: Speculation | None
    engine: EngineFacts
    terms: HostTerms | None
    cost: TableCostModel

    @classmethod
    def of(cls, scenario: Scenario) -> Server:
        """Resolve a scenario's server; raise UserError if its parts do not fit together."""
        model, gpu = ModelSpec.load(scenario.model), Gpu.load(scenario.gpu)
        check_copies(scenario)
        scenario = with_groups(scenario, model)
        defaults = vllm_defaults(gpu)
        policies = _policies(scenario, model, gpu, defaults)
        speculation = Speculation.of(scenario, model)
        if speculation is not None:
            speculation.check(policies.scheduler)
            policies = dataclasses.replace(
                policies,
                scheduler_params=speculation.tune(policies.scheduler_params),
                kv_params=speculation.tune(policies.kv_params),
            )
        engine = facts_of(scenario.preset, scenario.engine.version, gpu.name)
        check_width(scenario, model, engine)
        check_version(scenario, engine)
        cost = _cost_model(scenario, model, gpu, engine, speculation)
        terms = _host_terms(scenario, engine)
        return cls(scenario, model, gpu, defaults, policies, speculation, engine, terms, cost)


def _policies(scenario: Scenario, model: ModelSpec, gpu: Gpu, vllm: VllmDefaults) -> Policies:
    scheduler, params = schedulers.configured(scenario.scheduler)
    asked = scenario.engine.max_model_len
    max_model_len = model.max_position if asked == "auto" else asked
    times = getattr(params, "default_limits_times", 1)
    limits_of_gpu = (vllm.max_num_seqs * times, vllm.max_num_batched_tokens * times)
    defaults = Defaults(*limits_of_gpu, max_model_len, gpu.memory_bytes / 2**30)
    with blaming([scheduler]):
        params = scheduler.complete(params, defaults)
    limits = {}
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        limits[name] = getattr(params, name, getattr(vllm, name))
        if limits[name] < 1:
            raise UserError(f"scheduler {scenario.scheduler['name']}: {name} is {limits[name]} but must be at least 1")
    return Policies(
        scheduler,
        params,
        *kv_allocators.configured(scenario.kv),
        **limits,
    )


def cost_model_of(scenario: Scenario) -> TableCostModel:
    """Return the cost model of a scenario."""
    gpu = Gpu.load(scenario.gpu)
    model = ModelSpec.load(scenario.model)
    engine = facts_of(scenario.preset, scenario.engine.version, gpu.name)
    return _cost_model(scenario, model, gpu, engine, Speculation.of(scenario, model))


def _cost_model(
    scenario: Scenario, model: ModelSpec, gpu: Gpu, engine: EngineFacts, speculation: Speculation | None
) -> TableCostModel:
    return build_cost_model(
        model,
        gpu,
        scenario.tp,
        scenario.dtype,
        pp=scenario.pp,
        kv_dtype=scenario.kv_dtype,
        tables=scenario.kernel_tables,
        host=_host_terms(scenario, engine),
        engine=engine,
        speculator=speculation.make() if speculation is not None else None,
        moe_backend=scenario.engine.moe_backend,
        dp=scenario.dp,
        ep=experts_over(scenario),
        all2all=scenario.engine.all2all_backend,
        load=load_of(scenario, model),
        attention_backend=scenario.engine.attention_backend,
        float32_matmul_precision=scenario.engine.float32_matmul_precision,
        fuse_allreduce_rms=scenario.engine.fuse_allreduce_rms,
    )


def _host_terms(scenario: Scenario, engine: EngineFacts) -> HostTerms | None:
    """Return the requested host terms, by default those of the version whose facts are used, or those of the newest
    vLLM if there are none for the engine."""
    if scenario.host == "none":
        if scenario.engine.enforce_eager:
            raise UserError("engine.enforce_eager adds host time, but host is none (leave one of them out)")
        return None
    if scenario.host != "auto":
        terms: HostTerms | None = HostTerms.load(scenario.host).on(engine.gpu)
    else:
        terms = host_terms(f"{engine.engine} {engine.version}", engine.gpu) or host_terms("vllm", engine.gpu)
    return terms.without_graphs() if terms is not None and scenario.engine.enforce_eager else terms


def experts_over(scenario: Scenario) -> int:
    """Return the number of GPUs over which whole experts are distributed."""
    if scenario.ep is not None:
        return scenario.ep
    return scenario.tp * scenario.dp if scenario.engine.enable_expert_parallel else 1


def load_of(scenario: Scenario, model: ModelSpec) -> float | None:
    """Return the load of the most loaded GPU relative to the mean; None: as in the kernel measurements, over at most 8
    GPUs."""
    engine, ep = scenario.engine, experts_over(scenario)
    asked = engine.expert_skew is not None or engine.enable_eplb
    if model.experts is None or ep == 1 or (ep <= MEASURED_OVER and not asked):
        return None
    own = ROUTED_SKEW.get(model.model_type, MEASURED_SKEW)
    skew = engine.expert_skew if engine.expert_skew is not None else own
    moe = model.experts
    return most_loaded(moe.count, moe.per_token, ep, skew, engine.num_redundant_experts, engine.enable_eplb)


def check_width(scenario: Scenario, model: ModelSpec, engine: EngineFacts) -> None:
    """Raise UserError for block-scaled weights that the scenario's engine refuses to split as requested."""
    block = engine.get("fp8_block_columns")
    if block is None or scenario.preset not in (None, engine.engine):
        return
    check_tp(model, scenario.tp)
    check_ranks(model, scenario.tp, scenario.dp, experts_over(scenario))
    ranks = {"tp": scenario.tp, "dp": scenario.dp, "ep": experts_over(scenario)}
    check_blocks(model, scenario.dtype, block, engine.engine, **ranks)


def check_version(scenario: Scenario, engine: EngineFacts) -> None:
    """Raise UserError for vLLM's V1 scheduler in a version whose engine is V0."""
    if scenario.scheduler["name"] == "vllm" and engine.get("v1_engine") is False:
        raise UserError(
            f"engine.version={engine.version} is vLLM's V0 engine (V1 is the default since 0.8.0), which has a "
            "different scheduler: set scheduler=continuous and kv=paged too, or use preset=vllm-v0 without a version"
        )


def check_copies(scenario: Scenario) -> None:
    """Raise UserError for redundant experts without EPLB to place them."""
    if scenario.engine.num_redundant_experts and not scenario.engine.enable_eplb:
        raise UserError("engine.num_redundant_experts needs EPLB, which places the copies: set engine.enable_eplb too")


def on_ranks(scenario: Scenario, model: ModelSpec) -> Iterator[str]:
    """Yield assumptions about data-parallel ranks and the distribution of experts."""
    load = load_of(scenario, model)
    if load is not None:
        yield f"experts over {experts_over(scenario)} GPUs: the most loaded one has {load:.2f} times the mean load"
    if scenario.dp > 1:
        yield (
            f"dp={scenario.dp}: `replica` in records is a rank, and KV capacities are for one rank. Steps run one at "
            "a time, because each step lasts as long as its slowest rank"
        )
    if scenario.engine.all2all_backend != "auto" and scenario.dp == 1:
        backend = scenario.engine.all2all_backend
        yield Warn(f"engine.all2all_backend={backend} has no effect with one data-parallel rank. Remove this setting.")
