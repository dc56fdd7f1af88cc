"""A small world: a trace, policies and a synthetic cost model, ready to be simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts import (
    Batch,
    CostModel,
    Defaults,
    Host,
    KVMemory,
    Limits,
    Registry,
    Scheduler,
    build_params,
    kv_allocators,
    make,
    routers,
    schedulers,
)
from servesim.contracts.part import Part
from servesim.contracts.router import Role, Router
from servesim.contracts.section import policy_settings
from servesim.engine.cluster import Cluster
from servesim.engine.core import EngineCore
from servesim.engine.modes import MODES
from servesim.engine.pool import Pool
from servesim.hardware import ModelSpec
from servesim.plugins.user_policies import blaming
from servesim.records.recorder import Recorder
from servesim.run.speculation import Speculation
from servesim.workload.trace import After, Content, Samples, Trace
from servesim.workload.workload import Clients, TraceWorkload

LIMITS = ("max_num_seqs", "max_num_batched_tokens")


@dataclass
class ToyCost(CostModel):
    """Cost model in whole nanoseconds: a fixed part, a part per token and a part per token of context, with kinks and
    host time."""

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
        ns: NDArray[np.int64] = linear + self.context * (context + attended + kink)
        return ns

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
    """Return a trace of a few rows. `caps`: max_tokens; rows whose output is shorter end with a stop token. `after`:
    for each row, its dependencies as (row, trigger, delay). `samples`: for each row, output tokens of its further
    samples."""
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


@cache
def _target() -> ModelSpec:
    """Return the target model for which drafts are made."""
    return ModelSpec.load("llama-3.1-8b")


class Share(NamedTuple):
    """Some of a world's replicas, in their own pool."""

    name: str
    replicas: int
    role: Role = "both"


@dataclass
class World:
    """Description of one simulation. Policies are `name`, `name:key=value,...` or `file.py:Class`."""

    trace: Trace
    kv: str = "paged"
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
    split: tuple[Share, ...] = ()
    """Pools, whose replicas add up to `replicas`. If empty, all replicas are in one pool."""
    router: str = "round-robin"
    features: tuple[Callable[[World, list[Pool]], Part | None], ...] = ()
    """Makers of optional parts, each called with the world and its pools before the cluster is created."""
    featured: tuple[str, ...] = ()
    """Names of the features."""
    speculation: str = ""
    """Speculation method, used if the scheduler can verify drafts; none if empty."""
    acceptance: str = "independent:alpha=0.7"
    cost: CostModel = field(default_factory=ToyCost)
    clients: Clients = field(default_factory=Clients)
    max_queued: int | None = None
    out_ns: int = 0

    core_classes: ClassVar[dict[str, type[EngineCore]]] = {mode: parts.core for mode, parts in MODES.items()}

    def told(self, kind: str = "") -> str:
        """Return a description of the world for a reader, without the policy of the given kind."""
        named = {
            "scheduler": self.scheduler,
            "kv": self.kv,
            "router": self.router if self.replicas > 1 else "",
            "speculation": self.speculation,
            "acceptance": self.acceptance if self.speculation else "",
        }
        parts = [
            f"{len(self.trace)} requests",
            f"{self.replicas} replicas" if self.replicas > 1 else "",
            *(f"{key} {name}" for key, name in named.items() if name and key != kind),
            f"{self.num_blocks} blocks of {self.block_size}",
            f"max_num_seqs {self.max_num_seqs}",
            f"max_num_batched_tokens {self.max_num_batched_tokens}",
            "planned ahead" if self.asynchronous else "a pipeline of two" if self.depth > 1 else "",
            "several samples" if self.trace.samples is not None else "",
            *(f"with {name}" for name in self.featured),
        ]
        return ", ".join(filter(None, parts))

    def core(self, check: bool = False, mode: str = "reference") -> EngineCore:
        """Return the state machine of one replica."""
        cls, params, limits = self._scheduler()
        kv_class, kv_params = self._resolve(kv_allocators, self.kv)
        drafting = self._drafting(cls)
        if drafting is not None:
            params, kv_params = drafting.tune(params), drafting.tune(kv_params)
        drafts = drafting.most_verified if drafting is not None else 0
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
        kv = make(MODES[mode].memory(kv_class), kv_params, memory)
        core = self.core_classes[mode](make(cls, params, limits, kv), kv, check)
        if drafting is not None:
            core.speculator, core.acceptance = drafting.priced(self.cost), drafting.acceptance
        core.max_queued = self.max_queued
        return core

    def _scheduler(self) -> tuple[type[Scheduler], Any, Limits]:
        """Return the scheduler's class, its parameters with all values filled in, and its limits; the world's limits
        replace missing ones."""
        cls, params = self._resolve(schedulers, self.scheduler, self.scheduler_params)
        most = {name: getattr(params, name, None) or getattr(self, name) for name in LIMITS}
        known = {each.name for each in fields(params)}
        params = replace(params, **{name: value for name, value in most.items() if name in known})
        defaults = Defaults(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len, gpu_memory_gib=80)
        with blaming([cls]):
            params = cls.complete(params, defaults)
        return cls, params, Limits(**most, max_model_len=self.max_model_len, async_scheduling=self.asynchronous)

    def _drafting(self, scheduler: type[Scheduler]) -> Speculation | None:
        if not self.speculation or "speculation" not in scheduler.supports:
            return None
        method, acceptance = policy_settings(self.speculation), policy_settings(self.acceptance)
        return Speculation.resolve(method, acceptance, 0, _target())

    def _resolve(self, registry: Registry[Any], spec: str, more: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        """Return the class that a spec names, and its parameters."""
        cls, values = registry.resolve(spec)
        return cls, build_params(spec, cls.Params, {**values, **(more or {})})

    def multiplied(self, by: int) -> World:
        """Return the world with the number of replicas in each pool multiplied by `by`."""
        split = tuple(share._replace(replicas=share.replicas * by) for share in self.split)
        return replace(self, replicas=self.replicas * by, split=split)

    def divided(self, *pools: tuple[str, int, Role]) -> World:
        """Return the world with pools of these names, replicas and roles."""
        split = tuple(Share(*pool) for pool in pools)
        return replace(self, replicas=sum(share.replicas for share in split), split=split)

    def roomy(self) -> World:
        """Return the world with enough memory for all requests simultaneously, whatever their lengths."""
        trace = self.trace
        sequences = len(trace) + (len(trace.samples.output_len) if trace.samples is not None else 0)
        longest = min(int((trace.prompt_len + trace.max_tokens).max(initial=1)), self.max_model_len)
        whole = sequences * (longest // self.block_size + 2) * len(self.windows)
        return replace(self, num_blocks=max(self.num_blocks, whole), max_model_len=longest)

    def make_router(self) -> Router:
        """Return a new router of the world's kind."""
        router: Router = make(*self._resolve(routers, self.router), self.replicas)
        router.output_block = self.block_size
        return router

    def pools(self, mode: str, check: bool) -> list[Pool]:
        """Return the pools with their replicas."""
        made = []
        for share in self.split or (Share("default", self.replicas),):
            spawn = partial(self.core, check, mode)
            cores = [spawn() for _ in range(share.replicas)]
            made.append(Pool(cores, self.cost, self.depth, spawn, share.name, share.role))
        return made

    def parts(self, pools: list[Pool]) -> list[Part]:
        """Return the parts of optional features."""
        return [part for make_part in self.features if (part := make_part(self, pools)) is not None]

    def cluster(self, mode: str = "fast", check: bool = False) -> Cluster:
        """Return the replicas behind their router, ready to run."""
        pools = self.pools(mode, check)
        workload = TraceWorkload(self.trace, clients=self.clients, form=pools[0].cores[0].scheduler.samples)
        recorder = Recorder(out_ns=self.out_ns)
        return Cluster(
            workload,
            pools,
            self.make_router(),
            mode=mode,
            recorder=recorder,
            parts=self.parts(pools),
        )

    def run(self, mode: str = "fast", check: bool = False) -> Cluster:
        """Run the world to the end."""
        cluster = self.cluster(mode, check)
        cluster.run()
        return cluster
