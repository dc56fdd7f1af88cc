"""Replay of a trace as in Dynamo's simulator (ai-dynamo-runtime 1.6.1) with separate prefill and decode workers.

A decode worker is chosen when a prompt has been computed. It allocates memory for the prompt at a pass boundary (at
most one request more than became active there). The transfer then begins immediately and takes bytes over bandwidth,
independent of other transfers. At the first boundary after it, the request becomes active. The memory at the source is
freed at that worker's first boundary after that. At any instant, passes end, and the next ones begin, before requests
arrive.

With SGLang workers, the decode worker is chosen when a request arrives, and allocates memory first. The prefill worker
is then chosen and receives the request at the same instant. The transfer begins when the prompt has been computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from servesim.contracts import KVMemory, Limits, build_params, make
from servesim.contracts.request import Request
from servesim.contracts.router import Router
from servesim.engine import remote_kv
from servesim.engine.clock import LOADED, PLAN
from servesim.engine.cluster import Cluster
from servesim.engine.core import EngineCore
from servesim.engine.modes import MODES
from servesim.engine.pool import Pool
from servesim.features.handoff.part import Handoff
from servesim.features.handoff.passage import Passage
from servesim.features.handoff.wire import FixedRate
from servesim.policies.kv.prefix_hash import PrefixHash
from servesim.policies.routing.round_robin import RoundRobin
from servesim.records.recorder import Recorder
from servesim.workload.trace import Trace
from servesim.workload.workload import TraceWorkload
from servesim_lab.dynamo.decode import MockerDecode
from servesim_lab.dynamo.replay import LONGEST, MockEngine

Ints = NDArray[np.int64]


class MockerHandoff(Handoff):
    """Handoff by the rules above."""

    name = "dynamo-replay"

    def prefilled(self, passage: Passage) -> None:
        self.to_decode(passage)

    def received(self, passage: Passage) -> None:
        self.cluster.replicas[passage.decode].at_boundary(partial(self._received, passage))

    def _received(self, passage: Passage) -> None:
        passage.received_ns, passage.loading, passage.stop = self.clock.ns, False, None
        self.release(passage)
        replica = self.cluster.replicas[passage.decode]
        replica.core.scheduler.arriving[passage.request] = partial(remote_kv.loaded, replica, passage.request)
        replica.go_on()

    def release(self, passage: Passage) -> None:
        self.cluster.replicas[passage.prefill].at_boundary(partial(Handoff.release, self, passage))


class MockerBootstrap(MockerHandoff):
    """Handoff by the rules for SGLang workers. `prefill_router` chooses the prefill worker; the cluster's router is
    ignored."""

    prefill_router: Router

    def started(self, passage: Passage) -> None:
        self.to_decode(passage)

    def reserve(self, request: Request, start: int, stop: int) -> None:
        super().reserve(request, start, stop)
        self.clock.at(self.clock.ns, LOADED, partial(self._shaken, self.passages[request]))

    def _shaken(self, passage: Passage, event: Event) -> None:
        passage.prefill = passage.leg.replica = self.choose(passage.request, "prefill", self.prefill_router)
        self.cluster.replicas[passage.prefill].arrive(passage.leg, 1)

    def prefilled(self, passage: Passage) -> None:
        self.transfer(passage)


@dataclass(frozen=True)
class ReplayedApart:
    """Outcome of each request, by row of the trace: times in ns from the first arrival, or -1 if an event never
    happened."""

    prefill_worker: Ints
    decode_worker: Ints
    """Index within the decode workers."""
    prefill_admit_ns: Ints
    source_held_ns: Ints
    """Time when the prompt is computed and its memory is still held."""
    destination_reserved_ns: Ints
    destination_activated_ns: Ints
    source_released_ns: Ints
    first_token_ns: Ints
    last_token_ns: Ints
    first_reused_tokens: Ints
    readmissions: Ints
    """Number of recomputations at the decode worker."""


def replay_apart(
    trace: Trace,
    prefill: MockEngine,
    decode: MockEngine,
    router: Router,
    decode_router: Router | None,
    num_prefill: int,
    num_decode: int,
    *,
    mode: str = "fast",
    check: bool = False,
) -> ReplayedApart:
    """Serve a trace with workers of both kinds, numbered from the prefill workers on. `decode_router` is None if
    `router` returns a Pair."""
    trace = replace(trace, arrival_ns=trace.arrival_ns - trace.arrival_ns[:1])
    recorder = Recorder()
    cores = [prefill.core(mode, check) for _ in range(num_prefill)]
    cores += [decode_core(decode, mode, check) for _ in range(num_decode)]
    wire = FixedRate(prefill.kv_transfer_bandwidth)
    handoff = MockerHandoff(wire, size_of(prefill), decode_router)
    if prefill.backend == "sglang":
        handoff = MockerBootstrap(wire, size_of(prefill), decode_router)
        handoff.prefill_router, router = router, make(RoundRobin, None, num_prefill + num_decode)
    pools = [
        Pool(cores[:num_prefill], prefill.cost(), 1, name="prefill", role="prefill"),
        Pool(cores[num_prefill:], decode.cost(), 1, name="decode", role="decode"),
    ]
    cluster = Cluster(TraceWorkload(trace), pools, router, mode=mode, recorder=recorder, parts=[handoff])
    cluster.arrive_order = PLAN + len(cores)
    cluster.run()
    columns = ("first_token_ns", "last_token_ns", "hit_tokens", "num_preemptions")
    order = np.argsort(recorder.requests.column("row"))
    activated = [cast(MockerDecode, core.scheduler).activated_ns for core in cores[num_prefill:]]
    times = [
        (
            p.prefill,
            p.decode - num_prefill,
            p.leg.scheduled_ns,
            p.leg.finished_ns,
            p.reserved_ns,
            activated[p.decode - num_prefill][p.request.row],
            p.released_ns,
        )
        for p in sorted(handoff.done, key=lambda p: p.request.row)
    ]
    return ReplayedApart(
        *np.array(times, dtype=np.int64).T, *[recorder.requests.column(name)[order] for name in columns]
    )


def size_of(engine: MockEngine) -> Callable[[Request, int, int], int]:
    """Return a function for the bytes of a transfer: of the whole prompt, or of the blocks missing at the
    destination."""
    per_token, block = engine.kv_transfer_bytes_per_token, engine.block_size

    def size(request: Request, start: int, stop: int) -> int:
        if engine.kv_transfer_timing_mode == "full_prompt":
            return request.prompt_len * per_token
        return (-(-stop // block) * block - start) * per_token

    return size


def decode_core(engine: MockEngine, mode: str, check: bool) -> EngineCore:
    """Return the state machine of a decode worker."""
    kv = make(MODES[mode].memory(PrefixHash), build_params("prefix-hash", PrefixHash.Params, {}),
              KVMemory(engine.num_gpu_blocks + 1, engine.block_size, LONGEST))  # fmt: skip
    params = build_params("vllm", MockerDecode.Params, {})
    limits = Limits(engine.max_num_seqs, engine.max_num_batched_tokens, LONGEST, False)
    core = MODES[mode].core(make(MockerDecode, params, limits, kv), kv, check)
    core.step_plainly()  # a new request may be preempted before its first token
    return core
