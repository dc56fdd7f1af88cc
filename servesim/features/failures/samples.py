"""Requests with several samples (n > 1) whose replica is lost.

All samples of a request are one HTTP request to one server, so a gateway can send again only the whole, and only before
any sample has a token (sglang-router 0.3.2, vllm-router 0.1.17). After that the request fails, also where others
migrate: ai-dynamo-runtime 1.6.1 turns migration off for n > 1, as it cannot pass on what each choice has generated
(migration.rs). A server that computes the prompt first for all samples (SGLang) does so again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from simpy.events import Event

from servesim.contracts.part import ClusterView
from servesim.contracts.request import Deadline, ParentRequest, Request, State
from servesim.engine.clock import ARRIVE, RECALL
from servesim.engine.telling import LOST
from servesim.features.failures.again import prompt_again, renew


@dataclass
class Group:
    """Samples of a request, and what computes its prompt for them first, with their output lengths."""

    here: dict[Request, int] = field(default_factory=dict)
    """Those that were sent to its replica."""
    missed: dict[Request, int] = field(default_factory=dict)
    """Those that have just been sent to a replica that is down."""
    held: dict[Request, int] = field(default_factory=dict)
    """Those that will be sent again."""
    prompt: Request | None = None
    """The last request that computed its prompt first, if it is served so."""
    times_lost: int = 0


class SampleGroups:
    """Requests with several samples that have been sent to a replica and have not left. `pause_ns` returns the pause
    before a request is sent again, given the number of times that it has been."""

    def __init__(self, cluster: ClusterView, reroutes: int, pause_ns: Callable[[int, int], int]) -> None:
        self._cluster, self._reroutes, self._pause_ns = cluster, reroutes, pause_ns
        self._groups: dict[ParentRequest, Group] = {}

    def num_held(self) -> int:
        """Return the number of samples outside of replicas, which will be sent again unless the whole has failed."""
        return sum(len(group.held) + len(group.missed) for group in self._groups.values())

    def at(self, index: int) -> list[Request]:
        """Return the samples that a replica has, forked ones too."""
        found: list[Request] = []
        for parent, group in self._groups.items():
            if parent.replica == index:
                found += group.here
                found += (
                    each for each in parent.sent if each.replica < 0 and State.WAITING < each.state < State.FINISHED
                )
        return found

    def keeps(self, index: int) -> bool:
        """Return whether samples of a request that a replica has served in part may still come to it."""
        return any(parent.replica == index for parent in self._groups)

    def sent(self, parent: ParentRequest, request: Request, output_len: int) -> None:
        """Handle a sample that is sent to a replica."""
        group = self._groups.setdefault(parent, Group())
        group.here[request] = output_len
        if request.sample < 0:
            group.prompt = request

    def missed(self, parent: ParentRequest, request: Request) -> None:
        """Handle a sample that has been sent to a replica that is down, as the others are at this instant."""
        group, clock = self._groups[parent], self._cluster.clock
        group.missed[request] = group.here.pop(request)
        if len(group.missed) == 1:
            clock.at(clock.ns, ARRIVE, lambda event: self.lose(parent, [*group.missed]))

    def lose(self, parent: ParentRequest, lost: Iterable[Request]) -> None:
        """Send a request again after a pause, as these samples were lost with its replica, or let it fail."""
        cluster, group = self._cluster, self._groups[parent]
        sent = group.here | group.missed
        lengths = {request: sent.get(request, 0) for request in lost}
        if not lengths:
            return
        group.times_lost += 1
        for request in lengths:
            group.here.pop(request, None)
            group.missed.pop(request, None)
            if request in sent:
                cluster.lost(request)
            request.state, request.reason, request.replica = State.ABORTED, LOST, parent.replica
        for request in [each for each in lengths if each in sent] or [*lengths][:1]:
            cluster.telling.finish(request)
        parent.replica = -1
        if parent.first_token_ns >= 0 or group.times_lost > self._reroutes:
            waiting = [each for each in parent.sent if cluster.waiting.holds(each)]
            for request in [*lengths, *waiting]:
                cluster.end(request, State.ABORTED, LOST)
            for request in [*group.held]:
                cluster.end(request, State.ABORTED, LOST)
            return
        for request in lengths:
            renew(request)
        group.held |= lengths
        pause = self._pause_ns(parent.number, group.times_lost - 1)
        cluster.clock.at(cluster.clock.ns + pause, RECALL, partial(self._again, parent))

    def _again(self, parent: ParentRequest, event: Event) -> None:
        """Send a request again: first what computes its prompt, if it is served so."""
        group = self._groups.get(parent)
        if group is None or not group.held:  # its client has given up
            return
        prompt = group.prompt
        if prompt is None:
            self._send_held(parent)
        elif prompt in group.held:
            self._cluster.place(prompt, group.held.pop(prompt))
        else:
            group.prompt = prompt_again(prompt)
            self._cluster.enter(group.prompt, 1)

    def _send_held(self, parent: ParentRequest) -> None:
        group = self._groups.get(parent, Group())
        held, group.held = group.held, {}
        for request in sorted(held, key=lambda each: each.sample):
            self._cluster.place(request, held[request])

    def left(self, parent: ParentRequest, request: Request) -> None:
        """Handle a sample that has left the run. With a prompt that was not computed, those that wait for it fail."""
        group = self._groups.get(parent)
        if group is None:  # it has never been sent
            return
        for those in (group.here, group.missed, group.held):
            those.pop(request, None)
        clock, finished = self._cluster.clock, request.state is State.FINISHED
        if request.sample < 0 and group.held:
            if finished:
                clock.at(clock.ns, RECALL, lambda event: self._send_held(parent))
            for each in [] if finished else [*group.held]:
                self._cluster.end(each, request.state, request.reason)
        num_gone = parent.num_gone + (request.sample > 0)
        over = num_gone == len(parent.sent) or (request.sample < 0 and not finished)
        if over and self._groups.pop(parent, None) is not None and request.sample > 0:
            self._give_up(group, request.reason)

    def _give_up(self, group: Group, reason: str) -> None:
        """Cancel what computes a prompt again for samples that have all left."""
        prompt, cluster = group.prompt, self._cluster
        if prompt is None or prompt.state >= State.FINISHED:
            return
        if prompt in group.here:
            cluster.replicas[prompt.replica].give_up(prompt, Deadline(cluster.clock.ns, False, reason))
        else:
            cluster.end(prompt, State.ABORTED, reason)
