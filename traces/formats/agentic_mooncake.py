"""Dynamo's agentic Mooncake format, version 2: requests of agents with typed dependencies, as JSON lines.

A header {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size", "hash_id_scope", "source"}, then requests
with request_id, play_id, session_id, model, input_length, output_length, hash_ids (of blocks, the last partial; ids of
scope "local" are comparable only within a play), not_before_ms, priority, policy_class and dependencies [{request_id,
trigger: dispatch | completion, delay_ms, relation: sequence | spawn | join | replay_barrier}].
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown, suggest
from servesim.workload.trace import RELATIONS, TRIGGERS, Trace

from .. import prefix
from . import _calls, _text
from ._calls import Call

NAME = "agentic-mooncake"
ABOUT = "JSONL: a dynamo.agentic_mooncake header, then request_id, play_id, input_length, hash_ids, dependencies"
SCHEMA, VERSION = "dynamo.agentic_mooncake", 2
HOLDS = frozenset({"content", "sessions", "session", "play", "model", "class", "priority"})
MS = 1_000_000
FINEST = 16  # tokens per block for content not in blocks: engines' usual default


def detect(head: bytes) -> bool:
    first = _text.first_object(head)
    return first is not None and first.get("schema") == SCHEMA


def read(path: Path) -> Trace:
    rows = _text.json_lines(path)
    number, header = next(rows)
    if header.get("version") != VERSION:
        raise UserError(f"{path}: line {number}: version is {shown(header.get('version'))} but must be {VERSION}")
    size = _calls.count(path, number, "block_size", header.get("block_size"))
    scope = header.get("hash_id_scope")
    if scope not in ("local", "global"):
        raise UserError(f"{path}: line {number}: hash_id_scope is {shown(scope)} but must be local or global")
    calls: list[Call] = []
    waits: list[Any] = []
    numbers: dict[object, int] = {}
    positions: dict[str, int] = {}
    for number, row in rows:
        name = str(_text.need(path, number, row, "request_id"))
        if name in positions:
            raise UserError(f"{path}: line {number}: request_id {shown(name)} appears twice")
        positions[name] = len(calls)
        waits.append(row.get("dependencies") or [])
        calls.append(_call(path, number, row, name, size, scope == "local", numbers))
    for call, dependencies in zip(calls, waits, strict=True):
        call.after = [_edge(path, call.line, dependency, positions) for dependency in dependencies]
    return _calls.build(path, calls)


def _call(
    path: Path, line: int, row: dict[str, Any], name: str, size: int, local: bool, numbers: dict[object, int]
) -> Call:
    prompt = _calls.count(path, line, "input_length", row.get("input_length", row.get("input_tokens")))
    output = _calls.count(path, line, "output_length", row.get("output_length", row.get("output_tokens")))
    play = str(_text.need(path, line, row, "play_id"))
    runs = None
    if row.get("hash_ids") is not None:
        runs = _calls.block_runs(path, line, row["hash_ids"], prompt, size, numbers, play if local else None)
    labels = {"play": play, "session": str(_text.need(path, line, row, "session_id"))}
    labels |= {"model": str(row.get("model") or ""), "class": str(row.get("policy_class") or "")}
    at = _calls.seconds_ns(path, line, "not_before_ms", _text.need(path, line, row, "not_before_ms"), MS)
    priority = row.get("priority") or 0
    if type(priority) is not int:
        raise UserError(f"{path}: line {line}: priority is {shown(priority)} but must be a whole number")
    return Call(line, at, prompt, output, runs, [], labels, name, priority)


def _edge(path: Path, line: int, dependency: Any, positions: dict[str, int]) -> _calls.Edge:
    if not isinstance(dependency, dict):
        raise UserError(f"{path}: line {line}: a dependency is {shown(dependency)} but must be a JSON object")
    source, trigger = str(dependency.get("request_id")), dependency.get("trigger")
    relation = dependency.get("relation", "sequence")
    if source not in positions:
        meant = suggest(source, positions)
        raise UserError(f"{path}: line {line}: depends on {shown(source)}, which is not in the file{meant}")
    for name, value, known in (("trigger", trigger, TRIGGERS), ("relation", relation, RELATIONS)):
        if value not in known:
            raise UserError(
                f"{path}: line {line}: the {name} of a dependency is {shown(value)} "
                f"but must be one of {', '.join(known)}"
            )
    delay = _calls.seconds_ns(path, line, "delay_ms", dependency.get("delay_ms", 0), MS)
    return positions[source], TRIGGERS.index(str(trigger)), delay, RELATIONS.index(relation)


def write(trace: Trace, path: Path) -> None:
    """Write a trace. Content already in blocks keeps its blocks; other content is split into blocks of the size that
    engines use by default. Ids have local scope unless some of them are shared by several plays."""
    n = len(trace)
    plays = trace.labels.get("play") or tuple([f"play-{number}" for number in trace.plays().tolist()])
    sessions = trace.labels.get("session") or plays
    names = trace.request_id or tuple([str(row) for row in range(n)])
    if len(set(names)) < n:
        raise UserError(f"trace {trace.name}: two requests have the same name; format {NAME} needs unique names")
    models, classes = trace.labels.get("model") or ("",) * n, trace.labels.get("class")
    size = FINEST
    ids: list[list[int]] | None = None
    if trace.content is not None:
        longest = int(trace.content.lengths.max())
        size = longest if prefix.is_cut(trace.content, longest) else FINEST
        ids = prefix.block_ids(trace.content, size)
    header = {"schema": SCHEMA, "version": VERSION, "block_size": size, "hash_id_scope": _scope(ids, plays)}
    header["source"] = {"format": "servesim", "digest": trace.name}
    columns = (trace.arrival_ns, trace.prompt_len, trace.output_len, trace.priority)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(json.dumps(header) + "\n")
        for row, (at, prompt, output, priority) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            line: dict[str, Any] = {"request_id": names[row], "play_id": plays[row], "session_id": sessions[row]}
            line |= {"model": models[row], "input_length": prompt, "output_length": output}
            if ids is not None:
                line["hash_ids"] = ids[row]
            line["not_before_ms"] = _text.milliseconds(at)
            if priority:
                line["priority"] = priority
            if classes is not None and classes[row]:
                line["policy_class"] = classes[row]
            line["dependencies"] = [
                {
                    "request_id": names[source],
                    "trigger": TRIGGERS[trigger],
                    "delay_ms": _text.milliseconds(delay),
                    "relation": RELATIONS[relation],
                }
                for source, trigger, delay, relation in (trace.after.edges(row) if trace.after is not None else ())
            ]
            file.write(json.dumps(line) + "\n")


def _scope(ids: list[list[int]] | None, plays: tuple[str, ...]) -> str:
    owner: dict[int, str] = {}
    for blocks, play in zip(ids or (), plays, strict=False):
        for block in blocks:
            if owner.setdefault(block, play) != play:
                return "global"
    return "local"
