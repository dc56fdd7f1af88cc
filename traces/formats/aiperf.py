"""AIPerf's profile_export.jsonl (0.13), which `servesim export --to aiperf` also writes: one request per line.

{"metadata": {"request_start_ns", "request_end_ns", "conversation_id", "turn_index", "benchmark_phase", ...}, "metrics":
{"input_sequence_length": {"value", "unit"}, "output_sequence_length", "time_to_first_token", "request_latency"},
"error"}. Warm-up, failed, and canceled requests are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown
from servesim.workload.trace import Trace

from . import _text
from ._names import UNIT_WORDS, UNITS
from ._recorded import Recorded, need, optional, trace_of
from ._recorded import recorded as recorded_of

NAME = "aiperf"
ABOUT = "JSONL of AIPerf: metadata.request_start_ns, metrics.input_sequence_length, output_sequence_length, ..."


def detect(head: bytes) -> bool:
    start = head.lstrip()[:8000]
    return start.startswith(b"{") and b'"request_start_ns"' in start and b'"metadata"' in start


def read(path: Path, *, timing: str = "think") -> Trace:
    return trace_of(recorded(path), timing)


def recorded(path: Path) -> Recorded:
    """Return the profiled requests with their latencies."""
    rows, left = [], 0
    for _, row in _text.json_lines(path):
        phase = optional(row, "metadata.benchmark_phase")
        done = not row.get("error") and not optional(row, "metadata.was_cancelled") and phase != "warmup"
        rows += [row] if done else []
        left += not done
    several = any(optional(row, "metadata.turn_index") for row in rows)

    def take(i: int, row: Any) -> dict[str, Any]:
        start = need(path, i, row, "metadata.request_start_ns")
        if type(start) is not int or not 0 <= start < 1 << 62:
            raise UserError(f"{path}: request {i}: request_start_ns is {shown(start)} but must be a time in ns")
        session = optional(row, "metadata.x_correlation_id", "metadata.conversation_id")
        return {
            "start_ns": start,
            "prompt": need(path, i, row, "metrics.input_sequence_length.value"),
            "output": need(path, i, row, "metrics.output_sequence_length.value", "metrics.output_token_count.value"),
            "ttft_ms": _milliseconds(row, "time_to_first_token"),
            "e2el_ms": _milliseconds(row, "request_latency"),
            **({"session": session} if several else {}),
        }

    notes = (f"skipped {left:,} warm-up, failed or canceled requests",) if left else ()
    return recorded_of(path, rows, take, notes=notes)


def _milliseconds(row: Any, metric: str) -> float | None:
    value, unit = optional(row, f"metrics.{metric}.value"), optional(row, f"metrics.{metric}.unit")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value * UNITS[UNIT_WORDS.get(str(unit), "ms")] / 1e6
