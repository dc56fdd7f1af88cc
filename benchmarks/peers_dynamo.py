"""The Rust replay's side of benchmarks.peers, run by an interpreter that has ai-dynamo-runtime and no servesim."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def arguments(work: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of `run_mocker_trace_replay`: one pool of `kv_tokens` a replica, whatever the block."""
    engine = {key: work[key] for key in ("block_size", "max_num_seqs", "max_num_batched_tokens")}
    engine["num_gpu_blocks"] = work["kv_tokens"] // work["block_size"]
    return {
        "trace_files": [work["trace"]],
        "extra_engine_args": {"engine": engine},
        "num_workers": work["replicas"],
        "router_mode": "round_robin",
        "trace_block_size": 512,  # of a hash id in the file
    }


def measure(work: dict[str, Any]) -> dict[str, Any]:
    """Replay the trace once and return CPU seconds, those of reading the file apart, and what was served."""
    from dynamo._core import run_mocker_trace_replay  # type: ignore[import-not-found, unused-ignore]

    settings = arguments(work)
    run_mocker_trace_replay(**settings, max_sim_time_ms=0.001)  # pays for fresh memory
    began = time.process_time()
    run_mocker_trace_replay(**settings, max_sim_time_ms=0.001)
    read = time.process_time()
    summary = run_mocker_trace_replay(**settings).summary
    call, reading = time.process_time() - read, read - began
    return {
        "cpu_s": call - reading,
        "reading_cpu_s": reading,
        "requests": summary["completed_requests"],
        "input_tokens": summary["total_input_tokens"],
        "output_tokens": summary["total_output_tokens"],
        "simulated_s": summary["duration_ms"] / 1000,
        "hit_rate": summary["prefix_cache_reused_ratio"],
        "mean_ttft_ms": summary["mean_ttft_ms"],
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
