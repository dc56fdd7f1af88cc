"""Many replicas and many requests: CPU time and memory, and whether they grow in line with the number of requests.

    python -m benchmarks.scale [--replicas 1000] [--requests 10000,100000,1000000] [--router least-requests]

Each number of requests is a run in a process of its own: prompts of 500 and answers of 100 tokens, all alike, Poisson
arrivals at 2 requests/s a replica, Llama-3.1-8B on H100. `us_per_request`: CPU time of the run over its requests, the
setting-up of the replicas (of an empty run) taken off.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from typing import Any, NamedTuple

from servesim import simulate

RATE = 2.0
"""Requests/s a replica."""
SETTINGS: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100", "kv": "paged"}


class Cost(NamedTuple):
    """Time and memory of a run."""

    completed: int
    cpu_s: float
    peak_mib: float


def cost(replicas: int, requests: int, router: str) -> Cost:
    """Serve `requests` requests; return the CPU time and peak memory of this process."""
    begun = time.process_time()
    trace = f"synth:rate={RATE * replicas},prompt=500,output=100"
    run = {**SETTINGS, "replicas": replicas, "router": router, "trace": trace, "requests": requests}
    summary = simulate(run, conclude=False).summary
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts KiB
    return Cost(summary["requests"]["completed"], time.process_time() - begun, peak)


def main() -> None:
    """Print a line for each number of requests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--requests", default="10000,100000,1000000")
    parser.add_argument("--router", default="least-requests")
    options = parser.parse_args()
    counts = [int(text) for text in options.requests.split(",")]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        empty = pool.apply(cost, (options.replicas, 1, options.router))
        for count in counts:
            one = pool.apply(cost, (options.replicas, count, options.router))
            row = {
                "replicas": options.replicas,
                "requests": one.completed,
                "cpu_s": round(one.cpu_s, 1),
                "us_per_request": round(1e6 * (one.cpu_s - empty.cpu_s) / count),
                "peak_mib": round(one.peak_mib),
                "bytes_per_request": round((one.peak_mib - empty.peak_mib) * 2**20 / count),
            }
            print(json.dumps({"router": options.router, **row, "empty_cpu_s": round(empty.cpu_s, 1)}), flush=True)


if __name__ == "__main__":
    main()
