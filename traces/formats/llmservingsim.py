"""Requests with token ids, as LLMServingSim exchanges them (ShareGPT and others): JSON lines.

{"input_toks", "output_toks", "arrival_time_ns"[, "input_tok_ids", "output_tok_ids"]}, or a session: {"session_id",
"arrival_time_ns", "sub_requests": [{"input_toks", "output_toks", "tool_duration_ns"[, "input_tok_ids"]}, ...]}, in
which each request starts when the previous request has ended and its tool time has passed. Prompts share prefixes as
far as their token ids agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown
from servesim.workload.trace import COMPLETION, Trace

from . import _calls, _text
from ._calls import Call
from ._tokens import TokenTree

NAME = "llmservingsim"
ABOUT = "JSONL: input_toks, output_toks, arrival_time_ns[, input_tok_ids, output_tok_ids], or sub_requests of these"


def detect(head: bytes) -> bool:
    start = head.lstrip()[:400]
    return start.startswith(b"{") and (b'"input_toks"' in start or b'"sub_requests"' in start)


def read(path: Path) -> Trace:
    calls: list[Call] = []
    prompts: list[list[int] | None] = []
    answers: list[list[int] | None] = []
    for line, row in _text.json_lines(path):
        parts = row.get("sub_requests", [row])
        if not isinstance(parts, list) or not parts:
            raise UserError(f"{path}: line {line}: sub_requests is {shown(parts)} but must be a list of requests")
        at = _calls.seconds_ns(path, line, "arrival_time_ns", row.get("arrival_time_ns", 0), 1)
        session = str(row.get("session_id", f"session-{line}")) if "sub_requests" in row else ""
        pause = -1
        for part in parts:
            edges = [(len(calls) - 1, COMPLETION, pause, 0)] if pause >= 0 else []
            calls.append(_call(path, line, part, at, edges, session))
            pause = _calls.seconds_ns(path, line, "tool_duration_ns", part.get("tool_duration_ns", 0), 1)
            prompts.append(_token_ids(path, line, part, "input_tok_ids", calls[-1].prompt))
            answers.append(_token_ids(path, line, part, "output_tok_ids", None))
    if any(prompts):
        runs = TokenTree(prompts).runs(answers)
        for call, row_runs in zip(calls, runs, strict=True):
            call.runs = row_runs or None
    return _calls.build(path, calls)


def _call(path: Path, line: int, part: Any, at: int, edges: list[_calls.Edge], session: str) -> Call:
    if not isinstance(part, dict):
        raise UserError(f"{path}: line {line}: a request is {shown(part)} but must be an object")
    prompt = _calls.count(path, line, "input_toks", _text.need(path, line, part, "input_toks"))
    output = _calls.count(path, line, "output_toks", _text.need(path, line, part, "output_toks"))
    return Call(line, at, prompt, output, None, edges, {"session": session})


def _token_ids(path: Path, line: int, part: dict[str, Any], key: str, length: int | None) -> list[int] | None:
    ids = part.get(key)
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise UserError(f"{path}: line {line}: {key} must be a list of whole numbers")
    if length is not None and len(ids) != length:
        raise UserError(f"{path}: line {line}: {len(ids)} {key} for input_toks {length}")
    return ids
