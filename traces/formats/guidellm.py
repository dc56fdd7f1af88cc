"""GuideLLM's benchmarks.json (0.2 to 0.8): {"benchmarks": [{"requests": {"successful": [...]}}]}, times in seconds.

Each request has prompt_tokens, output_tokens, request_start_time and request_end_time (start_time and end_time before
0.4), and time_to_first_token_ms if its answer was streamed. If a file has several benchmarks, they ran one after
another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown
from servesim.untrusted import read_json
from servesim.workload.trace import Trace

from . import _calls
from ._recorded import Recorded, need, optional, trace_of
from ._recorded import recorded as recorded_of

NAME = "guidellm"
ABOUT = "JSON of GuideLLM: benchmarks[{requests{successful[{prompt_tokens, output_tokens, request_start_time}]}}]"
START, END = ("request_start_time", "start_time"), ("request_end_time", "end_time")


def detect(head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"benchmarks"' in head


def read(path: Path) -> Trace:
    return trace_of(recorded(path))


def recorded(path: Path) -> Recorded:
    """Return the successful requests with their latencies."""
    document = read_json(path)
    runs = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(runs, list) or not runs:
        raise UserError(f"{path}: benchmarks is {shown(runs)[:80]} but must be a list of GuideLLM's benchmarks")
    rows: list[Any] = []
    left = 0
    for i, run in enumerate(runs, start=1):
        found = need(path, i, run, "requests")
        successful = found.get("successful") if isinstance(found, dict) else found
        if not isinstance(successful, list):
            text = shown(successful)[:80]
            raise UserError(f"{path}: benchmark {i}: requests.successful is {text} but must be a list")
        rows += successful
        others = (optional(found, key) for key in ("errored", "incomplete"))
        left += sum(len(rows_of) for rows_of in others if isinstance(rows_of, list))

    def take(i: int, row: Any) -> dict[str, Any]:
        start, end = (_calls.seconds_ns(path, i, keys[0], need(path, i, row, *keys)) for keys in (START, END))
        return {
            "start_ns": start,
            "prompt": need(path, i, row, "prompt_tokens", "input_metrics.text_tokens"),
            "output": need(path, i, row, "output_tokens", "output_metrics.text_tokens"),
            "ttft_ms": optional(row, "time_to_first_token_ms"),
            "e2el_ms": (end - start) / 1e6 if end >= start else None,
        }

    notes = [f"skipped {left:,} errored or incomplete requests"] if left else []
    if len(runs) > 1:
        notes.append(f"{len(runs)} benchmarks, which ran one after another, at their recorded times")
    return recorded_of(path, rows, take, notes=tuple(notes))
