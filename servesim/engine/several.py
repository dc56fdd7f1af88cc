"""Several connectors of one replica, as one (vLLM 0.33's MultiConnector:
vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py).

A waiting request is looked up in all of them, in their order. The first one that has KV of it loads all that it has,
and the others are told that they are passed over. If one does not know yet, the request waits. All are told of steps
and preemptions; if several make a step end later, each waits for the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from servesim.contracts.connector import DEFER, Connector
from servesim.contracts.request import Request


class Several(Connector):
    """The connectors of one replica, in order of preference."""

    def __init__(self, connectors: Sequence[Connector]) -> None:
        self.connectors = tuple(connectors)
        self._asked: tuple[Request | None, Connector | None] = (None, None)  # last request looked up, and its source

    def available(self, request: Request, num_tokens: int) -> int:
        found, source = 0, None
        for each in self.connectors:
            tokens = each.available(request, num_tokens)
            if tokens == DEFER:
                found, source = DEFER, None
                break
            if tokens and source is None:
                found, source = tokens, each
        self._asked = (request, source)
        self.in_step = source is not None and source.in_step
        return found

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        if self._asked[0] is not request:
            self.available(request, start)
        source = self._asked[1]
        assert source is not None
        end_ns = source.load(request, start, stop, now)
        for each in self.connectors:
            if each is not source:
                each.passed_over(request)
        return end_ns

    def join(self, replica: Any) -> None:
        for each in self.connectors:
            each.join(replica)

    def ran(self, requests: Iterable[Request], begin_ns: int, end_ns: int) -> int:
        for each in self.connectors:
            end_ns = each.ran(requests, begin_ns, end_ns)
        return end_ns

    def turns_apart(self, committed: int, most: int) -> int:
        return min(each.turns_apart(committed, most) for each in self.connectors)

    def ran_turns(self, committed: int, count: int, ends: Sequence[int], depth: int) -> None:
        for each in self.connectors:
            each.ran_turns(committed, count, ends, depth)

    def preempted(self, requests: Iterable[Request]) -> int:
        return max(each.preempted(requests) for each in self.connectors)


def joined(known: Connector | None, more: Connector, first: bool) -> Connector:
    """Return a replica's connector with one more, which is preferred if it comes `first`. Raise ValueError if a load
    of a known one also brings the first token, and the new one would come before it."""
    if known is None:
        return more
    others = known.connectors if isinstance(known, Several) else (known,)
    if first and any(each.brings_token for each in others):
        raise ValueError("KV that comes with the first token must come from the prefill replica")
    return Several([more, *others] if first else [*others, more])
