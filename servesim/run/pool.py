"""One pool of a scenario: conversion of its settings into servers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from servesim.contracts import KVAllocator, KVMemory, Limits, make
from servesim.contracts.router import Role
from servesim.contracts.section import Settings
from servesim.cost import TableCostModel
from servesim.cost.host import HostTerms
from servesim.engine.core import EngineCore
from servesim.engine.modes import MODES
from servesim.engine.pool import Pool
from servesim.errors import UserError
from servesim.hardware import Gpu, KvGroup, MemoryBudget, ModelSpec
from servesim.hardware.kv import longest
from servesim.metrics.measured import Deployment
from servesim.run.changes import on_changes
from servesim.run.formats import on_format
from servesim.run.notes import before_run, on_version, on_windows
from servesim.run.pools import ONLY
from servesim.run.prices import price_of
from servesim.run.scenario import Scenario, features_of
from servesim.run.server import Policies, Server, on_ranks
from servesim.run.sizing import kv_budget, layer_groups, longest_request
from servesim.run.speculation import Speculation
from servesim.workload.trace_stream import TraceFacts


@dataclass(frozen=True)
class PoolSetup:
    """A fully resolved pool."""

    name: str
    scenario: Scenario
    """The scenario of this pool."""
    pool: Pool
    cost: TableCostModel
    deployment: Deployment
    server: Server
    notes: list[str]
    asked_as: tuple[str, ...]
    """Model names by which requests may address this pool."""

    @property
    def cores(self) -> list[EngineCore]:
        """Cores of the initial replicas."""
        return list(self.pool.cores)


def set_up_pool(server: Server, name: str, role: Role, facts: TraceFacts) -> PoolSetup:
    """Resolve a pool for a trace; raise UserError if its parts do not fit together."""
    scenario, model, gpu, policies = server.scenario, server.model, server.gpu, server.policies
    speculation, cost = server.speculation, server.cost
    budget, fitting = kv_budget(
        scenario,
        model,
        gpu,
        policies.kv,
        facts,
        max_num_batched_tokens=policies.max_num_batched_tokens,
        max_num_seqs=policies.max_num_seqs,
        draft=speculation.make().model() if speculation is not None else None,
        pool=name if name != ONLY else None,
    )
    asynchronous = scenario.engine.async_scheduling and "async" in policies.scheduler.supports and scenario.pp == 1
    if speculation is not None:
        asynchronous = asynchronous and "async" in speculation.speculator.supports
    depth = scenario.pp + asynchronous
    drafts = speculation.most_verified if speculation is not None else 0
    groups = layer_groups(scenario, model, policies.kv)
    in_flight = policies.max_num_batched_tokens * (1 + asynchronous)
    if not policies.scheduler.keeps_budget:
        in_flight = max(in_flight, model.max_position)
    room = longest(budget.num_blocks - 1, groups, scenario.engine.block_size, in_flight)
    max_model_len = longest_request(scenario, model, room)
    if not getattr(policies.scheduler_params, "enable_chunked_prefill", True):
        _check_whole_prompts(policies.max_num_batched_tokens, max_model_len)
    asked = (name, scenario.model, model.name)
    scenario = _resolved(server, budget, max_model_len)
    limits = Limits(_most_seqs(policies, budget), policies.max_num_batched_tokens, max_model_len, asynchronous)
    memory = _kv_memory(scenario, budget, max_model_len, groups, in_flight, depth * (1 + drafts))
    spawn = partial(_core, policies, limits, scenario, memory, speculation, cost)
    cores = [spawn() for _ in range(scenario.replicas * scenario.dp)]
    cost.asynchronous = asynchronous
    one = cores[0] if cores else spawn()
    notes = [
        *before_run(scenario, facts, one.scheduler, one.kv, fitting),
        *on_changes(scenario, gpu, model, cost, fitting),
        *on_version(scenario, server.engine, server.terms),
        *on_windows(scenario, model, one.kv),
        *on_format(server),
        *on_ranks(scenario, model),
        *(speculation.notes(facts) if speculation is not None else ()),
    ]
    gpus = scenario.tp * scenario.pp
    usd = gpus * (scenario.usd_per_gpu_hour or 0.0)
    pool = Pool(cores, cost, depth, spawn, name, role, num_gpus=gpus, usd_per_hour=usd)
    deployment = _deployment(scenario, model, gpu, budget, one.kv)
    return PoolSetup(name, scenario, pool, cost, deployment, server, notes, asked)


SLOTS_PER_RUNNING = 3
"""Number of state slots per running request if prefixes are cached (SGLang's
MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO); otherwise one."""


def _most_seqs(policies: Policies, budget: MemoryBudget) -> int:
    """Return the maximum number of running requests, limited also by a separate pool of states if there is one."""
    if not budget.state_slots:
        return policies.max_num_seqs
    each = SLOTS_PER_RUNNING if policies.kv.shares else 1
    return max(1, min(policies.max_num_seqs, budget.state_slots // each))


def _check_whole_prompts(max_num_batched_tokens: int, max_model_len: int) -> None:
    """Raise UserError, as vLLM does at start-up, if a prompt may not fit in one step without chunked prefill."""
    if max_num_batched_tokens < max_model_len:
        raise UserError(
            f"scheduler max_num_batched_tokens={max_num_batched_tokens} is less than max_model_len="
            f"{max_model_len}, so without chunked prefill the longest prompt would never run (increase it, or set "
            "engine.max_model_len)"
        )


def _host_name(scenario: Scenario, terms: HostTerms | None) -> str:
    if terms is None:
        return "none"
    return terms.name if scenario.host == "auto" else scenario.host


def _resolved(server: Server, budget: MemoryBudget, max_model_len: int) -> Scenario:
    def settings(given: Settings, params: Any) -> Settings:
        return {"name": given["name"], **dataclasses.asdict(params)}

    scenario, facts, policies = server.scenario, server.engine, server.policies
    known = {} if scenario.preset not in (None, facts.engine) else {"version": facts.version}
    engine = scenario.engine.model_copy(
        update={"max_model_len": max_model_len, "num_gpu_blocks": budget.num_blocks, **known}
    )
    price = price_of(server.gpu, scenario.price, scenario.usd_per_gpu_hour)
    resolved = scenario.model_copy(
        update={
            "engine": engine,
            "host": _host_name(scenario, server.terms),
            "usd_per_gpu_hour": price,
            "scheduler": settings(scenario.scheduler, policies.scheduler_params),
            "kv": settings(scenario.kv, policies.kv_params),
            **{key: value for each in features_of(scenario) for key, value in each.resolved(scenario).items()},
        }
    )
    drafting = server.speculation
    return resolved.model_copy(update=drafting.resolved()) if drafting is not None else resolved


def _kv_memory(
    scenario: Scenario,
    budget: MemoryBudget,
    max_model_len: int,
    groups: list[KvGroup],
    in_flight: int,
    ahead: int,
) -> KVMemory:
    """Return the memory of an allocator. `in_flight`: tokens that steps in flight may compute; `ahead`: tokens of one
    request, including drafts, that may be planned before its end is noticed."""
    engine, block_bytes = scenario.engine, budget.block_bytes
    return KVMemory(
        budget.num_blocks,
        engine.block_size,
        max_model_len,
        host_blocks=int(engine.swap_space_gib * 2**30) // block_bytes if block_bytes else 0,
        bytes_per_token=block_bytes * scenario.pp // engine.block_size,
        windows=tuple(group.window or None for group in groups),
        in_flight_tokens=in_flight,
        overrun_tokens=max(ahead - 2, 0),
    )


def _deployment(scenario: Scenario, model: ModelSpec, gpu: Gpu, budget: MemoryBudget, kv: KVAllocator) -> Deployment:
    return Deployment(
        model=model,
        gpu=gpu,
        replicas=scenario.replicas * scenario.dp,
        tp=scenario.tp,
        pp=scenario.pp,
        dtype=scenario.dtype,
        kv_dtype=scenario.kv_dtype,
        block_size=scenario.engine.block_size,
        num_blocks=budget.num_blocks,
        capacity_tokens=kv.capacity_tokens,
        block_bytes=budget.block_bytes,
        prefix_caching=kv.shares,
        usd_per_gpu_hour=scenario.usd_per_gpu_hour or 0.0,
    )


def _core(
    policies: Policies,
    limits: Limits,
    scenario: Scenario,
    memory: KVMemory,
    speculation: Speculation | None,
    cost: TableCostModel,
) -> EngineCore:
    parts = MODES[scenario.mode]
    kv = make(parts.memory(policies.kv), policies.kv_params, memory)
    scheduler = make(policies.scheduler, policies.scheduler_params, limits, kv)
    core = parts.core(scheduler, kv, scenario.check)
    if speculation is not None:
        core.speculator, core.acceptance = speculation.priced(cost, scenario.dp), speculation.acceptance
    core.max_queued = scenario.engine.max_queued_requests
    return core
