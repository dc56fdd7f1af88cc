"""Weka / kv-cache-tester sessions of coding agents (callanjfox/kv-cache-tester; SemiAnalysis' corpora): JSON.

One object per session, one per file (pass the folder) or one per line: {"id", "block_size": 64, "requests": [{"t": s,
"type": "n" | "s", "model", "in", "out", "hash_ids", "think_time": s, "api_time": s}, ...]}. The ids name full blocks
(floor(in / 64)), are prefix-chained and are comparable only within a session; runs of ids may be encoded as "h":
[[first, count], ...]. {"type": "subagent", "t", "duration_ms", "requests"} is an agent that the previous call started,
with times relative to its own start (t is its end time). The next call waits for the sub-agent if it did so in the
recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown
from servesim.untrusted import read_json, read_start
from servesim.workload.trace import COMPLETION, RELATIONS, Trace

from . import _calls, _text, first_of
from ._blocks import SessionBlocks
from ._calls import Call

NAME = "weka"
ABOUT = "JSON, one object per session: id, block_size, requests[{t, type, in, out, hash_ids, think_time}, ...]"
FOLDERS = True
SEQUENCE, SPAWN, JOIN = (RELATIONS.index(name) for name in ("sequence", "spawn", "join"))
CONTENTS = ("outputs", "prompts")
SLACK_NS = 1_000_000_000  # timestamps have a resolution of 1 s


def detect(head: bytes) -> bool:
    start = head.lstrip()[:4000].replace(b" ", b"").replace(b"\n", b"")
    return start.startswith(b"{") and b'"block_size"' in start and b'"requests":[' in start and b'"schema"' not in start


def read(path: Path, *, timing: str = "think", content: str = "outputs", duplicates: str = "keep") -> Trace:
    """Read sessions. With `content="outputs"`, the first prompt that extends an earlier call's whole prompt is assumed
    to continue with that call's output, as agents' prompts do, although the file has hashes of prompts only; with
    "prompts", this is not assumed. `duplicates="drop"` leaves out sessions that are marked as copies of another
    session."""
    _calls.check_timing(path, timing)
    if content not in CONTENTS:
        raise UserError(f"{path}: content is {content!r} but must be one of {', '.join(CONTENTS)}")
    if duplicates not in ("keep", "drop"):
        raise UserError(f"{path}: duplicates is {duplicates!r} but must be keep or drop")
    calls: list[Call] = []
    silent = dropped = 0
    next_id = 0
    for file, line, session in _sessions(path):
        if duplicates == "drop" and session.get("dup_of"):
            dropped += 1
            continue
        size = _calls.count(file, line, "block_size", session.get("block_size"))
        blocks = SessionBlocks(size, next_id, content == "outputs")
        reader = _Reader(file, line, session, timing, calls, blocks)
        reader.thread(_text.need(file, line, session, "requests"), 0)
        next_id = reader.content.next_id
        silent += reader.silent
    notes = [f"timing={timing}"]
    if content == "outputs":
        notes.append("a prompt that extends an entire earlier prompt is assumed to contain its output")
    if silent:
        notes.append(f"{silent} calls without output counted as having one output token")
    if dropped:
        notes.append(f"skipped {dropped} duplicate sessions")
    return _calls.build(path, calls, tuple(notes))


class _Reader:
    """Calls of one session, appended to the list of all calls."""

    def __init__(
        self, path: Path, line: int, session: dict[str, Any], timing: str, calls: list[Call], content: SessionBlocks
    ) -> None:
        self.path, self.line, self.timing, self.calls, self.content = path, line, timing, calls, content
        self.play = str(_text.need(path, line, session, "id"))
        self.silent = 0

    def thread(self, entries: Any, start_ns: int, parent: int = -1, parent_end: int = 0, agent: str = "") -> int:
        """Add the calls of one agent and return the position of the last one (`parent` if the agent makes none).
        `parent` is the call that started the agent and that ended at `parent_end`, or -1 for the session's own
        agent."""
        if not isinstance(entries, list):
            raise UserError(f"{self.path}: line {self.line}: requests of {self.play} must be a list")
        last, end = parent, parent_end
        relation = SPAWN if parent >= 0 else SEQUENCE
        agents: list[tuple[int, int]] = []  # running agents: (last call, end time)
        for entry in entries:
            _object(self.path, self.line, entry)
            at = start_ns + self._seconds(entry, "t")
            if entry.get("type") == "subagent":
                spent = self._milliseconds(entry, "duration_ms")
                begun = at - spent if at - spent >= end - SLACK_NS else at  # t is its end or its start
                name = f"{agent}::{entry.get('agent_id', len(self.calls))}"
                child = self.thread(_text.need(self.path, self.line, entry, "requests"), begun, last, end, name)
                agents += [(child, begun + spent)] if child != last else []
                continue
            joined = [(child, ended) for child, ended in agents if ended <= at]
            agents = [(child, ended) for child, ended in agents if ended > at]
            edges = [(last, COMPLETION, self._pause(entry, at, end, relation, joined), relation)] if last >= 0 else []
            rest = at - max((ended for _, ended in joined), default=at) if self.timing == "think" else 0
            edges += [(child, COMPLETION, rest, JOIN) for child, _ in joined]
            last, end, relation = self._call(entry, at, edges, agent), at + self._spent(entry), SEQUENCE
        return last

    def _call(self, entry: dict[str, Any], at: int, edges: list[_calls.Edge], agent: str) -> int:
        path, line, position = self.path, self.line, len(self.calls)
        prompt = _calls.count(path, line, "in", entry.get("in"))
        output = _calls.count(path, line, "out", entry.get("out"), 0)
        self.silent += output == 0
        output = max(output, 1)
        runs = self.content.add(path, line, position, self._blocks(entry), prompt, output)
        at = {"think": 0, "original": at, "open": at}[self.timing]
        edges = [] if self.timing == "open" else edges
        labels = {"play": self.play, "session": self.play + agent, "model": str(entry.get("model", ""))}
        self.calls.append(Call(line, at, prompt, output, runs, edges, labels, f"{self.play}/{position}"))
        return position

    def _blocks(self, entry: dict[str, Any]) -> list[tuple[int, int]]:
        """Return the block ids as (first, count) runs of consecutive ids."""
        coded = entry.get("h")
        if coded is None:
            coded = [(i, 1) for i in _text.need(self.path, self.line, entry, "hash_ids")]
        runs: list[tuple[int, int]] = []
        try:
            for first, count in coded:
                _text.whole_number(first, 0, 1 << 62)
                _text.whole_number(count, 1, _text.MAX_TOKENS)
                if runs and runs[-1][0] + runs[-1][1] == first:
                    runs[-1] = (runs[-1][0], runs[-1][1] + count)
                else:
                    runs.append((first, count))
        except (TypeError, ValueError):
            raise UserError(f"{self.path}: line {self.line}: hash_ids of {self.play} must be whole numbers") from None
        return runs

    def _pause(self, entry: dict[str, Any], at: int, end: int, relation: int, joined: list[tuple[int, int]]) -> int:
        """Return the client's own wait between the end of the previous call and this call, or 0 if sub-agents ran in
        between, since that time was theirs."""
        if self.timing != "think" or joined:
            return 0
        if relation == SEQUENCE and entry.get("think_time") is not None:
            return self._seconds(entry, "think_time")
        return max(at - end, 0)

    def _spent(self, entry: dict[str, Any]) -> int:
        return self._seconds(entry, "api_time") if entry.get("api_time") else 0

    def _seconds(self, entry: Any, key: str) -> int:
        return _calls.seconds_ns(self.path, self.line, key, _text.need(self.path, self.line, entry, key))

    def _milliseconds(self, entry: dict[str, Any], key: str) -> int:
        return _calls.seconds_ns(self.path, self.line, key, entry.get(key) or 0, 1_000_000)


def _object(path: Path, line: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{path}: line {line}: expected a JSON object, found {shown(value)}")
    return value


def _sessions(path: Path) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """Yield (file, line, session) for each file of a folder, or for one file that holds one session or one per line."""
    if path.is_dir():
        first_of(path)
        for file in sorted(path.glob("*.json*")):
            yield from _sessions(file)
        return
    start = read_start(path)
    if "\n" in start.strip() and not start.split("\n", 1)[0].rstrip().endswith("}"):  # one multi-line object
        yield path, 1, _object(path, 1, read_json(path))
        return
    for line, session in _text.json_lines(path):
        yield path, line, session
