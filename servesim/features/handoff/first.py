"""Protocols whose first token comes from the prefill side, with the KV: TensorRT-LLM's and SGLang's.

Between two steps the decode side checks for arrivals: their first token is sent to the client without a step of its
own, and the request joins the batch of the next step.

TensorRT-LLM (according to its documentation of disaggregated serving, 1.0; not checked against any recording): the
orchestrator sends a request to a context server. When that server has answered with the first token and the location of
the KV, the orchestrator sends the request to a generation server, which allocates memory and pulls the KV. Memory at
the source is kept until then.

SGLang (0.5.23, srt/disaggregation/prefill.py and decode.py): a request goes to both sides at the same time. The decode
side allocates memory first (its prealloc queue) and sends the location; until then, the prompt waits in the prefill
side's bootstrap queue. The decode side thus holds memory while the prompt waits and is computed. KV is sent when the
whole prompt is computed (SGLang sends each chunk as it is done, which makes no difference for prompts of one chunk). A
prompt whose handshake takes longer than the bootstrap timeout fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from simpy.events import Event

from servesim.contracts.params import check_least
from servesim.contracts.request import Request, State
from servesim.contracts.router import Router
from servesim.engine import remote_kv, turnover
from servesim.engine.clock import FOLLOW, LOADED
from servesim.features.handoff.part import Handoff
from servesim.features.handoff.passage import Passage
from servesim.features.handoff.wire import Wire

MS, SECOND = 1_000_000, 1_000_000_000
LOST = "its KV was lost to a preemption"
NO_HANDSHAKE = "no memory on the decode side within bootstrap_timeout_s"


class FirstFromPrefill(Handoff):
    """The common base of both protocols. A prompt that was preempted while its token was in flight has no KV, so its
    request fails."""

    brings_token = True

    def reserve(self, request: Request, start: int, stop: int) -> None:
        super().reserve(request, start, stop)
        passage = self.passages[request]
        if passage.crashed:
            self.source_lost(passage)

    def received(self, passage: Passage) -> None:
        passage.received_ns, passage.loading, passage.stop = self.clock.ns, False, None
        self.release(passage)
        replica = self.cluster.replicas[passage.decode]
        replica.at_boundary(partial(self._loaded, passage))

    def _loaded(self, passage: Passage) -> None:
        remote_kv.loaded(self.cluster.replicas[passage.decode], passage.request, True)
        turnover.left_draining(self.cluster, passage.decode)


@dataclass(frozen=True)
class TrtllmParams:
    """Settings of the orchestrator."""

    http_ms: float = 1.0
    """Milliseconds from the context server's answer to the generation server's queue. Assumed."""

    def __post_init__(self) -> None:
        check_least(self, 0, "http_ms")


class Trtllm(FirstFromPrefill):
    """TensorRT-LLM's protocol, as described above."""

    name = "trtllm"
    Params = TrtllmParams

    def __init__(
        self,
        wire: Wire,
        size_of: Callable[[Request, int, int], int],
        decode_router: Router | None = None,
        params: TrtllmParams | None = None,
    ) -> None:
        super().__init__(wire, size_of, decode_router)
        self._http_ns = round((params or TrtllmParams()).http_ms * MS)

    def prefilled(self, passage: Passage) -> None:
        if passage.prefilled:
            self.clock.at(self.clock.ns + self._http_ns, FOLLOW, lambda event: self.to_decode(passage))
        elif passage.request.state < State.FINISHED:
            self.cluster.end(passage.request, State.ABORTED, LOST)


@dataclass(frozen=True)
class SglangParams:
    """Settings of both sides."""

    handshake_ms: float = 1.0
    """Milliseconds from memory allocation on the decode side to the prompt's entry into the prefill side's queue.
    Assumed."""
    bootstrap_timeout_s: float = 300.0
    """Seconds that a prompt waits for its handshake."""

    def __post_init__(self) -> None:
        check_least(self, 0, "handshake_ms", "bootstrap_timeout_s")


class Sglang(FirstFromPrefill):
    """SGLang's protocol, as described above."""

    name = "sglang"
    Params = SglangParams

    def __init__(
        self,
        wire: Wire,
        size_of: Callable[[Request, int, int], int],
        decode_router: Router | None = None,
        params: SglangParams | None = None,
    ) -> None:
        super().__init__(wire, size_of, decode_router)
        own = params or SglangParams()
        self._handshake_ns, self._patience_ns = round(own.handshake_ms * MS), round(own.bootstrap_timeout_s * SECOND)
        self._begun: set[Request] = set()  # prompts that are in the prefill side's queue

    def started(self, passage: Passage) -> None:
        self.clock.at(self.clock.ns + self._patience_ns, FOLLOW, partial(self._late, passage))
        self.to_decode(passage)

    def reserve(self, request: Request, start: int, stop: int) -> None:
        super().reserve(request, start, stop)
        self.clock.at(self.clock.ns + self._handshake_ns, FOLLOW, partial(self._shaken, self.passages[request]))

    def _shaken(self, passage: Passage, event: Event) -> None:
        if passage.request.state < State.FINISHED and not passage.lost:
            self._begun.add(passage.leg)
            self.cluster.replicas[passage.prefill].arrive(passage.leg, 1)

    def _late(self, passage: Passage, event: Event) -> None:
        if passage.reserved_ns < 0 and passage.request.state < State.FINISHED and not passage.lost:
            self._abort(passage.request, NO_HANDSHAKE)

    def prefilled(self, passage: Passage) -> None:
        if passage.prefilled and passage.loading:
            self.transfer(passage)
        elif passage.request.state < State.FINISHED:
            self._abort(passage.request, LOST)

    def arrived(self, request: Request) -> bool:
        return request.owner is None or request in self._begun

    def lose(self, passage: Passage) -> None:
        super().lose(passage)
        self._begun.discard(passage.leg)

    def failed(self, passage: Passage) -> None:
        self._abort(passage.request, passage.leg.reason)

    def _abort(self, request: Request, reason: str) -> None:
        """End a request that waits on the decode side, or for a decode replica to be ready."""
        passage = self.passages[request]
        if passage.sent_ns < 0:
            self.cluster.end(request, State.ABORTED, reason)
            return
        replica = self.cluster.replicas[passage.decode]
        replica.catch_up()
        replica.core.abort(request, self.clock.ns, reason)

    def left(self, request: Request) -> None:
        """Handle the departure of a request: cancel its prompt if it is not computed yet, and free its memory on the
        decode side."""
        passage = self.passages.get(request)
        if passage is not None and not passage.prefilled:
            replica, leg = self.cluster.replicas[passage.prefill], passage.leg
            if leg.state < State.FINISHED and self.arrived(leg):
                replica.catch_up()
                replica.core.abort(leg, self.clock.ns, request.reason)
            elif leg.state < State.FINISHED:
                leg.state, leg.reason = State.ABORTED, request.reason
                self.cluster.telling.finish(leg)
            if passage.loading:
                passage.loading = False
                self.clock.at(self.clock.ns, LOADED, partial(self._free, passage))
        if passage is not None:
            self._begun.discard(passage.leg)
        super().left(request)

    def _free(self, passage: Passage, event: Event) -> None:
        remote_kv.load_failed(self.cluster.replicas[passage.decode], passage.request, passage.request.reason)
