"""inference-perf's per_request_lifecycle_metrics.json (0.7 and earlier): a list of requests, times in seconds.

[{"start_time", "end_time", "info": {"input_tokens" | "request_metrics": {"text": {"input_tokens"}}, "response_metrics":
{"output_tokens", "output_token_times"}}, "computed_metrics": {...}, "error"}]; before 0.6, output_tokens and
output_token_times are in info itself. Times are from a monotonic clock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.untrusted import read_json
from servesim.workload.trace import Trace

from . import _calls
from ._recorded import Recorded, need, optional, trace_of
from ._recorded import recorded as recorded_of

NAME = "inference-perf"
ABOUT = "JSON of inference-perf: [{start_time, end_time, info{input_tokens, response_metrics{output_tokens}}, error}]"
OUTPUT = ("info.response_metrics.output_tokens", "info.output_tokens", "computed_metrics.output_tokens")
INPUT = ("info.input_tokens", "info.request_metrics.text.input_tokens", "computed_metrics.input_tokens")
TOKEN_TIMES = ("info.response_metrics.output_token_times", "info.output_token_times")


def detect(head: bytes) -> bool:
    start = head.lstrip()
    ours = b'"info"' in start or b'"request"' in start
    times = b'"start_time"' in start and b'"end_time"' in start
    return start.startswith(b"[") and times and ours and b'"gen_ai.' not in start


def read(path: Path) -> Trace:
    return trace_of(recorded(path))


def recorded(path: Path) -> Recorded:
    """Return the successful requests with their latencies."""
    document = read_json(path)
    if not isinstance(document, list):
        raise UserError(f"{path}: expected a list of requests, found {type(document).__name__}")
    rows = [row for row in document if isinstance(row, dict) and not row.get("error")]

    def take(i: int, row: Any) -> dict[str, Any]:
        start, end = (_calls.seconds_ns(path, i, key, need(path, i, row, key)) for key in ("start_time", "end_time"))
        times, ttft = optional(row, *TOKEN_TIMES), optional(row, "computed_metrics.time_to_first_token")
        if isinstance(times, list) and times:
            ttft = (_calls.seconds_ns(path, i, "output_token_times", times[0]) - start) / 1e9
        return {
            "start_ns": start,
            "prompt": need(path, i, row, *INPUT),
            "output": need(path, i, row, *OUTPUT),
            "ttft_ms": ttft * 1e3 if isinstance(ttft, int | float) else None,
            "e2el_ms": (end - start) / 1e6 if end >= start else None,
        }

    left = len(document) - len(rows)
    return recorded_of(path, rows, take, notes=(f"skipped {left:,} failed requests",) if left else ())
