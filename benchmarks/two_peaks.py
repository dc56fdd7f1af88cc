"""A day with two peaks on prefill and decode replicas: a fixed fleet, Dynamo's planner and an autoscaler for each role.

    python -m benchmarks.two_peaks [--minutes 60] [--jobs 2]

A day in an hour: arrivals are Poisson with 0.4/s at night and peaks of 2.4/s in the morning and the evening (a fourth
and three fourths of the day, each with a standard deviation of an eighteenth of it). Prompts of 8,000 and answers of
250 tokens (lognormal), Llama-3.1-8B on L40S. A miss is an arrival that is not answered within TTFT 5 s and TPOT 50 ms.
Replicas start within 25 s (weights from a local disk, compiled graphs from a cache).
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from servesim import simulate
from servesim.workload.trace import Trace

NIGHT, PEAK = 0.4, 2.4
SETTINGS: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "router": "least-requests",
    "slo": "ttft:5000,tpot:50",
}
START = {"weights_gb_s": 5, "graphs_s": 10, "warm_up_s": 3}
PLANNER = "dynamo-planner:ttft_ms=2500,itl_ms=40,max=5,max_gpu_budget=8,predictor=constant,throughput_s=60"
VARIANTS: dict[str, dict[str, Any]] = {
    "fixed at 2 + 3": {"pd": "2x1:3x1"},
    "dynamo-planner": {"pd": "1x1:1x1", "scaler": PLANNER, "start": START},
    "hpa for each role": {
        "pools": [
            {"name": "prefill", "role": "prefill", "scaler": "hpa:metric=waiting,target=1,max=5"},
            {"name": "decode", "role": "decode", "scaler": "hpa:metric=running,target=12,max=5"},
        ],
        "start": START,
    },
}


def day(seconds: float) -> Trace:
    """Return the arrivals of a day of this length."""
    rng = np.random.default_rng(7)
    grid = np.arange(round(seconds) + 1)
    hills = sum(np.exp(-0.5 * ((grid / seconds - at) * 18) ** 2) for at in (0.25, 0.75))
    total = np.concatenate(([0.0], np.cumsum((NIGHT + (PEAK - NIGHT) * hills)[:-1])))
    arrivals = np.interp(np.sort(rng.uniform(0, total[-1], rng.poisson(total[-1]))), total, grid)
    prompt, output = (np.maximum(rng.lognormal(math.log(mean) - 0.125, 0.5, len(arrivals)), 1) for mean in (8000, 250))
    return Trace.from_lengths("two peaks", np.rint(arrivals * 1e9), np.rint(prompt), np.rint(output).clip(1))


def serve(variant: str, seconds: float) -> str:
    """Serve a day, and return the line of a table."""
    summary = simulate({**SETTINGS, **VARIANTS[variant]}, trace=day(seconds), conclude=False).summary
    up = {role: sum(one["up_s"] for one in summary["replicas"] if one["pool"] == role) / 3600 for role in ROLES}
    misses = 100 * (1 - summary["goodput"]["slo_attainment"])
    hours = summary["price"]["gpu_hours"]
    return f"{variant:20} {hours:5.2f} GPU h ({up['prefill']:.2f} + {up['decode']:.2f}), misses {misses:.2f} %"


ROLES = ("prefill", "decode")


def main() -> None:
    """Run all variants and print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        for line in pool.map(serve, VARIANTS, [options.minutes * 60] * len(VARIANTS)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
