"""A day with two peaks on prefill and decode replicas: a fixed fleet, Dynamo's planner and an autoscaler for each role.

    python -m benchmarks.two_peaks [--minutes 60] [--seeds 5] [--jobs 2]

A day in an hour: arrivals are Poisson with 0.4/s at night and peaks of 2.4/s in the morning and the evening (a fourth
and three fourths of the day, each with a standard deviation of an eighteenth of it). Prompts of 8,000 and answers of
250 tokens (lognormal), Llama-3.1-8B on L40S. A miss is an arrival that is not answered within TTFT 5 s and TPOT 50 ms.
Replicas start within 25 s (a process that is ready, weights from a local disk, graphs from a cache). Each fleet serves
the day as it is, and with the crash of a decode replica at the height of the morning, which is back after a start;
answers that it was writing go on elsewhere. Means over days drawn by seeds, with 95 % intervals of
Student's t; differences are of equal days.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from servesim import simulate
from servesim.experiments.statistics import t_interval
from servesim.workload.trace import Trace

NIGHT, PEAK = 0.4, 2.4
SETTINGS: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "router": "least-requests",
    "slo": "ttft:5000,tpot:50",
}
START = {"boot_s": 0, "weights_gb_s": 5, "graphs_s": 10, "warm_up_s": 3}
PLANNER = "dynamo-planner:ttft_ms=2500,itl_ms=40,max=5,max_gpu_budget=8,predictor=constant,throughput_s=60"
FLEETS: dict[str, dict[str, Any]] = {
    "fixed at 2 + 3": {"pd": "2x1:3x1"},
    "dynamo-planner": {"pd": "1x1:1x1", "scaler": PLANNER, "start": START},
    "dynamo-planner, forecasts": {
        "pd": "1x1:1x1",
        "scaler": PLANNER.replace("predictor=constant", "predictor=kalman"),
        "start": START,
    },
    "hpa for each role": {
        "pools": [
            {"name": "prefill", "role": "prefill", "scaler": "hpa:metric=waiting,target=1,max=5"},
            {"name": "decode", "role": "decode", "scaler": "hpa:metric=running,target=12,max=5"},
        ],
        "start": START,
    },
}
ROLES = ("prefill", "decode")


class Figures(NamedTuple):
    """Totals of a day."""

    gpu_hours: float
    prefill_hours: float
    decode_hours: float
    misses_percent: float


def day(seconds: float, seed: int) -> Trace:
    """Return the arrivals of a day of this length."""
    rng = np.random.default_rng(seed)
    grid = np.arange(round(seconds) + 1)
    hills = sum(np.exp(-0.5 * ((grid / seconds - at) * 18) ** 2) for at in (0.25, 0.75))
    total = np.concatenate(([0.0], np.cumsum((NIGHT + (PEAK - NIGHT) * hills)[:-1])))
    arrivals = np.interp(np.sort(rng.uniform(0, total[-1], rng.poisson(total[-1]))), total, grid)
    prompt, output = (np.maximum(rng.lognormal(math.log(mean) - 0.125, 0.5, len(arrivals)), 1) for mean in (8000, 250))
    return Trace.from_lengths("two peaks", np.rint(arrivals * 1e9), np.rint(prompt), np.rint(output).clip(1))


def crash(fleet: str, seconds: float) -> dict[str, Any]:
    """Return the crash of the first decode replica at the height of the morning."""
    first_decode = 2 if fleet == "fixed at 2 + 3" else 1
    return {"failures": [f"crash:replica={first_decode},at={seconds / 4},restart=24"], "migrations": 3}


def serve(fleet: str, crashes: bool, seconds: float, seed: int) -> Figures:
    """Serve a day."""
    cluster = {"cluster": crash(fleet, seconds)} if crashes else {}
    summary = simulate({**SETTINGS, **FLEETS[fleet], **cluster}, trace=day(seconds, seed), conclude=False).summary
    hours = [sum(one["up_s"] for one in summary["replicas"] if one["pool"] == role) / 3600 for role in ROLES]
    misses = 100 * (1 - summary["goodput"]["slo_attainment"])
    return Figures(summary["price"]["gpu_hours"], *hours, misses)


def shown(values: list[float], digits: int) -> str:
    """Return a mean and, of several values, its 95 % interval."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    found = t_interval(np.asarray(values))
    return f"{mean:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def answer(runs: dict[tuple[str, bool], list[Figures]]) -> str:
    """Return what the autoscalers save and cost beside the fixed fleet, in a sentence each."""
    lines = []
    fixed = runs["fixed at 2 + 3", False]
    for fleet in list(FLEETS)[1:]:
        calm, broken = runs[fleet, False], runs[fleet, True]
        saved = [100 * (1 - one.gpu_hours / full.gpu_hours) for one, full in zip(calm, fixed, strict=True)]
        missed = [one.misses_percent - full.misses_percent for one, full in zip(calm, fixed, strict=True)]
        further = [two.misses_percent - one.misses_percent for one, two in zip(calm, broken, strict=True)]
        lines.append(
            f"{fleet} saves {shown(saved, 0)} % of the GPU hours, for {shown(missed, 1)} points more misses; "
            f"the crash costs it {shown(further, 2)} points."
        )
    return "\n".join(lines)


def main() -> None:
    """Run all fleets, and print a line for each and what follows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    cases = [(fleet, crashes) for crashes in (False, True) for fleet in FLEETS]
    with ProcessPoolExecutor(options.jobs) as pool:
        sent = {
            case: [pool.submit(serve, *case, options.minutes * 60, seed) for seed in range(options.seeds)]
            for case in cases
        }
        runs = {case: [run.result() for run in row] for case, row in sent.items()}
    for (fleet, crashes), row in runs.items():
        hours, prefill, decode, misses = (list(column) for column in zip(*row, strict=True))
        name = fleet + (", a crash at the peak" if crashes else "")
        print(
            f"{name:46} {shown(hours, 2)} GPU h ({np.mean(prefill):.2f} + {np.mean(decode):.2f}), misses "
            f"{shown(misses, 2)} %"
        )
    print(answer(runs))


if __name__ == "__main__":
    main()
