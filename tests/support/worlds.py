"""Small worlds: a trace, a policy and a made-up cost model, simulated and recorded in full."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts import (
    AcceptanceModel,
    Batch,
    CostModel,
    Host,
    KVMemory,
    Limits,
    Speculator,
    acceptance_models,
    build_params,
    kv_allocators,
    make,
    routers,
    schedulers,
    speculators,
)
from servesim.engine.cluster import MODES, Cluster
from servesim.engine.core import EngineCore
from servesim.engine.fast.core import FastCore
from servesim.engine.recorder import Recorder
from servesim.engine.step import Step
from servesim.hardware import ModelSpec
from servesim.workload.trace import After, Content, Samples, Trace
from servesim.workload.workload import Clients, TraceWorkload


@dataclass
class ToyCost(CostModel):
    """Whole nanoseconds: fixed + per token + per token of context, with kinks and host time."""

    fixed: int = 1000
    token: int = 100
    context: int = 1
    overlapped: int = 0
    exposed: int = 0
    asynchronous: bool = False

    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        steps = np.arange(k, dtype=np.int64)
        context = batch.decode_context_sum + steps * batch.decode_count
        attended = sum(new * past + new * new // 2 for new, past in batch.prefill)
        kink = np.maximum(context - 300, 0) // 7
        tokens = batch.linear_tokens + batch.padded_tokens + batch.sampled
        linear = self.fixed + self.token * tokens + batch.bytes_moved + batch.bytes_copied
        return linear + self.context * (context + attended + kink)

    def host(self, batch: Batch) -> Host:
        return Host(self.overlapped * (1 + batch.sampled), self.exposed)


def toy_trace(
    arrivals: list[int],
    prompts: list[int],
    outputs: list[int],
    *,
    caps: list[int] | None = None,
    priorities: list[int] | None = None,
    runs: list[list[tuple[int, int]]] | None = None,
    names: tuple[str, ...] | None = None,
    after: dict[int, list[tuple[int, int, int]]] | None = None,
    cancel: list[int] | None = None,
    labels: dict[str, tuple[str, ...]] | None = None,
    samples: dict[int, list[int]] | None = None,
) -> Trace:
    """A trace of a few rows. `caps`: max_tokens; rows that stay below it end by a stop token. `after`: by row,
    what it waits for as (row, trigger, delay). `samples`: by row, output tokens of its further samples."""
    output = np.array(outputs, dtype=np.int64)
    further = [(samples or {}).get(row, []) for row in range(len(output))]
    most = [max([own, *more]) for own, more in zip(outputs, further, strict=True)]
    cap = np.array(caps if caps is not None else most, dtype=np.int64)
    content = None
    if runs is not None:
        offsets = np.cumsum([0] + [len(r) for r in runs]).astype(np.int64)
        flat = [run for row in runs for run in row]
        ids, lengths = (np.array([run[i] for run in flat], dtype=np.int64) for i in (0, 1))
        content = Content(offsets, ids, lengths)
    return Trace(
        name="toy",
        arrival_ns=np.array(arrivals, dtype=np.int64),
        prompt_len=np.array(prompts, dtype=np.int64),
        output_len=output,
        max_tokens=cap,
        stop=output < cap,
        priority=np.array(priorities or [0] * len(output), dtype=np.int64),
        request_id=names,
        content=content,
        after=After.of([[(*edge, 0) for edge in (after or {}).get(row, [])] for row in range(len(output))]),
        cancel_ns=np.array(cancel, dtype=np.int64) if cancel is not None else None,
        labels=labels or {},
        samples=Samples.of(
            np.array([len(row) for row in further]), np.array([x for row in further for x in row], dtype=np.int64)
        ),
    )


class Watched(EngineCore):
    """Says when it has planned."""

    on_plan: Callable[[int], None] | None = None

    def plan(self, now: int) -> Step | None:
        step = super().plan(now)
        if self.on_plan is not None:
            self.on_plan(now)
        return step


class WatchedFast(FastCore):
    """Says when it has planned."""

    on_plan: Callable[[int], None] | None = None

    def plan(self, now: int) -> Step | None:
        step = super().plan(now)
        if self.on_plan is not None:
            self.on_plan(now)
        return step


@dataclass
class World:
    """One simulation, described."""

    trace: Trace
    kv: str = "paged"
    """Name, or name:key=value,..."""
    num_blocks: int = 1000
    block_size: int = 16
    host_blocks: int = 0
    windows: tuple[int | None, ...] = (None,)
    scheduler: str = "vllm"
    scheduler_params: dict[str, Any] = field(default_factory=dict)
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 1 << 20
    depth: int = 1
    asynchronous: bool = False
    replicas: int = 1
    router: str = "round-robin"
    speculation: str = ""
    acceptance: str = "independent:alpha=0.7"
    cost: CostModel = field(default_factory=ToyCost)
    clients: Clients = field(default_factory=Clients)
    max_queued: int | None = None
    out_ns: int = 0

    def core(self, check: bool = False, mode: str = "reference") -> EngineCore:
        """One replica's state machine."""
        cls, _ = schedulers.resolve(self.scheduler)
        kv_class, kv_params = kv_allocators.resolve(self.kv)
        drafts = 8 if self.speculation else 0
        memory = KVMemory(
            self.num_blocks,
            self.block_size,
            self.max_model_len,
            self.host_blocks,
            bytes_per_token=1,
            windows=self.windows,
            in_flight_tokens=self.max_num_batched_tokens * (1 + self.asynchronous) if cls.keeps_budget else 0,
            overrun_tokens=max(self.depth * (1 + drafts) - 2, 0),
        )
        kv = make(MODES[mode].memory(kv_class), build_params(self.kv, kv_class.Params, dict(kv_params)), memory)
        params = build_params(self.scheduler, cls.Params, self.scheduler_params)
        limits = Limits(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len, self.asynchronous)
        drafting = self.speculation and "speculation" in cls.supports
        if drafting:
            params, speculator, acceptance = self._speculation(params)
        watched = WatchedFast if mode == "fast" else Watched
        core = watched(make(cls, params, limits, kv), kv, check)
        if drafting:
            core.speculator, core.acceptance = speculator, acceptance
        core.max_queued = self.max_queued
        return core

    def _speculation(self, params: Any) -> tuple[Any, Speculator, AcceptanceModel]:
        """Scheduler parameters with room for drafts, and both sides of drafting."""
        method, values = speculators.resolve(self.speculation)
        params_of = build_params("speculation", method.Params, dict(values))
        speculator: Speculator = make(method, params_of, ModelSpec.load("llama-3.1-8b"))
        model, values = acceptance_models.resolve(self.acceptance)
        acceptance = make(model, build_params("acceptance", model.Params, dict(values)), 0)
        speculator.price = lambda batch: self.cost.price(batch).ns
        speculator.rates = acceptance.rates
        k = speculator.verified(speculator.max_drafts)
        params = dataclasses.replace(params, num_speculative_tokens=k, num_lookahead_tokens=speculator.lookahead)
        return params, speculator, acceptance

    def cluster(self, mode: str = "fast", check: bool = False) -> Cluster:
        """Ready to run."""
        cores = [self.core(check, mode) for _ in range(self.replicas)]
        cls, _ = routers.resolve(self.router)
        router = make(cls, build_params(self.router, cls.Params, {}), self.replicas)
        workload = TraceWorkload(self.trace, clients=self.clients, form=cores[0].scheduler.samples)
        recorder = Recorder(out_ns=self.out_ns)
        return Cluster(workload, cores, router, self.cost, depth=self.depth, mode=mode, recorder=recorder)

    def run(self, mode: str = "fast", check: bool = False) -> Cluster:
        """Run to the end."""
        cluster = self.cluster(mode, check)
        cluster.run()
        return cluster


Snapshot = tuple[Any, ...]


def memory_state(kv: Any) -> Snapshot:
    """Everything an allocator holds, in a form that two runs (and the time before and after) can be compared by."""
    state: list[Any] = [kv.usage(), kv.copied_tokens]
    if hasattr(kv, "tables"):
        # cached blocks without their keys, which are numbers in order of first use
        cached = kv.cached() if hasattr(kv, "cached") else []
        state += [
            [(r.row, [list(t) if isinstance(t, list) else t for t in table]) for r, table in kv.tables.items()],
            kv.free_order(),
            sorted(cached),
        ]
    if hasattr(kv, "space"):
        state += [[(r.row, chunk) for r, chunk in kv.chunks.items()], sorted(kv.space.holes())]
    if hasattr(kv, "tree"):
        nodes = sorted(kv.tree.nodes(), key=lambda n: (n.last_access, n.created))
        state += [
            [(r.row, held.node.end, held.own) for r, held in kv._held.items()],
            sorted((r.row, end) for r, end in kv._prefilling.items()),
            [(n.start, n.end, n.locks, n.hits, n.priority) for n in nodes],
        ]
    return tuple(state)


def watch(cluster: Cluster) -> dict[tuple[int, int, int], Snapshot]:
    """Snapshots of everything a replica holds after each plan, by (replica, time, next step id)."""
    seen: dict[tuple[int, int, int], Snapshot] = {}

    def hook(index: int, core: Watched | WatchedFast) -> None:
        def planned(now: int) -> None:
            seen[index, now, core.next_step_id] = (
                memory_state(core.kv),
                [
                    (r.row, r.num_tokens, r.num_computed_tokens, r.num_output_placeholders)
                    for r in core.scheduler.running
                ],
                [r.row for r in core.scheduler.waiters()],
            )

        core.on_plan = planned

    for i, replica in enumerate(cluster.replicas):
        assert isinstance(replica.core, Watched | WatchedFast)
        hook(i, replica.core)
    return seen
