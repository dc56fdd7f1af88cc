"""A day with a peak of five times: autoscalers against fixed peak capacity, what they cost and what they miss.

    python -m benchmarks.day [--requests 432000] [--seeds 2] [--keep 1.0]

Arrivals are Poisson with rate(t) = base (1 + 4 sin^2(pi t / day)), five times the base at noon; `--keep` thins the day:
that share of each ten minutes, put together (a preview: load climbs 1 / keep times as fast, while a start takes as long
as ever). Prompts of 1,000 and answers of
200 tokens (lognormal), Llama-3.1-8B on L40S. A miss is an arrival that is not answered within TTFT 1 s and TPOT 50 ms.
Means over seeds, with 95 % intervals of Student's t where there are several.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import numpy as np

from servesim import simulate
from servesim.draws import uniform_one
from servesim.workload.trace import Trace

DAY_S = 86_400
SLICE_S = 600
"""Part of the day that a thinned one keeps the beginning of."""
SETTINGS: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "kv": "paged",
    "router": "least-requests",
    "slo": "ttft:1000,tpot:50",
}
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


def day(requests: int, seed: int, keep: float) -> Trace:
    """Return the arrivals of a day of `requests` requests in the mean, thinned to a share of each slice."""
    rng = np.random.default_rng([int(uniform_one(seed, "day", 0) * 2**32)])
    base = requests / (3 * DAY_S)  # the mean of 1 + 4 sin^2 is 3
    grid = np.arange(DAY_S + 1)
    rate = base * (1 + 4 * np.sin(np.pi * grid / DAY_S) ** 2)
    kept = (grid % SLICE_S) < keep * SLICE_S
    total = np.concatenate(([0.0], np.cumsum((rate * kept)[:-1])))
    arrivals = np.interp(np.sort(rng.uniform(0, total[-1], rng.poisson(total[-1]))), total, np.cumsum(kept) - kept[0])
    prompt, output = (np.maximum(rng.lognormal(math.log(mean) - 0.125, 0.5, len(arrivals)), 1) for mean in (1000, 200))
    return Trace.from_lengths("day", np.rint(arrivals * 1e9), np.rint(prompt), np.rint(output).clip(1))


def interval(values: list[float]) -> str:
    """Return the mean and, of several values, its 95 % interval."""
    mean = float(np.mean(values))
    if len(values) not in T_95:
        return f"{mean:.4g}"
    half = T_95[len(values)] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return f"{mean:.4g} +- {half:.2g}"


def main() -> None:
    """Run all variants and print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=432_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--keep", type=float, default=1.0)
    parser.add_argument("--peak", type=int, default=4, help="replicas at fixed peak capacity, and the most of scalers")
    parser.add_argument("--scalers", default="hpa:target=1;dynamo-planner:ttft_ms=1000;llm-d-wva")
    options = parser.parse_args()
    bound = f"min=1,max={options.peak}"
    variants: list[tuple[str, dict[str, Any]]] = [(f"fixed at {options.peak}", {"replicas": options.peak})]
    for name in options.scalers.split(";"):
        variants.append((name, {"replicas": 1, "scaler": f"{name}{',' if ':' in name else ':'}{bound}"}))
    for label, settings in variants:
        begun, usd, misses, hours, served = time.process_time(), [], [], [], 0
        for seed in range(options.seeds):
            trace = day(options.requests, seed, options.keep)
            summary = simulate({**SETTINGS, **settings}, trace=trace, intervals=False).summary
            usd.append(summary["price"]["usd"])
            hours.append(summary["price"]["gpu_hours"])
            misses.append(100 * (1 - summary["goodput"]["slo_attainment"]))
            served += summary["requests"]["arrived"]
        cpu = time.process_time() - begun
        row = {"variant": label, "gpu_hours": interval(hours), "usd": interval(usd), "misses_percent": interval(misses)}
        print(json.dumps(row | {"requests": served, "cpu_s": round(cpu, 1)}), flush=True)


if __name__ == "__main__":
    main()
