"""Replays of recorded runs: the same requests against a simulated server with the recorded settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servesim.contracts import KVMemory, Limits, kv_allocators, routers, schedulers
from servesim.contracts.section import policy_settings
from servesim.cost import build_cost_model
from servesim.cost.host import HostTerms
from servesim.engine.cluster import Cluster
from servesim.engine.core import EngineCore
from servesim.engine.modes import MODES
from servesim.engine.pool import Pool
from servesim.errors import UserError
from servesim.experiments.recording import Floats, Ints, RecordedRun, Server, due_ns
from servesim.hardware import Gpu, KvGroup, ModelSpec, kv_groups, memory_budget, vllm_defaults
from servesim.hardware.kv import longest
from servesim.metrics.requests import RequestColumns
from servesim.metrics.steps import StepTotals
from servesim.records.recorder import Recorder
from servesim.run.sizing import GROUPED, has_windows
from servesim.run.speculation import Speculation
from servesim.versions import recorded_engine
from servesim.workload.front_end import FrontEnd, FrontTerms
from servesim.workload.trace import Content, Trace
from servesim.workload.workload import Clients, TraceWorkload

FAST = MODES["fast"]


@dataclass(frozen=True)
class Replay:
    """Times on the simulated server, by request in recorded order; NaN for a request that was refused."""

    ttft_ms: Floats
    tpot_ms: Floats
    e2el_ms: Floats
    arrival_ns: Ints
    output_len: Ints
    refused: int
    hit_rate: float
    """Share of prompt tokens that were found in the prefix cache at first admission."""
    num_blocks: int
    cost_shares: dict[str, float | None]
    """Share of GPU time by source: measured kernels, interpolated, extrapolated, formula."""


def replay(run: RecordedRun, host: HostTerms | None = None, tables: str | None = None) -> Replay:
    """Simulate a recorded run. Raise UserError if its model or GPU is unknown. The kernels are those that the recorded
    engine is known to choose."""
    server = run.server
    if server.model is None:
        raise UserError(f"{run.path}: its model is not recorded; specify --model")
    if server.gpu is None:
        raise UserError(f"{run.path}: its GPU is not recorded; specify --gpu")
    model, gpu = ModelSpec.load(server.model), Gpu.load(server.gpu)
    engine = recorded_engine(server.engine, server.gpu)
    speculation = None
    if server.speculation:
        acceptance = policy_settings(server.acceptance) if server.acceptance else None
        speculation = Speculation.resolve(policy_settings(server.speculation), acceptance, 0, model)
    release = engine.release if engine is not None and engine.engine == "vllm" else None
    core = _core(server, model, gpu, release, speculation)
    cost = build_cost_model(
        model,
        gpu,
        server.tp,
        server.dtype,
        kv_dtype=server.kv_dtype,
        tables=tables,
        host=host,
        moe_backend=server.moe_backend or "auto",
        engine=engine,
        speculator=speculation.make() if speculation is not None else None,
    )
    if speculation is not None:
        core.speculator, core.acceptance = speculation.priced(cost), speculation.acceptance
    cost.asynchronous = server.asynchronous
    front = host.front(model.name) if host is not None and not run.at_engine else FrontTerms()
    router, params = routers.configured({"name": "round-robin"})
    recorder = Recorder(out_ns=front.out_ns)
    cluster = Cluster(
        FrontEnd(TraceWorkload(recorded_trace(run), clients=Clients(max_concurrency=run.concurrency)), front),
        [Pool([core], cost, 2 if server.asynchronous else 1)],
        router(params, 1),
        recorder=recorder,
    )
    cluster.run()
    return _outcome(recorder, core.kv.num_blocks)


def _core(
    server: Server, model: ModelSpec, gpu: Gpu, release: tuple[int, int] | None, speculation: Speculation | None
) -> EngineCore:
    """Return the engine of a recorded server. `release` is its release of vLLM, if known."""
    defaults = vllm_defaults(gpu)
    tokens = server.max_num_batched_tokens or defaults.max_num_batched_tokens
    seqs = server.max_num_seqs or defaults.max_num_seqs
    name = "prefix-hash" if server.prefix_caching else "paged"
    allocator, kv_params = kv_allocators.configured({"name": GROUPED[name] if has_windows(model) else name})
    groups = kv_groups(model.kept_layers) if allocator.grouped else [KvGroup(model.num_layers)]
    blocks = server.num_blocks
    if blocks is None:
        blocks = memory_budget(
            model,
            gpu,
            server.tp,
            block_size=server.block_size,
            max_num_batched_tokens=tokens,
            max_num_seqs=seqs,
            hybrid=allocator.grouped,
            version=release,
        ).num_blocks
    in_flight = tokens * (1 + server.asynchronous)
    max_len = min(server.max_model_len or model.max_position, longest(blocks - 1, groups, server.block_size, in_flight))
    windows = tuple(group.window or None for group in groups)
    memory = KVMemory(blocks, server.block_size, max_len, windows=windows, in_flight_tokens=in_flight)
    kv = FAST.memory(allocator)(kv_params, memory)
    scheduler, params = schedulers.configured(policy_settings(server.scheduler))
    if speculation is not None:
        params = speculation.tune(params)
    return FAST.core(scheduler(params, Limits(seqs, tokens, max_len, server.asynchronous), kv), kv)


def recorded_trace(run: RecordedRun) -> Trace:
    """Return the requests of a run. If the run does not record which prompts share content, all prompts are treated as
    different, so a preempted request can still find its own blocks."""
    content = None
    if run.server.prefix_caching:
        ids = np.arange(len(run)) if run.prompt_id is None else run.prompt_id
        content = Content(np.arange(len(run) + 1, dtype=np.int64), ids, run.prompt_len)
    return Trace.from_lengths(run.name, due_ns(run), run.prompt_len, run.output_len, content=content)


def _outcome(recorder: Recorder, num_blocks: int) -> Replay:
    requests = RequestColumns.of(recorder.requests.array())
    column, done = requests.table, requests.done
    arrival, first, last = (column[f"{name}_ns"] for name in ("arrival", "first_token", "last_token"))
    gaps = np.where(column["output_len"] > 1, column["output_len"] - 1, np.nan)
    totals = StepTotals()
    totals.add(recorder.steps.array())
    return Replay(
        ttft_ms=np.where(done, (first - arrival) / 1e6, np.nan),
        tpot_ms=np.where(done, (last - first) / 1e6 / gaps, np.nan),
        e2el_ms=np.where(done, (last - arrival) / 1e6, np.nan),
        arrival_ns=arrival,
        output_len=column["output_len"],
        refused=int((~done).sum()),
        hit_rate=float(column["hit_tokens"].sum() / max(column["prompt_len"].sum(), 1)),
        num_blocks=num_blocks,
        cost_shares=totals.cost_shares(),
    )
