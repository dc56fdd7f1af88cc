"""Routers that hear of everything, wait and refuse: for worlds in which both modes must tell them the same."""

from __future__ import annotations

from typing import Any

from servesim.contracts import WAIT, Reject, Router, Wait, ready

PATIENT = Wait(most_ns=40_000_000, status=408, again_ns=3_000_000)
MOST = 3
"""Requests that it lets a replica have at once."""


class Lively(Router):
    """Sends to the replica with the least memory in use of those with room by its own count, and refuses every 11th
    decision; the shortest prompts of those that wait go first, and two of three wait no more than 40 ms."""

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.heard: list[tuple[Any, ...]] = []
        self._load = [0] * num_replicas
        self._asked = 0

    def note(self, *what: Any) -> None:
        self.heard.append((self.clock(), *what))

    def route(self, request: Any, views: Any) -> Any:
        seen = [(v.index, v.state, v.num_waiting, v.num_unread, v.num_running, v.kv_usage, v.at_ns) for v in views]
        self.note("route", request.row, seen)
        self._asked += 1
        if self._asked % 11 == 0:
            return Reject(429)
        free = [i for i in ready(views) if self._load[i] < MOST]
        if not free:
            return PATIENT if request.row % 3 else WAIT
        return min(free, key=lambda i: (views[i].kv_usage, self._load[i]))

    def queue_key(self, request: Any) -> Any:
        return request.prompt_len

    def on_sent(self, request: Any, replica: int) -> None:
        self._load[replica] += 1
        self.note("sent", request.row, replica)

    def on_prefill_done(self, request: Any, replica: int) -> None:
        self.note("first", request.row, replica)

    def on_finish(self, request: Any, replica: int, status: Any) -> None:
        self._load[replica] -= 1
        self.note("finish", request.row, replica, status)

    def on_dropped(self, request: Any) -> None:
        self.note("dropped", request.row)

    def on_replica(self, replica: int, state: Any) -> None:
        self._load += [0] * (replica + 1 - len(self._load))
        self.note("replica", replica, state)

    def on_report(self, replica: int, report: Any) -> None:
        self.note("report", replica, *report)


class Livelier(Lively):
    """Hears of blocks, too."""

    def on_output_block(self, request: Any, replica: int) -> None:
        self.note("block", request.row, replica, request.num_tokens)

    def on_kv_events(self, replica: int, events: Any) -> None:
        self.note("kv", replica, [type(event).__name__ for event in events])
