"""servesim's side of benchmarks.peers; the interpreter decides whether the build is pure or compiled."""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import servesim


def settings(work: dict[str, Any]) -> dict[str, Any]:
    """Return keywords of `servesim.simulate`: the same limits, pool and blocks as the replay gets."""
    return {
        "model": "llama-3.1-8b",
        "gpu": "h200",
        "kv": "prefix-hash",
        "router": "round-robin",
        "replicas": work["replicas"],
        "scheduler": {"name": "vllm", **{key: work[key] for key in ("max_num_seqs", "max_num_batched_tokens")}},
        "engine": {"block_size": work["block_size"], "num_gpu_blocks": work["kv_tokens"] // work["block_size"]},
    }


def measure(work: dict[str, Any]) -> dict[str, Any]:
    """Simulate a trace that is in memory and return CPU seconds of the call, and what was served."""
    chosen, trace = settings(work), servesim.load_trace(work["trace"])
    servesim.simulate(chosen, trace=work["trace"], requests=min(100, len(trace)))  # imports and kernel tables
    gc.collect()
    began = time.process_time()
    result = servesim.simulate(chosen, trace=trace)
    call, summary = time.process_time() - began, result.summary
    return {
        "cpu_s": call,
        "loop_cpu_s": result.timing["loop_cpu_s"],
        "compiled": result.timing["compiled"],
        "requests": summary["requests"]["completed"],
        "input_tokens": summary["requests"]["input_tokens"],
        "output_tokens": summary["requests"]["output_tokens"],
        "steps": summary["engine"]["steps"],
        "simulated_s": summary["duration_s"],
        "hit_rate": summary["prefix_cache"]["hit_rate"],
        "mean_ttft_ms": summary["latency_ms"]["ttft"]["mean"],
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
