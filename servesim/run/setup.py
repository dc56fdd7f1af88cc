"""From a scenario to everything a run needs, every default filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from servesim.contracts import (
    Defaults,
    KVAllocator,
    KVMemory,
    Limits,
    Router,
    Scheduler,
    check_samples,
    kv_allocators,
    make,
    routers,
    schedulers,
)
from servesim.contracts.scheduler import PREDICTED
from servesim.cost import TableCostModel, build_cost_model
from servesim.cost.host import HostTerms, host_terms
from servesim.engine.cluster import MODES, Cluster
from servesim.engine.core import EngineCore
from servesim.errors import UserError
from servesim.hardware import Gpu, KvGroup, MemoryBudget, ModelSpec, VllmDefaults, vllm_defaults
from servesim.hardware.kv import longest
from servesim.metrics.requests import SECOND
from servesim.metrics.summary import Deployment
from servesim.plugins.user_policies import blaming
from servesim.records.recorder import Recorder
from servesim.run.breakage import failures_of
from servesim.run.changes import on_changes
from servesim.run.data_parallel import check_ranks_apart, experts_over, load_of, on_ranks, ranks_of
from servesim.run.notes import before_run, on_version, on_windows
from servesim.run.observed import ObservedCore
from servesim.run.presets import facts_of
from servesim.run.prices import price_of
from servesim.run.provenance import provenance
from servesim.run.scenario import Scenario, Settings
from servesim.run.sizing import kv_budget, layer_groups, longest_request, with_groups
from servesim.run.speculation import Speculation
from servesim.run.trace_source import open_scenario, open_stream
from servesim.versions import EngineFacts
from servesim.workload.front_end import FrontEnd, FrontTerms
from servesim.workload.predictor import parse_predictor, predict
from servesim.workload.trace import Ints, Trace
from servesim.workload.trace_stream import TraceFacts, TraceStream
from servesim.workload.workload import Workload


@dataclass(frozen=True)
class Setup:
    """A scenario with nothing left open, and the parts it names."""

    scenario: Scenario
    trace: Trace
    """Its rows; of a streamed run the first ones."""
    stream: TraceStream | None
    """All of them, where the run is streamed."""
    facts: TraceFacts
    predictor: str
    """What tells policies output lengths: the scenario's choice where the scheduler declares that it asks, else the cap
    that every engine knows."""
    predicted: Ints
    """Output tokens as the predictor sees them, by row and then by further sample."""
    cores: list[EngineCore]
    spawn: Callable[[], EngineCore]
    """Makes another one."""
    router: Router
    cost: TableCostModel
    depth: int
    """Steps in flight: one a pipeline stage, and one more under asynchronous scheduling."""
    deployment: Deployment
    defaults: VllmDefaults
    notes: list[str]
    provenance: dict[str, Any]
    """Inputs of the results besides the scenario: hashes of trace, kernel tables and policy files."""

    @property
    def front(self) -> FrontTerms:
        """The front end of all replicas together: their API processes are one pool."""
        terms, engine = self.cost.terms, self.scenario.engine
        processes = engine.api_server_count * self.scenario.replicas
        model = self.deployment.model.name
        return terms.front(model, processes, engine.stream_interval) if terms is not None else FrontTerms()

    @property
    def out_ns(self) -> int:
        """Time a token takes from the engine to the client, in ns."""
        return self.front.out_ns

    def cluster(self, workload: Workload, recorder: Recorder, **options: Any) -> Cluster:
        """Return the replicas behind router and front end; `options`: further ones of Cluster."""
        return Cluster(
            FrontEnd(workload, self.front),
            self.cores,
            self.router,
            self.cost,
            depth=self.depth,
            mode=self.scenario.mode,
            recorder=recorder,
            report_every=round(self.scenario.cluster.report_every_s * SECOND),
            report_lag=round(self.scenario.cluster.report_lag_s * SECOND),
            failures=failures_of(self.scenario, self.trace),
            spawn=self.spawn,
            data_parallel=ranks_of(self.scenario),
            **options,
        )


@dataclass(frozen=True)
class _Policies:
    """The three policies' classes and parameters, and the limits the scheduler runs under."""

    scheduler: type[Scheduler]
    scheduler_params: Any
    kv: type[KVAllocator]
    kv_params: Any
    router: type[Router]
    router_params: Any
    max_num_seqs: int
    max_num_batched_tokens: int


def set_up(scenario: Scenario, trace: Trace | None = None) -> Setup:
    """Resolve a scenario; UserError where its parts do not fit together. A `trace` given is taken as it is,
    but for `skip`, `requests` and `rate`."""
    model, gpu = ModelSpec.load(scenario.model), Gpu.load(scenario.gpu)
    check_ranks_apart(scenario, model)
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
    terms = _host_terms(scenario, engine)
    cost = _cost_model(scenario, model, gpu, engine, speculation)
    stream = open_stream(scenario, trace, policies.kv) if scenario.stream else None
    trace = next(stream.read()) if stream is not None else open_scenario(scenario, trace)
    facts = TraceFacts.of(stream or trace, scenario.engine.block_size)
    budget, fitting = kv_budget(
        scenario,
        model,
        gpu,
        policies.kv,
        facts,
        max_num_batched_tokens=policies.max_num_batched_tokens,
        max_num_seqs=policies.max_num_seqs,
        draft=speculation.make().model() if speculation is not None else None,
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
    scenario = _resolved(scenario, gpu, policies, budget, max_model_len, terms, engine)
    if speculation is not None:
        scenario = scenario.model_copy(update=speculation.resolved())
    limits = Limits(policies.max_num_seqs, policies.max_num_batched_tokens, max_model_len, asynchronous)
    memory = _kv_memory(scenario, budget, max_model_len, groups, in_flight, depth * (1 + drafts))
    spawn = partial(_core, policies, limits, scenario, memory, speculation, cost)
    cores = [spawn() for _ in range(scenario.replicas * scenario.dp)]
    cost.asynchronous = asynchronous
    kv = cores[0].kv
    if trace.samples is not None:
        check_samples(cores[0].scheduler, kv)
    parse_predictor(scenario.predictor)
    predictor = scenario.predictor if PREDICTED in policies.scheduler.needs else "max_tokens"
    return Setup(
        scenario=scenario,
        trace=trace,
        stream=stream,
        facts=facts,
        predictor=predictor,
        predicted=predict(predictor, trace, scenario.seed),
        cores=cores,
        spawn=spawn,
        router=_router(policies, scenario),
        cost=cost,
        depth=depth,
        deployment=_deployment(scenario, model, gpu, budget, kv),
        defaults=defaults,
        notes=[
            *before_run(scenario, facts, cores[0].scheduler, kv, fitting),
            *on_changes(scenario, gpu, model, cost, fitting),
            *on_version(scenario, engine, terms),
            *on_windows(scenario, model, kv),
            *on_ranks(scenario, model),
            *(speculation.notes(facts) if speculation is not None else ()),
        ],
        provenance=provenance(scenario, facts, gpu, cost),
    )


def _router(policies: _Policies, scenario: Scenario) -> Router:
    router: Router = make(policies.router, policies.router_params, scenario.replicas * scenario.dp)
    router.seed, router.output_block = scenario.seed, scenario.engine.block_size
    return router


def _kv_memory(
    scenario: Scenario,
    budget: MemoryBudget,
    max_model_len: int,
    groups: list[KvGroup],
    in_flight: int,
    ahead: int,
) -> KVMemory:
    """Return the memory an allocator hands out. `in_flight`: tokens that steps in flight may compute; `ahead`: those of
    one request, drafts included, that may be planned before it is known to have ended."""
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


def _policies(scenario: Scenario, model: ModelSpec, gpu: Gpu, vllm: VllmDefaults) -> _Policies:
    scheduler, params = schedulers.configured(scenario.scheduler)
    asked = scenario.engine.max_model_len
    max_model_len = model.max_position if asked == "auto" else asked
    defaults = Defaults(vllm.max_num_seqs, vllm.max_num_batched_tokens, max_model_len, gpu.memory_bytes / 2**30)
    with blaming([scheduler]):
        params = scheduler.complete(params, defaults)
    limits = {}
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        limits[name] = getattr(params, name, getattr(vllm, name))
        if limits[name] < 1:
            raise UserError(f"scheduler {scenario.scheduler['name']}: {name} is {limits[name]}, must be at least 1")
    return _Policies(
        scheduler,
        params,
        *kv_allocators.configured(scenario.kv),
        *routers.configured(scenario.router),
        **limits,
    )


def _check_whole_prompts(max_num_batched_tokens: int, max_model_len: int) -> None:
    """Raise UserError, as vLLM does at start-up, where a prompt does not fit one step without chunks."""
    if max_num_batched_tokens < max_model_len:
        raise UserError(
            f"scheduler max_num_batched_tokens={max_num_batched_tokens} is less than max_model_len={max_model_len}: "
            "without chunked prefill the longest prompt would never run (raise it, or set engine.max_model_len)"
        )


def cost_model_of(scenario: Scenario) -> TableCostModel:
    """Return the cost model a scenario is priced with."""
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
    )


def _host_terms(scenario: Scenario, engine: EngineFacts) -> HostTerms | None:
    """Return the terms asked for; those of the newest vLLM where there are none of the engine."""
    if scenario.host == "none":
        return None
    if scenario.host != "auto":
        return HostTerms.load(scenario.host).on(engine.gpu)
    asked = f"{engine.engine} {engine.version}" if scenario.engine.version is not None else engine.engine
    return host_terms(asked, engine.gpu) or host_terms("vllm", engine.gpu)


def _host_name(scenario: Scenario, terms: HostTerms | None) -> str:
    if terms is None:
        return "none"
    return terms.name if scenario.host == "auto" else scenario.host


def _resolved(
    scenario: Scenario,
    gpu: Gpu,
    policies: _Policies,
    budget: MemoryBudget,
    max_model_len: int,
    terms: HostTerms | None,
    facts: EngineFacts,
) -> Scenario:
    def settings(given: Settings, params: Any) -> Settings:
        return {"name": given["name"], **dataclasses.asdict(params)}

    known = {} if scenario.preset not in (None, facts.engine) else {"version": facts.version}
    engine = scenario.engine.model_copy(
        update={"max_model_len": max_model_len, "num_gpu_blocks": budget.num_blocks, **known}
    )
    price = price_of(gpu, scenario.price, scenario.usd_per_gpu_hour)
    return scenario.model_copy(
        update={
            "engine": engine,
            "host": _host_name(scenario, terms),
            "usd_per_gpu_hour": price,
            "scheduler": settings(scenario.scheduler, policies.scheduler_params),
            "kv": settings(scenario.kv, policies.kv_params),
            "router": settings(scenario.router, policies.router_params),
        }
    )


def _core(
    policies: _Policies,
    limits: Limits,
    scenario: Scenario,
    memory: KVMemory,
    speculation: Speculation | None,
    cost: TableCostModel,
) -> EngineCore:
    parts = MODES[scenario.mode]
    kv = make(parts.memory(policies.kv), policies.kv_params, memory)
    scheduler = make(policies.scheduler, policies.scheduler_params, limits, kv)
    made_of = ObservedCore if parts.core is EngineCore else parts.core
    core = made_of(scheduler, kv, scenario.check)
    if speculation is not None:
        core.speculator, core.acceptance = speculation.priced(cost), speculation.acceptance
    core.max_queued = scenario.engine.max_queued_requests
    return core
