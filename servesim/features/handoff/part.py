"""Requests whose prefill runs on one replica and whose decode runs on another, and the transfer between them.

The prompt is computed by a separate request (its `owner` is the request that is served), which may generate one token
and whose memory is kept after it has finished. The other replica receives the KV under the connector contract: blocks
are allocated there, the transfer goes over a `Wire`, and when it ends, the memory at the source is freed. The order of
the waits depends on the protocol, a subclass of Handoff.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from simpy.events import Event

from servesim.contracts.part import ClusterView, Finished, Part, Served
from servesim.contracts.request import Deadline, Request, State
from servesim.contracts.router import Decision, Pair, ReplicaState, Role, Router, Views
from servesim.engine import remote_kv, turnover
from servesim.engine.clock import LOADED
from servesim.engine.replica import Replica
from servesim.engine.telling import Telling
from servesim.errors import PolicyError
from servesim.features.handoff import losses
from servesim.features.handoff.arrivals import Arrivals
from servesim.features.handoff.passage import Passage, leg_of
from servesim.features.handoff.stages import Stages
from servesim.features.handoff.straight import Straight
from servesim.features.handoff.wire import Wire


class Handoff(Part, ABC):
    """A protocol between prefill and decode replicas.

    `size_of`: returns the bytes sent for tokens from `start` to `stop` of a request. `decode_router`: chooses the
    decode replica if the router does not return a Pair; it is created in the same way as the router.
    """

    name: ClassVar[str] = "?"
    brings_token: ClassVar[bool] = False
    """Whether the first token comes from the prefill side, with the KV."""

    def __init__(
        self, wire: Wire, size_of: Callable[[Request, int, int], int], decode_router: Router | None = None
    ) -> None:
        self.wire, self.size_of, self.decode_router = wire, size_of, decode_router
        self.passages: dict[Request, Passage] = {}
        """Passages of requests that have not left."""
        self.done: list[Passage] = []
        """Passages of requests that have left and whose records are not complete."""
        self.stages = Stages()
        """Sums over the others."""
        self.said = ""
        """Note for the reader."""
        self.straight: Straight | None = None
        """Choice of the requests that decode replicas serve alone; None: there are none."""
        self._homeless: list[Passage] = []  # computed prompts for which no decode replica is ready
        self._held: dict[Request, Passage] = {}  # by leg: memory kept at the source

    def join(self, cluster: ClusterView) -> None:
        """Attach to this cluster. The cluster calls this method once."""
        self.cluster, self.clock = cluster, cluster.clock
        self.wire.join(self.clock)
        self.telling: Telling | None = None
        if self.decode_router is not None:
            cluster.router.role, self.decode_router.role = "prefill", "decode"
            self.telling = Telling(self.decode_router, self.clock, cluster.waiting.recall, forks=False)
        if self.straight is not None:
            self.straight.join(self)
        telling: Telling = self.telling or cluster.telling
        self._tell_sent = telling.sent if telling.wants("sent") else None

    def core_made(self, replica: Replica) -> None:
        self.wire.attach(replica.index, self.cluster.fleet.pool_of[replica.index])
        if replica.role == "prefill":
            replica.on_leave = self.leg_left
        elif replica.role == "decode":
            replica.connect(Arrivals(self))
            if self.telling is not None:
                self.telling.core_made(replica)
                replica.on_leave = self._answered

    def _answered(self, request: Request) -> None:
        assert self.telling is not None
        self.cluster.gone(request)
        self.telling.finish(request)

    def wants(self, verb: str) -> bool:
        return super().wants(verb) and (verb != "sends" or self.straight is not None)

    def sends(self, request: Request, output_len: int) -> bool:
        return self.straight is not None and self.straight.sends(request, output_len)

    def takes(self, request: Request, output_len: int, decision: Decision) -> bool:
        apart = isinstance(decision, Pair) or (
            isinstance(decision, int)
            and 0 <= decision < len(self.cluster.replicas)
            and self.cluster.replicas[decision].role == "prefill"
        )
        if apart:
            self.begin(request, output_len, decision)
        elif self.straight is not None:
            self.straight.release(request)
        return apart

    def begin(self, request: Request, output_len: int, decision: Any) -> None:
        """Send a request to the replica that computes its prompt."""
        prefill, decode = decision if isinstance(decision, Pair) else (decision, -1)
        for index, role in ((prefill, "prefill"), (decode, "decode")):
            if index >= 0 and self.cluster.replicas[index].role != role:
                own = self.cluster.replicas[index].role
                raise PolicyError(f"{self.cluster.router.name}: sends {role} to replica {index}, whose role is {own}")
        promised = self.straight.promised(request, decode) if self.straight is not None else -1
        leg = request.leg = leg_of(request)
        leg.replica = request.replica = prefill
        passage = self.passages[request] = Passage(request, output_len, leg, prefill, max(promised, decode))
        passage.promised = promised >= 0
        self.cluster.tell_sent(leg, output_len, prefill)
        if self.cluster.reaches(leg, prefill):
            self.started(passage)

    def started(self, passage: Passage) -> None:
        """Handle the choice of a prefill replica. By default the prompt arrives there immediately."""
        self.cluster.replicas[passage.prefill].arrive(passage.leg, 1)

    def leg_left(self, leg: Request) -> None:
        """Handle a prompt that has left its replica because it is computed or has failed."""
        request = leg.owner
        assert request is not None
        passage = self.passages[request]
        if leg.state is State.FINISHED:
            if self.cluster.replicas[passage.prefill].core.kv.slots(leg) >= leg.prompt_len:
                self._held[leg] = passage
                leg.being_read += 1
            else:  # preempted while its token was in flight
                passage.released_ns = self.clock.ns
            self.prefilled(passage)
        self.cluster.telling.finish(leg)
        if leg.state is not State.FINISHED and request.state < State.FINISHED:
            self.failed(passage)
        turnover.left_draining(self.cluster, passage.prefill)

    @abstractmethod
    def prefilled(self, passage: Passage) -> None:
        """Handle a prompt that is computed at this instant."""

    def failed(self, passage: Passage) -> None:
        """End a request whose prompt was refused or aborted."""
        self.cluster.end(passage.request, passage.leg.state, passage.leg.reason)

    def to_decode(self, passage: Passage) -> None:
        """Send a request to its decode replica at this instant, or as soon as one is ready."""
        request = passage.request
        if request.state >= State.FINISHED or passage.lost:
            return
        if passage.decode < 0:
            passage.decode = self.choose(request)
            if passage.decode < 0:
                self._homeless.append(passage)
                return
        request.replica = passage.decode
        if not passage.promised:
            self.tell_sent(request, passage.output_len, passage.decode)
        passage.promised = False
        self.cluster.tell_passed_on(request, passage.output_len, passage.decode)
        if not self.cluster.reaches(request, passage.decode):
            return
        passage.sent_ns = self.clock.ns
        self.cluster.replicas[passage.decode].arrive(request, passage.output_len)

    def tell_sent(self, request: Request, output_len: int, decode: int) -> None:
        """Notify the decode router that a request goes to a decode replica."""
        if self._tell_sent is not None:
            self._tell_sent(request, output_len, decode)

    def choose(self, request: Request, role: Role = "decode", router: Router | None = None) -> int:
        """Return the replica of a role that `router` (default: the decode router) chooses, or -1 if none is ready."""
        fleet, router = self.cluster.fleet, router or self.decode_router
        ready = [
            replica.index
            for replica, pool in zip(fleet.replicas, fleet.pool_of, strict=True)
            if pool.role == role and replica.state == "ready" and pool.serves(request.model)
        ]
        if not ready:
            return -1
        views = Views(fleet.replicas)
        views.ready = ready
        assert router is not None
        index = router.route(request, views)
        if not isinstance(index, int) or index not in ready:
            raise PolicyError(f"router {router.name}: chooses {index!r} among the {role} replicas {ready}")
        return index

    def state_changed(self, index: int, state: ReplicaState) -> None:
        """Notify the decode router, and send on the requests that wait for a decode replica to be ready."""
        if self.telling is not None and self.cluster.replicas[index].role == "decode":
            self.telling.state_changed(index, state)
        homeless, self._homeless = self._homeless, []
        for passage in homeless:
            self.to_decode(passage)

    def held(self) -> int:
        return len(self._waiting())

    def held_for(self, pool: Any) -> int:
        return sum(pool.serves(request.model) for request in self._waiting()) if pool.role == "decode" else 0

    def _waiting(self) -> list[Request]:
        """Return the requests whose prompt is computed and for which no decode replica is ready."""
        return [p.request for p in self._homeless if not p.lost and p.request.state < State.FINISHED]

    # Replicas that crash or drain.

    def crashed(self, index: int) -> list[Request]:
        return losses.crashed(self, index)

    def lost(self, request: Request) -> None:
        passage = self.passages.get(request)
        if passage is not None and not passage.lost:
            self.lose(passage)
        elif self.straight is not None:
            self.straight.lost(request)

    def lose(self, passage: Passage) -> None:
        """Take back what was done for a request that was lost with a replica of either side."""
        told = passage.sent_ns >= 0
        losses.take_back(self, passage)
        self.unread(passage, told)

    def unread(self, passage: Passage, told: bool) -> None:
        """Handle KV that its decode side, which has crashed, will not read; `told`: it knew of the KV. By default the
        memory at the source, if there is any, is freed at once."""
        self.release(passage)

    def arrived(self, request: Request) -> bool:
        """Return whether a request, or the one that computes its prompt, has arrived at the replica it was sent to."""
        return True

    def source_lost(self, passage: Passage) -> None:
        """Handle a passage whose KV was lost with the source, and whose decode side has memory for it."""
        self.clock.at(self.clock.ns, LOADED, partial(self.load_fails, passage))

    def load_fails(self, passage: Passage, event: Event) -> None:
        """Let a request whose KV is gone fail. It is still waiting for it."""
        losses.load_fails(self, passage, losses.GONE if not passage.crashed else losses.CRASHED)

    def keeps(self, index: int) -> bool:
        return losses.keeps(self, index)

    def network_changed(self, index: int, factor: float) -> None:
        self.wire.slow(index, factor)

    # The transfer.

    def available(self, request: Request) -> bool:
        """Return whether a request has KV to be read."""
        passage = self.passages.get(request)
        return passage is not None and passage.reserved_ns < 0

    def reserve(self, request: Request, start: int, stop: int) -> None:
        """Handle the allocation of memory on the decode side for a request's tokens from `start` to `stop`."""
        passage = self.passages[request]
        passage.reserved_ns, passage.loading = self.clock.ns, True
        passage.num_bytes = self.size_of(passage.request, start, stop)
        if passage.prefilled:
            self.transfer(passage)

    def transfer(self, passage: Passage) -> None:
        """Begin the transfer."""
        done = partial(self.received, passage)
        passage.stop = self.wire.send(passage.prefill, passage.decode, passage.num_bytes, passage.leg, done)

    def received(self, passage: Passage) -> None:
        """Handle the end of a request's KV transfer."""
        passage.received_ns, passage.loading, passage.stop = self.clock.ns, False, None
        self.release(passage)
        remote_kv.loaded(self.cluster.replicas[passage.decode], passage.request)
        turnover.left_draining(self.cluster, passage.decode)

    def release(self, passage: Passage) -> None:
        """Free the memory at the source."""
        if self._held.pop(passage.leg, None) is not None:
            passage.released_ns = self.clock.ns
            remote_kv.read(self.cluster.replicas[passage.prefill], passage.leg)
            turnover.left_draining(self.cluster, passage.prefill)

    def passed_over(self, request: Request) -> None:
        """Handle that the decode side has a request's KV from elsewhere: it is not sent."""
        if self.available(request):
            passage = self.passages[request]
            passage.reserved_ns = self.clock.ns
            self.clock.at(self.clock.ns, LOADED, lambda event: self.release(passage))

    # The end.

    def gives_up(self, request: Request, deadline: Deadline) -> bool:
        """Cancel a request that is on the prefill side or between the two; return False if it is not there."""
        passage = self.passages.get(request)
        if passage is None or request.state >= State.FINISHED or passage.sent_ns >= 0 or passage.lost:
            return False
        if deadline.first_token and request.first_token_ns >= 0:
            return True
        if passage.leg.state < State.FINISHED and self.arrived(passage.leg):
            self.cluster.replicas[passage.prefill].give_up(passage.leg, deadline)
        else:
            self.cluster.end(request, State.ABORTED, deadline.reason)
        return True

    def left(self, request: Request) -> None:
        """Handle the departure of a request: free the memory still kept at the source, unless it is being read."""
        passage = self.passages.pop(request, None)
        if self.straight is not None:
            self.straight.left(request, passage)
        if passage is None:
            return
        if self.has_end:
            self.done.append(passage)
        if not passage.loading and not passage.lost:
            self.release(passage)
        for index in (passage.prefill, passage.decode):
            if index >= 0:
                turnover.left_draining(self.cluster, index)

    # After the run.

    def columns(self, rows: Any) -> dict[str, Any]:
        from servesim.features.handoff.figures import stage_columns

        return stage_columns(self, rows)

    def figures(self, finished: Finished) -> dict[str, Any]:
        from servesim.features.handoff.figures import DISAGGREGATION, Passed

        return {"disaggregation": DISAGGREGATION.of(Passed(self, finished.requests.duration_ns))}

    def served(self, rows: Any) -> Served:
        from servesim.features.handoff.figures import served

        passages = self.passages_of(rows)
        return Served([passage.request.row for passage in passages], served(passages))

    def passages_of(self, rows: Any) -> list[Passage]:
        """Return the passages of requests with these row numbers. A request is recorded just before it leaves."""
        numbers = {*rows.tolist()}
        return [each for each in (*self.done, *self.passages.values()) if each.request.row in numbers]

    def settled(self, requests: Any) -> None:
        straight = self.straight.take(requests.table["row"]) if self.straight is not None else None
        self.stages.add(requests, self.columns(requests.table["row"]), straight)
        numbers = {*requests.table["row"].tolist()}
        self.done = [passage for passage in self.done if passage.request.row not in numbers]

    def notes(self, summary: Mapping[str, Any]) -> list[str]:
        return [self.said]
