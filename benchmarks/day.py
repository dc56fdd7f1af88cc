"""A day with a peak of five times: autoscalers against fixed peak capacity, what they cost and what they miss.

    python -m benchmarks.day [--requests 432000] [--seeds 2] [--keep 1.0] [--jobs 2]

Arrivals are Poisson with rate(t) = base (1 + 4 sin^2(pi t / day)), five times the base at noon; `--keep` thins the day:
that share of each ten minutes, put together (a preview: load climbs 1 / keep times as fast, while a start takes as long
as ever). Prompts of 1,000 and answers of 200 tokens (lognormal), Llama-3.1-8B on L40S; replicas start in 38 s, from a
process that is ready. A miss is an arrival that is not answered within TTFT 1 s and TPOT 50 ms. Variants and seeds are
runs of their own, `--jobs` of them at once. Means over seeds, with 95 % intervals of Student's t where there are
several.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

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
START = {"boot_s": 0, "warm_up_s": 5}
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


class Figures(NamedTuple):
    """Totals of a run of a day."""

    gpu_hours: float
    usd: float
    misses_percent: float
    requests: int
    cpu_s: float


def serve(settings: dict[str, Any], requests: int, seed: int, keep: float) -> Figures:
    """Serve a day."""
    begun = time.process_time()
    summary = simulate({**SETTINGS, **settings}, trace=day(requests, seed, keep), conclude=False).summary
    price, misses = summary["price"], 100 * (1 - summary["goodput"]["slo_attainment"])
    return Figures(
        price["gpu_hours"], price["usd"], misses, summary["requests"]["arrived"], time.process_time() - begun
    )


def main() -> None:
    """Run all variants and print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=432_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--keep", type=float, default=1.0)
    parser.add_argument("--peak", type=int, default=4, help="replicas at fixed peak capacity, and the most of scalers")
    parser.add_argument("--scalers", default="hpa:target=1;dynamo-planner:ttft_ms=1000;llm-d-wva")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    bound = f"min=1,max={options.peak}"
    variants: list[tuple[str, dict[str, Any]]] = [(f"fixed at {options.peak}", {"replicas": options.peak})]
    for name in options.scalers.split(";"):
        variants.append(
            (name, {"replicas": 1, "start": START, "scaler": f"{name}{',' if ':' in name else ':'}{bound}"})
        )
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = [
            [pool.submit(serve, settings, options.requests, seed, options.keep) for seed in range(options.seeds)]
            for _, settings in variants
        ]
        for (label, _), row in zip(variants, runs, strict=True):
            found = [run.result() for run in row]
            shown = {
                name: interval([getattr(one, name) for one in found]) for name in ("gpu_hours", "usd", "misses_percent")
            }
            sums = {"requests": sum(one.requests for one in found), "cpu_s": round(sum(one.cpu_s for one in found), 1)}
            print(json.dumps({"variant": label, **shown, **sums}), flush=True)


if __name__ == "__main__":
    main()
