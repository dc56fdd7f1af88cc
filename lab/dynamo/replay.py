"""Replay of a trace as in Dynamo's simulator (ai-dynamo-runtime 1.6.1, `run_mocker_trace_replay`, offline).

Its engines are servesim's own parts: the scheduler vllm over prefix-hash, or sglang over a purpose-built prefix cache
(servesim_lab.dynamo.radix), with the simulator's step clock (servesim_lab.dynamo.cost).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from servesim.contracts import KVAllocator, KVMemory, Limits, build_params, kv_allocators, make, routers, schedulers
from servesim.contracts.router import Router
from servesim.engine.cluster import Cluster
from servesim.engine.core import EngineCore
from servesim.engine.modes import MODES
from servesim.engine.pool import Pool
from servesim.errors import UserError, suggest
from servesim.features.offload.connector import Offload
from servesim.features.offload.tiers import Direction
from servesim.records.recorder import Recorder
from servesim.workload.trace import Trace
from servesim.workload.workload import TraceWorkload
from servesim_lab.dynamo.cost import Fixed, MockerCost, Polynomial, timing_of
from servesim_lab.dynamo.host import MockerMemory, MockerOffload, tokens_of
from servesim_lab.dynamo.radix import MockerRadix, MockerSource

BACKENDS = ("vllm", "sglang")
WORKER_TYPES = ("aggregated", "prefill", "decode")
TIMING_MODES = ("full_prompt", "destination_missing")
SGLANG_CHUNK = 8192
LONGEST = 1 << 40  # only memory limits request length


@dataclass(frozen=True)
class HostOffload:
    """Host memory of an engine in that simulator."""

    num_host_blocks: int
    h2d_bandwidth_gbps: float = 32.0
    """Bandwidth in GB/s."""
    d2h_bandwidth_gbps: float = 32.0
    latency_to_first_byte_ms: float = 0.0

    def attach(self, core: EngineCore, block_size: int, bytes_per_token: int) -> None:
        """Attach this memory to an engine's core."""
        start_ns = round(self.latency_to_first_byte_ms * 1e6)
        rates = (self.h2d_bandwidth_gbps, self.d2h_bandwidth_gbps)
        load, store = (Direction(round(rate * 1e9), start_ns) for rate in rates)
        size, block_bytes = block_size, block_size * bytes_per_token
        memory = MockerMemory(self.num_host_blocks)
        core.connect(
            MockerOffload(memory, load, store, block_tokens=size, gpu_block_tokens=size, gpu_block_bytes=block_bytes)
        )
        core.step_plainly()


@dataclass(frozen=True)
class MockEngine:
    """Arguments of an engine under that simulator's names, with its defaults."""

    num_gpu_blocks: int = 16384
    block_size: int = 64
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    """Maximum number of tokens per step; SGLang's prompts are always split at 8,192 tokens."""
    backend: str = "vllm"
    """Backend, vllm or sglang."""
    timing_model: Polynomial | Fixed = field(default_factory=Polynomial)
    worker_type: str = "aggregated"
    """Worker type: aggregated or (servesim_lab.dynamo.pd) prefill or decode."""
    kv_transfer_bytes_per_token: int = 0
    kv_transfer_bandwidth: float = 0.0
    """Bandwidth in GB/s."""
    kv_transfer_timing_mode: str = "full_prompt"
    """Timing mode, full_prompt or destination_missing."""
    kv_cache_bytes_per_token: int = 0
    native_host_offload: HostOffload | None = None

    LEAST: ClassVar = ("num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")

    def __post_init__(self) -> None:
        for name in self.LEAST:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UserError(f"engine: {name} is {value!r} but must be a whole number of at least 1")
        if self.backend not in BACKENDS:
            raise UserError(f"engine: backend is {self.backend!r} but must be one of {', '.join(BACKENDS)}")
        for name, known in (("worker_type", WORKER_TYPES), ("kv_transfer_timing_mode", TIMING_MODES)):
            if getattr(self, name) not in known:
                raise UserError(f"engine: {name} is {getattr(self, name)!r} but must be one of {', '.join(known)}")

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> MockEngine:
        """Build from `extra_engine_args["engine"]`; raise UserError if it contains a setting that is not modeled."""
        known = [each.name for each in fields(cls)]
        for name in arguments:
            if name not in known:
                raise UserError(f"engine: {name} is not modeled{suggest(name, known)}")
        engine = dict(arguments)
        if "timing_model" in engine:
            engine["timing_model"] = timing_of(engine["timing_model"])
        if "native_host_offload" in engine:
            host = engine["native_host_offload"]
            engine["native_host_offload"] = build_params("native_host_offload", HostOffload, dict(host))
        return cls(**engine)

    def core(self, mode: str, check: bool = False) -> EngineCore:
        """Return the state machine of one worker. With `check`, it verifies its invariants at every step."""
        sglang = self.backend == "sglang"
        radix = MockerSource if self.worker_type == "prefill" else MockerRadix
        kv_class: type[KVAllocator] = radix if sglang else kv_allocators.resolve("prefix-hash")[0]
        kv_params = build_params(kv_class.name, kv_class.Params, {"page_size": self.block_size} if sglang else {})
        blocks = self.num_gpu_blocks if sglang else self.num_gpu_blocks + 1  # vLLM's null block
        kv = make(MODES[mode].memory(kv_class), kv_params, KVMemory(blocks, self.block_size, LONGEST))
        cls, _ = schedulers.resolve(self.backend)
        params = build_params(self.backend, cls.Params, {"chunked_prefill_size": SGLANG_CHUNK} if sglang else {})
        budget = SGLANG_CHUNK if sglang else self.max_num_batched_tokens
        core = MODES[mode].core(make(cls, params, Limits(self.max_num_seqs, budget, LONGEST, False), kv), kv, check)
        if self.native_host_offload is not None:
            self.native_host_offload.attach(core, self.block_size, self.kv_cache_bytes_per_token)
        return core

    def cost(self) -> MockerCost:
        """Return the engine's step clock."""
        kv_tokens, decodes = self.num_gpu_blocks * self.block_size, self.worker_type == "decode"
        return MockerCost(self.timing_model, kv_tokens, self.backend == "sglang", decodes)


@dataclass(frozen=True)
class Replayed:
    """Outcome of each request, by row of the trace: times in ns from the first arrival, or -1 if an event never
    happened."""

    worker: NDArray[np.int64]
    first_admit_ns: NDArray[np.int64]
    first_token_ns: NDArray[np.int64]
    last_token_ns: NDArray[np.int64]
    first_reused_tokens: NDArray[np.int64]
    """Number of tokens found in the prefix cache and in host memory at the first admission."""
    readmissions: NDArray[np.int64]
    _steps: NDArray[np.int64]

    def steps(self, worker: int) -> list[tuple[int, int]]:
        """Return (start, end) of a worker's steps in ns, in order; in fast mode, of runs of decode steps."""
        rows = self._steps[self._steps[:, 0] == worker]
        return [(start, end) for _, start, end in rows.tolist()]


def replay(
    trace: Trace,
    engine: MockEngine,
    num_workers: int = 1,
    *,
    router: Router | None = None,
    mode: str = "fast",
) -> Replayed:
    """Serve a trace with workers of one kind, from its first arrival on. `router` defaults to round robin.

    The simulator keeps time in floating-point ms, whereas times here are whole ns. An arrival at the exact instant when
    a step ends may therefore fall on the other side of it there.
    """
    if router is None:
        cls, _ = routers.resolve("round-robin")
        router = make(cls, build_params("round-robin", cls.Params, {}), num_workers)
    router.output_block = engine.block_size
    trace = replace(trace, arrival_ns=trace.arrival_ns - trace.arrival_ns[:1])
    recorder = Recorder()
    cores = [engine.core(mode) for _ in range(num_workers)]
    for core in cores:
        if isinstance(core.connector, MockerOffload):
            core.connector.tokens = tokens_of(trace)
    cluster = Cluster(TraceWorkload(trace), [Pool(cores, engine.cost(), 1)], router, mode=mode, recorder=recorder)
    cluster.run()
    columns = ("replica", "scheduled_ns", "first_token_ns", "last_token_ns", "hit_tokens", "num_preemptions")
    order = np.argsort(recorder.requests.column("row"))
    steps = np.stack([recorder.steps.column(name) for name in ("replica", "start_ns", "end_ns")], axis=1)
    found = [recorder.requests.column(name)[order] for name in columns]
    for core in cores:
        if isinstance(core.connector, Offload):
            loaded = core.connector.counts.first_tokens
            found[4][list(loaded)] += list(loaded.values())
    return Replayed(*[*found, steps])
