"""Replays recorded runs: the same requests against a simulated server with the recorded settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servesim.contracts import KVMemory, Limits, build_params, kv_allocators, routers, schedulers
from servesim.contracts.request import State
from servesim.cost import build_cost_model
from servesim.cost.host import HostTerms
from servesim.engine.cluster import MODES, Cluster
from servesim.engine.core import EngineCore
from servesim.engine.recorder import REQUEST_COLUMNS, Recorder
from servesim.errors import UserError
from servesim.experiments.recording import Floats, Ints, RecordedRun
from servesim.hardware import Gpu, ModelSpec, memory_budget, vllm_defaults
from servesim.metrics.steps import StepTotals
from servesim.run.scenario import policy_settings
from servesim.run.speculation import Speculation
from servesim.workload.trace import Content, Trace
from servesim.workload.workload import Clients, FrontEnd, TraceWorkload, Workload

FAST = MODES["fast"]


@dataclass(frozen=True)
class Replay:
    """Times on the simulated server, by request in recorded order; NaN where one was refused."""

    ttft_ms: Floats
    tpot_ms: Floats
    e2el_ms: Floats
    arrival_ns: Ints
    output_len: Ints
    refused: int
    num_blocks: int
    asynchronous: bool
    cost_shares: dict[str, float | None]
    """GPU time by source: measured kernels, between them, beyond them, formula."""


def replay(
    run: RecordedRun, host: HostTerms | None = None, tables: str | None = None, moe_backend: str = "auto"
) -> Replay:
    """Simulate a recorded run; UserError where its model or GPU is not known. `moe_backend`: kernel of routed experts
    where neither the run nor the host terms say."""
    speculation = _speculation(run)
    core, limits = _engine(run, speculation)
    assert run.server.model is not None
    assert run.server.gpu is not None
    model, gpu = ModelSpec.load(run.server.model), Gpu.load(run.server.gpu)
    server = run.server
    cost = build_cost_model(
        model,
        gpu,
        server.tp,
        server.dtype,
        kv_dtype=server.kv_dtype,
        tables=tables,
        host=host,
        moe_backend=moe_backend,
        speculator=speculation.make() if speculation is not None else None,
    )
    if speculation is not None:
        core.speculator, core.acceptance = speculation.priced(cost), speculation.acceptance
    cost.asynchronous = limits.async_scheduling
    front = host if host is not None and not run.at_engine else None
    in_ns, out_ns = (round(front.front_in), round(front.front_out)) if front else (0, 0)
    router, _ = routers.resolve("round-robin")
    recorder = Recorder(out_ns=out_ns)
    cluster = Cluster(
        FrontEnd(_workload(run), in_ns, out_ns, front.front_in_per_token if front else 0.0),
        [core],
        router(build_params("round-robin", router.Params, {}), 1),
        cost,
        depth=2 if limits.async_scheduling else 1,
        recorder=recorder,
    )
    cluster.run()
    return _outcome(recorder, core.kv.num_blocks, limits.async_scheduling)


def _speculation(run: RecordedRun) -> Speculation | None:
    server = run.server
    if not server.speculation or server.model is None:
        return None
    acceptance = policy_settings(server.acceptance) if server.acceptance else None
    return Speculation.resolve(policy_settings(server.speculation), acceptance, 0, ModelSpec.load(server.model))


def _engine(run: RecordedRun, speculation: Speculation | None) -> tuple[EngineCore, Limits]:
    server = run.server
    if server.model is None:
        raise UserError(f"{run.path}: the model is not recorded beside it; give --model")
    if server.gpu is None:
        raise UserError(f"{run.path}: the GPU is not recorded beside it; give --gpu")
    model, gpu = ModelSpec.load(server.model), Gpu.load(server.gpu)
    defaults = vllm_defaults(gpu)
    tokens = server.max_num_batched_tokens or defaults.max_num_batched_tokens
    seqs = server.max_num_seqs or defaults.max_num_seqs
    blocks = server.num_blocks
    if blocks is None:
        budget = memory_budget(
            model, gpu, server.tp, block_size=server.block_size, max_num_batched_tokens=tokens, max_num_seqs=seqs
        )
        blocks = budget.num_blocks
    max_len = min(server.max_model_len or model.max_position, (blocks - 1) * server.block_size)
    limits = Limits(seqs, tokens, max_len, server.asynchronous)
    name = "prefix-hash" if server.prefix_caching and run.prompt_id is not None else "paged"
    allocator, _ = kv_allocators.resolve(name)
    kv = FAST.memory(allocator)(build_params(name, allocator.Params, {}), KVMemory(blocks, server.block_size, max_len))
    scheduler, given = schedulers.resolve(server.scheduler)
    params = build_params(server.scheduler, scheduler.Params, given)
    if speculation is not None:
        params = speculation.tune(params)
    return FAST.core(scheduler(params, limits, kv), kv), limits


def _workload(run: RecordedRun) -> Workload:
    content = None
    if run.prompt_id is not None:
        content = Content(np.arange(len(run) + 1, dtype=np.int64), run.prompt_id, run.prompt_len)
    sent = run.arrival_ns if run.concurrency is None else np.zeros_like(run.prompt_len)
    trace = Trace.from_lengths(run.name, sent, run.prompt_len, run.output_len, content=content)
    return TraceWorkload(trace, clients=Clients(max_concurrency=run.concurrency))


def _outcome(recorder: Recorder, num_blocks: int, asynchronous: bool) -> Replay:
    rows = recorder.requests.array()
    rows = rows[np.argsort(rows[:, 0])]
    column = {name: rows[:, i] for i, name in enumerate(REQUEST_COLUMNS)}
    done = column["state"] == State.FINISHED
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
        num_blocks=num_blocks,
        asynchronous=asynchronous,
        cost_shares=totals.cost_shares(),
    )
