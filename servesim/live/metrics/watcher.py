"""Watcher that counts what happens at each replica, and shows it at /metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts.plan import Plan
from servesim.contracts.request import Request, State
from servesim.live.metrics.counts import Counts, End
from servesim.live.metrics.dialect import Dialect, Engine
from servesim.live.metrics.exposition import page
from servesim.live.watcher import Gap, Page, Pages, Visit, Watcher
from servesim.records.step import Step

QUEUE_FULL = "queue full"
"""How the reason of a request starts that EngineCore.add rejects because too many wait."""


class Metrics(Watcher):
    """Metrics of all replicas, which go on when the engine starts again because a policy has failed."""

    def __init__(self, model: str, dialect: Dialect) -> None:
        self.model, self.dialect = model, dialect
        self._counts: dict[int, Counts] = {}
        self._past: list[Engine] = []  # replicas as they were when they crashed

    def pages(self) -> Pages:
        return {("GET", path): self._page for path in self.dialect.paths}

    def _page(self, visit: Visit) -> Page:
        return page(self.model, self.dialect, *self.engines(), self.driver)

    def engines(self) -> tuple[list[Engine], list[Engine]]:
        """Return all replicas that exist now, and those that have existed, crashed ones as they were."""
        pool_of, scenario_of = self._cluster.fleet.pool_of, self.driver.scenario_of
        replicas = self._cluster.replicas
        several = sum(replica.state != "gone" for replica in replicas) > 1
        now: list[Engine] = []
        past = list(self._past)
        for r in replicas:
            where = past if r.state == "gone" else now
            where.append(Engine(r, self._counts[r.index], scenario_of(pool_of[r.index]), several))
        return now, past

    # What happens.

    def join(self, cluster: Any) -> None:
        self._cluster, self._clock = cluster, cluster.clock
        found = [part.passages for part in cluster.parts if hasattr(part, "passages")]
        self._passages: Mapping[Request, Any] = found[0] if found else {}
        """Passages of requests whose prompts and answers are computed apart."""
        self._made: set[int] = set()  # replicas of this cluster that have had a core
        self._out_ns = -1  # not asked yet
        self._sent: dict[Request, int] = {}  # when requests were sent to their replica
        self._external: dict[Request, int] = {}  # prompt tokens that were loaded from elsewhere
        self._whole: set[Request] = set()  # requests whose answers are not streamed
        self._running: dict[tuple[int, int], int] = {}  # by replica and step: requests that run as the step is planned

    def core_made(self, replica: Any) -> None:
        index, core = replica.index, replica.core
        if index not in self._counts or index in self._made:  # one that has crashed begins at 0, as its server does
            if (before := self._counts.get(index)) is not None:
                scenario = self.driver.scenario_of(self._cluster.fleet.pool_of[index])
                self._past.append(Engine(replica, before, scenario, True))
            self._counts[index] = self.dialect.counts(core.scheduler.limits.max_model_len)
        self._made.add(index)
        counts = self._counts[index]
        told_first, told_plan = core.on_first, core.on_plan

        def first(request: Request) -> None:
            if told_first is not None:
                told_first(request)
            self._first(request, counts, replica.role)

        def planned(step: int, plan: Plan) -> None:
            if told_plan is not None:
                told_plan(step, plan)
            self._planned(core, index, step, plan, counts)

        core.on_first, core.on_plan = first, planned
        if replica.role == "prefill":
            self._tell_legs(replica, counts)

    def _tell_legs(self, replica: Any, counts: Counts) -> None:
        """Count the requests that only compute a prompt, when they leave; no record is made of them."""
        leave = replica.on_leave

        def left(leg: Request) -> None:
            self._ended(leg, counts)
            leave(leg)

        replica.on_leave = left

    def sent(self, request: Request, output_len: int, index: int) -> None:
        self._sent[request] = self._clock.ns
        asked = request if request.parent is None else request.parent.members[0]
        stream = self.driver.streams.get(asked.row)
        if stream is not None and not stream.streamed:
            self._whole.add(request)

    def passed_on(self, request: Request, output_len: int, index: int) -> None:
        if request.leg is None:
            self.sent(request, output_len, index)

    def _planned(self, core: Any, index: int, step: int, plan: Plan, counts: Counts) -> None:
        if plan.admitted:
            connected = core.connector is not None
            for request in plan.admitted:
                external = self._loaded(core, request) if connected else 0
                counts.admitted(request, external, core.shares, connected)
                if self.dialect.queue_at_admission and request.leg is None and request.owner is None:
                    queue_ns = request.scheduled_ns - self._sent[request]
                    counts.served[request not in self._whole].of["queue"].add(queue_ns)
            if self.dialect.at_plan:
                self._running[index, step] = len(core.scheduler.running)
        for request in plan.preempted:
            counts.retracted_prompt += request.prompt_len
            counts.retracted_output += request.num_output_tokens

    def _loaded(self, core: Any, request: Request) -> int:
        """Return the number of prompt tokens of a newly admitted request whose KV came from elsewhere, including the
        last one if it came, though it is computed again (vLLM's num_external_computed_tokens)."""
        if request.leg is not None and not 0 < request.loaded_tokens < request.prompt_len - request.hit_tokens - 1:
            external = request.prompt_len - request.hit_tokens
        elif request.loaded_tokens:
            size = core.kv.block_size
            stop = -(-(request.hit_tokens + request.loaded_tokens) // size) * size
            external = min(stop, request.prompt_len) - request.hit_tokens
        else:
            return 0
        self._external[request] = external
        return external

    def _first(self, request: Request, counts: Counts, role: str) -> None:
        counts.first(request, self._external.get(request, 0))
        if role != "prefill" or self.dialect.prefill_ttft:
            ns = request.first_token_ns + self._out() - self._arrived(request)
            counts.served[request not in self._whole].first(ns)

    def stepped(self, step: Step, replica: int, gaps: Sequence[Gap]) -> None:
        counts = self._counts[replica]
        tokens = counts.stepped(step, gaps)
        running = self._running.pop((replica, step.id), -1) if self._running else -1
        self.dialect.stepped(counts, self._cluster.replicas[replica], step, tokens, running)

    def recorded(self, request: Request, replica: int) -> None:
        if replica >= 0:
            self._ended(request, self._counts[replica])

    def _ended(self, request: Request, counts: Counts) -> None:
        """Count a request that has ended at a replica."""
        external = self._external.pop(request, 0)
        sent_ns, streamed = self._sent.pop(request, -1), request not in self._whole
        self._whole.discard(request)
        if request.leg is not None:
            self._sent.pop(request.leg, None)
            sent_ns = self._at_decode(request)
        state = request.state
        if state is State.FINISHED:
            counts.finished[request.reason] = counts.finished.get(request.reason, 0) + 1
        elif state is State.REJECTED:
            counts.refused += request.reason.startswith(QUEUE_FULL)
        else:
            counts.aborted += 1
        counted = state is State.FINISHED or (state is State.ABORTED and self.dialect.counts_aborted)
        if counted and request.scheduled_ns >= 0:
            counts.served[streamed].ended(request, self._end(request, sent_ns, external))

    def _end(self, request: Request, sent_ns: int, external: int) -> End:
        dialect, leg = self.dialect, request.leg
        cached = request.hit_tokens + external
        if leg is not None and dialect.prefill_ttft:
            cached = leg.hit_tokens  # the prefill engine tells the decode engine, which reports it
        return End(
            e2e_ns=request.finished_ns + self._out() - self._arrived(request),
            queue_ns=None if dialect.queue_at_admission else request.scheduled_ns - sent_ns,
            cached=cached,
            external=external,
            has_tpot=request.state is State.FINISHED and (request.num_output_tokens > 1 or dialect.tpot_of_one),
        )

    def _arrived(self, request: Request) -> int:
        """Return when a request arrived at the engine's server, in ns: behind vLLM's proxy, the decode engine gets it
        only after the prefill engine has answered."""
        at = self._at_decode(request) if request.leg is not None and self.dialect.prefill_ttft else -1
        return at if at >= 0 else request.arrival_ns

    def _at_decode(self, request: Request) -> int:
        passage = self._passages.get(request)
        return passage.sent_ns if passage is not None else -1

    def _out(self) -> int:
        if self._out_ns < 0:
            self._out_ns = self.driver.setup.out_ns
        return self._out_ns
