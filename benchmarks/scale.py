"""Many replicas and many requests: CPU time and memory, and whether they grow in line with the number of requests.

    python -m benchmarks.scale [--replicas 1000] [--requests 10000,100000,1000000] [--router least-requests]
    python -m benchmarks.scale --stream --replicas 100 --requests 1000000 --load cached,prefix-aware,features

Each number of requests is a run in a process of its own: prompts of 500 and answers of 100 tokens, all alike, Poisson
arrivals at 2 requests/s a replica, Llama-3.1-8B on H100; the loads below add to that. A line for each quarter, half and
whole of a run: peak memory up to then, and `us_per_request`, CPU time of the run over the requests that have left, the
setting-up of the replicas (of an empty run) taken off.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.measure import peak_memory_mb
from servesim import simulate

RATE = 2.0
"""Requests/s a replica."""
PARTS = (0.25, 0.5, 1.0)
"""Shares of a run's requests after whose end it is measured."""
SETTINGS: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100", "kv": "paged"}
SHARED = "prefix=shared(groups=200,length=256)"
CACHED: dict[str, Any] = {"kv": "prefix-hash"}


class Load(NamedTuple):
    """Load of a fleet: its trace and settings."""

    prompts: str
    settings: Callable[[int], dict[str, Any]]
    """Settings beyond SETTINGS, from the number of replicas."""


def _features(replicas: int) -> dict[str, Any]:
    """Return prefill and decode apart, KV in host memory, an autoscaler, a crash and a slow replica."""
    return {
        **CACHED,
        "pd": f"{replicas // 2}x1:{replicas - replicas // 2}x1",
        "offload": "vllm:cpu=4GiB",
        "scaler": f"keda:target=8,min={replicas // 4},max={replicas}",
        "start": {"compile_s": 0, "graphs_s": 0, "warm_up_s": 5},
        "cluster": {"failures": ["crash:replica=0,at=60,restart=30", "slow:replica=1,at=30,until=90,factor=3"]},
    }


LOADS = {
    "plain": Load("prompt=500", lambda replicas: {"replicas": replicas}),
    "cached": Load(f"prompt=600,{SHARED}", lambda replicas: {**CACHED, "replicas": replicas}),
    "prefix-aware": Load(
        f"prompt=600,{SHARED}",
        lambda replicas: {**CACHED, "replicas": replicas, "router": "sglang-cache-aware:max_tree_size=1000000"},
    ),
    "features": Load(f"prompt=600,{SHARED}", _features),
}
"""Loads by name."""


class Cost(NamedTuple):
    """Time and memory of a run up to a number of requests that have left."""

    requests: int
    cpu_s: float
    peak_mib: float


def cost(load: str, replicas: int, requests: int, router: str, stream: bool) -> list[Cost]:
    """Serve `requests` requests; return the costs of PARTS of the run in this process."""
    begun, found, due = time.process_time(), list[Cost](), [share * requests for share in PARTS]

    def take(now: int, left: int) -> None:
        if left >= due[0]:
            due.pop(0)
            found.append(Cost(left, time.process_time() - begun, peak_memory_mb()))

    trace = f"synth:rate={RATE * replicas},output=100,{LOADS[load].prompts}"
    run = {**SETTINGS, "router": router, **LOADS[load].settings(replicas)}
    due[-1] = float("inf")  # after the summary
    simulate(run, trace=trace, requests=requests, stream=stream, conclude=False, on_ready=lambda setup: take)
    return [*found, Cost(requests, time.process_time() - begun, peak_memory_mb())]


def main() -> None:
    """Print lines for each load and number of requests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--requests", default="10000,100000,1000000")
    parser.add_argument("--router", default="least-requests")
    parser.add_argument("--load", default="plain", help=f"some of {','.join(LOADS)}")
    parser.add_argument("--stream", action="store_true", help="hold neither the trace nor records in memory")
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for load in options.load.split(","):
            empty = pool.apply(cost, (load, options.replicas, 1, options.router, options.stream))[-1]
            for count in map(int, options.requests.split(",")):
                for one in pool.apply(cost, (load, options.replicas, count, options.router, options.stream)):
                    row = {
                        "load": load,
                        "replicas": options.replicas,
                        "requests": one.requests,
                        "of": count,
                        "cpu_s": round(one.cpu_s, 1),
                        "us_per_request": round(1e6 * (one.cpu_s - empty.cpu_s) / one.requests),
                        "peak_mib": round(one.peak_mib),
                        "bytes_per_request": round((one.peak_mib - empty.peak_mib) * 2**20 / one.requests),
                    }
                    print(json.dumps({**row, "empty_cpu_s": round(empty.cpu_s, 1)}), flush=True)


if __name__ == "__main__":
    main()
