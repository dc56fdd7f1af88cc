"""Recordings of Dynamo's request tracing: JSON lines of schema dynamo.request.trace.v1.

The reader uses `request_end` events: request {request_id, request_received_ms, total_time_ms, output_tokens, replay
{trace_block_size, input_length, input_sequence_hashes}} and agent_context {session_id, parent_session_id}; and
`tool_end` events, which record which request waited for which sub-agent. Sequence hashes are prefix-chained and global.
Requests without a session are independent and sent at their recorded times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.workload.trace import COMPLETION, DISPATCH, RELATIONS, Trace

from . import _calls, _text
from ._calls import Call

NAME = "dynamo-trace"
ABOUT = "JSONL: dynamo.request.trace.v1 events (request_end, tool_end)"
SCHEMA = b"dynamo.request.trace.v1"
MS = 1_000_000
SEQUENCE, SPAWN, JOIN = (RELATIONS.index(name) for name in ("sequence", "spawn", "join"))


def detect(head: bytes) -> bool:
    return SCHEMA in head


def read(path: Path, *, timing: str = "think") -> Trace:
    _calls.check_timing(path, timing)
    requests: list[_Recorded] = []
    joins: list[tuple[str, str]] = []  # (child session, request waiting for it)
    numbers: dict[object, int] = {}
    for line, row in _text.json_lines(path):
        if row.get("event_type") == "request_end":
            requests.append(_Recorded(path, line, row, numbers))
        elif row.get("event_type") in ("tool_end", "tool_error"):
            joins += _blocking(row)
    requests.sort(key=lambda r: r.start)
    for position, recorded in enumerate(requests):
        recorded.position = position
    if timing != "open":
        _link(requests, joins, timing)
    start = requests[0].start if requests else 0
    for recorded in requests:  # with think time, a follower may be sent any time from the session's start
        follows = recorded.call.after and timing == "think"
        recorded.call.at_ns = requests[recorded.call.after[0][0]].call.at_ns if follows else recorded.start - start
    return _calls.build(path, [recorded.call for recorded in requests], (f"timing={timing}",))


class _Recorded:
    """A recorded request: its call, and the times at which the request was received and ended."""

    position: int

    def __init__(self, path: Path, line: int, row: dict[str, Any], numbers: dict[object, int]) -> None:
        request = _object(path, line, row, "request")
        replay = _object(path, line, request, "replay")
        context = row.get("agent_context") or {}
        self.session, self.parent = context.get("session_id"), context.get("parent_session_id")
        self.name = str(_text.need(path, line, request, "request_id"))
        received = _text.need(path, line, request, "request_received_ms")
        self.start = _calls.seconds_ns(path, line, "request_received_ms", received, MS)
        spent = _text.need(path, line, request, "total_time_ms")
        self.end = self.start + _calls.seconds_ns(path, line, "total_time_ms", spent, MS)
        prompt = _calls.count(path, line, "input_length", replay.get("input_length"))
        output = _calls.count(path, line, "output_tokens", request.get("output_tokens"))
        size = _calls.count(path, line, "trace_block_size", replay.get("trace_block_size"))
        hashes = replay.get("input_sequence_hashes")
        runs = _runs(path, line, hashes, prompt, size, numbers)
        labels = {"session": str(self.session or ""), "model": str(request.get("model") or "")}
        self.call = Call(line, 0, prompt, output, runs, [], labels, self.name)


def _runs(path: Path, line: int, hashes: object, prompt: int, size: int, numbers: dict[object, int]) -> _calls.Runs:
    """Return the runs of a prompt. Hashes identify full blocks, although some recorders also hash the partial last
    block."""
    full = prompt // size
    if isinstance(hashes, list) and len(hashes) == full and prompt % size:
        rest = numbers.setdefault(("tail", line), len(numbers))
        head = _calls.block_runs(path, line, hashes, full * size, size, numbers) if full else []
        return [*head, (rest, prompt % size)]
    return _calls.block_runs(path, line, hashes, prompt, size, numbers)


def _blocking(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (child session, request that used its result) if a tool call was a sub-agent that the request waited
    for."""
    said = [part for part in (row.get("tool") or {}).values() if isinstance(part, dict)]
    return [
        (str(part["child_session_id"]), str(part["consumer_request_id"]))
        for part in said
        if part.get("execution_mode", "blocking") == "blocking"
        and part.get("child_session_id")
        and part.get("consumer_request_id")
    ]


def _link(requests: list[_Recorded], joins: list[tuple[str, str]], timing: str) -> None:
    """Link each request to the previous request of its session, a child session's first request to its parent, and its
    last request to the request that waited for the child."""
    sessions: dict[str, list[_Recorded]] = {}
    by_name = {recorded.name: recorded for recorded in requests}
    for recorded in requests:
        if recorded.session:
            before = sessions.setdefault(str(recorded.session), [])
            if before:
                _follow(recorded, before[-1], SEQUENCE, timing)
            elif recorded.parent and (parents := sessions.get(str(recorded.parent))):
                _follow(recorded, parents[-1], SPAWN, timing)
            before.append(recorded)
    for child, consumer in joins:
        if child in sessions and consumer in by_name:
            last = sessions[child][-1]
            if last.end <= by_name[consumer].start:
                waits = by_name[consumer].call.after  # its pause was the sub-agent's work, which is now simulated
                waits[:] = [(source, trigger, 0, relation) for source, trigger, _, relation in waits]
                _follow(by_name[consumer], last, JOIN, timing)


def _follow(later: _Recorded, earlier: _Recorded, relation: int, timing: str) -> None:
    """Make a call wait for the end of an earlier one, or for the start of the earlier one if the two overlapped."""
    ended = earlier.end <= later.start
    pause = later.start - (earlier.end if ended else earlier.start) if timing == "think" else 0
    later.call.after.append((earlier.position, COMPLETION if ended else DISPATCH, pause, relation))


def _object(path: Path, line: int, row: dict[str, Any], key: str) -> dict[str, Any]:
    value = row.get(key)
    if not isinstance(value, dict):
        raise UserError(f"{path}: line {line}: there is no {key!r} object")
    return value
