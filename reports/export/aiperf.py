"""AIPerf's profile_export.jsonl: one record per request, metrics with their units.

The names are AIPerf's: its inter-token latency is the TPOT of a request, and its inter-chunk latencies are the gaps
between tokens that arrive together. Time stamps are nanoseconds of the simulated clock.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from servesim.contracts.request import State
from servesim.reports.export import one_run
from servesim.reports.tokens import Tokens


def write(folder: Path, file: TextIO) -> None:
    """Write one line per request."""
    result = one_run(folder, "aiperf")
    tokens = Tokens(result)
    requests: list[dict[str, Any]] = result.requests.to_dict("records")  # type: ignore[assignment]  # names of columns
    for i, request in enumerate(requests):
        done = request["state"] == State.FINISHED
        line = {
            "metadata": _metadata(request, i),
            "metrics": _metrics(request, tokens.of(i)) if done else {"error_isl": _of(request["prompt_len"], "tokens")},
            "spec_decode_acceptance": None,
            "error": None if done else _error(request),
        }
        file.write(json.dumps(line, allow_nan=False) + "\n")


def _of(value: Any, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def _metadata(request: dict[str, Any], i: int) -> dict[str, Any]:
    name = str(request.get("name", request["row"]))
    aborted = request["state"] == State.ABORTED
    return {
        "session_num": i,
        "x_request_id": name,
        "x_correlation_id": name,
        "conversation_id": name,
        "turn_index": 0,
        "request_start_ns": request["arrival_ns"],
        "request_ack_ns": request["first_token_ns"] if request["first_token_ns"] >= 0 else None,
        "request_end_ns": max(request["last_token_ns"], request["finished_ns"]),
        "worker_id": f"replica_{request['replica']}",
        "record_processor_id": "servesim",
        "benchmark_phase": "profiling",
        "was_cancelled": aborted,
        "cancellation_time_ns": request["finished_ns"] if aborted else None,
    }


def _metrics(request: dict[str, Any], times: Any) -> dict[str, Any]:
    n = request["output_len"]
    chunks = np.unique(times)
    metrics = {
        "input_sequence_length": _of(request["prompt_len"], "tokens"),
        "output_sequence_length": _of(n, "tokens"),
        "output_token_count": _of(n, "tokens"),
        "time_to_first_token": _of(request["ttft_ns"] / 1e6, "ms"),
        "request_latency": _of(request["e2el_ns"] / 1e6, "ms"),
        "inter_chunk_latency": _of((np.diff(chunks) / 1e6).tolist(), "ms"),
    }
    if request["longest_output_len"] > 1:
        tpot = request["tpot_ns"] / 1e6
        metrics["time_to_second_token"] = _of(int(times[1] - times[0]) / 1e6, "ms")
        metrics["inter_token_latency"] = _of(tpot, "ms")
        if tpot:
            metrics["output_token_throughput_per_user"] = _of(1e3 / tpot, "tokens/sec/user")
    return metrics


def _error(request: dict[str, Any]) -> dict[str, Any]:
    aborted = request["state"] == State.ABORTED
    kind = "RequestCancellationError" if aborted else "RequestRejected"
    return {"code": 499 if aborted else 400, "type": kind, "message": request["reason"]}
