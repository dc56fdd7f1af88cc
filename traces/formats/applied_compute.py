"""Agents as turns of given lengths (applied_compute_agentic): JSON lines, one per session.

{"num_turns", "input_prompt_length", "assistant_response_length": [...], "tool_call_output_length": [...],
"tool_call_latency": [s, ...], "final_assistant_response_length"}: the prompt grows by each response and each tool's
output; each turn starts one tool latency after the previous turn ends. There are no times, so all sessions are present
from the start (limit them with clients.max_sessions, or add arrivals with --shape).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.workload.trace import COMPLETION, Trace

from . import _calls, _text
from ._calls import Call, Runs

NAME = "applied-compute"
ABOUT = "JSONL, one session per line: num_turns, input_prompt_length, assistant_response_length[], tool_call_latency[]"
PER_TURN = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")


def detect(head: bytes) -> bool:
    first = _text.first_object(head)
    return first is not None and "input_prompt_length" in first and "tool_call_latency" in first


def read(path: Path) -> Trace:
    calls: list[Call] = []
    texts = 0
    for line, row in _text.json_lines(path):
        turns = _calls.count(path, line, "num_turns", row.get("num_turns"), 0)
        said, results, latencies = (_per_turn(path, line, row, key, turns) for key in PER_TURN)
        outputs = [*said, _text.need(path, line, row, "final_assistant_response_length")]
        runs: Runs = [(texts, _calls.count(path, line, "input_prompt_length", row.get("input_prompt_length")))]
        texts += 1
        for turn, output in enumerate(outputs):
            length = _calls.count(path, line, "response length", output)
            edges = []
            if turn:
                pause = _calls.seconds_ns(path, line, "tool_call_latency", latencies[turn - 1])
                edges = [(len(calls) - 1, COMPLETION, pause, 0)]
            prompt = sum(tokens for _, tokens in runs)
            calls.append(Call(line, 0, prompt, length, list(runs), edges, {"session": f"session-{line}"}))
            if turn < turns:
                runs.append((-len(calls), length))
                if result := _calls.count(path, line, "tool_call_output_length", results[turn], 0):
                    runs.append((texts, result))
                    texts += 1
    return _calls.build(path, calls, ("no times: all sessions start at once",))


def _per_turn(path: Path, line: int, row: dict[str, Any], key: str, turns: int) -> list[Any]:
    values = _text.need(path, line, row, key)
    if not isinstance(values, list) or len(values) != turns:
        raise UserError(f"{path}: line {line}: {key} must be a list with num_turns = {turns} values")
    return values
