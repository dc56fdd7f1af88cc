"""Sarathi-Serve compared with vLLM: capacity under a limit on the time between tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from servesim import draws
from servesim.run.simulate import simulate
from servesim.workload.trace import Ints, Trace

from . import Bars, Given, Outcome, Row, experiment
from .batches import cost_of, decode
from .lengths import poisson
from .rates import highest

NINETIETH = 1.2815515655446004
"""Standard deviations from the median to the 90th percentile of a normal distribution."""


@experiment(
    "sarathi",
    group="published",
    claim="Prompts in chunks raise the capacity under a limit on the time between tokens 2.6 to 3.7 times",
    source="Agrawal et al., Sarathi-Serve, OSDI 2024, figures 10 and 11",
)
def sarathi(given: Given) -> Outcome:
    """Find the capacities of vLLM and Sarathi-Serve for each deployment, data set and limit."""
    outcome = Outcome()
    for name, deployment in given["deployments"].items():
        iteration = decode_ms(deployment)
        ratios: dict[str, float] = {}
        bars: dict[str, list[float | None]] = {}
        for dataset in given["datasets"]:
            for limit, rule in given["limits"].items():
                where = f"{dataset}, {limit}"
                rates = [
                    capacity(given, deployment, dataset, rule["times"] * iteration, scheduler)
                    for scheduler in (given["vllm"], f"{given['sarathi']},chunk_size={rule['chunk']}")
                ]
                bars[where] = list(rates)
                ratios[where] = rates[1] / rates[0]
        _rows(outcome, given, name, iteration, bars, ratios)
    why = "Falcon's layers (attention beside the MLP) are not among those the simulator reads from a config.json"
    what = "capacity, Sarathi-Serve to vLLM, Falcon-180B, pipeline parallel"
    outcome.add(Row(what, "5.6 x", "-", "out of reach", f"{why}; a preprint has 6.9 x"))
    outcome.notes.append(
        "lengths are lognormals of the published medians and 90th percentiles; kernel times alone; the limits are the "
        "paper's multiples of this simulator's own decode iteration"
    )
    return outcome


def decode_ms(deployment: Mapping[str, Any]) -> float:
    """Return the time of the decode iteration of 32 sequences with 4,096 tokens; the paper's limits are multiples of
    it."""
    return cost_of(deployment, host="none").price(decode(32, 4096)).ns / 1e6


def lengths_of(dataset: str, shape: Mapping[str, Any], count: int) -> tuple[Ints, Ints]:
    """Return prompt and output lengths from the median and the 90th percentile of each."""

    def column(what: str) -> Ints:
        median, ninetieth = shape[what]
        z = draws.normal(0, f"{dataset} {what}", np.arange(count))
        drawn: Ints = np.rint(median * np.exp(np.log(ninetieth / median) / NINETIETH * z)).astype(np.int64)
        return drawn

    prompt = np.clip(column("prompt"), 1, shape["most"] - 1)
    return prompt, np.clip(column("output"), 1, shape["most"] - prompt)


def capacity(given: Given, deployment: Mapping[str, Any], dataset: str, limit_ms: float, scheduler: str) -> float:
    """Return the highest rate (requests/s) within the limit."""
    shape = given["datasets"][dataset]
    lengths = lengths_of(dataset, shape, given["requests"])
    engine = {"async_scheduling": False, "max_model_len": shape["most"]}

    def holds(rate: float) -> bool:
        trace: Trace = poisson(dataset, lengths, rate, 0)
        settings = {**given["base"], **deployment, "engine": engine, "scheduler": scheduler}
        ms = simulate(settings, trace=trace).summary["latency_ms"]
        return bool(ms["itl"]["p99"] <= limit_ms and ms["queue_time"]["p50"] <= 1e3 * given["delay_s"])

    return highest(holds, *given["rates"])


def _rows(
    outcome: Outcome,
    given: Given,
    name: str,
    iteration: float,
    bars: Mapping[str, list[float | None]],
    ratios: Mapping[str, float],
) -> None:
    best = max(ratios, key=lambda where: ratios[where])
    found = "; ".join(f"{where} {ratio:.2f} x" for where, ratio in ratios.items())
    cause = (
        "kernel times alone, and lengths by two quantiles alone: what a long prompt costs those who decode depends on "
        "the tail, and the paper's engines of 2024 add host time to every iteration, of which chunks make more"
    )
    note = f"{found}; a decode iteration of 32 takes {iteration:.1f} ms"
    published = given["published"].get(name)
    what = f"capacity, Sarathi-Serve to vLLM, {name}, {best}"
    if published is None:
        outcome.add(Row(what, "-", f"{ratios[best]:.2f} x", "shown", note))
    else:
        outcome.near(what, published, ratios[best], "x", within=0.15, note=note, cause=cause)
    said = "; ".join(f"{where}: vLLM {a:.2f}, Sarathi-Serve {b:.2f} requests/s" for where, (a, b) in bars.items())
    outcome.figures.append(
        Bars(
            name="capacity-" + name.split(",")[0].lower(),
            title=f"Capacity, {name}",
            alt=f"{said}.",
            x_label="requests/s",
            rows=bars,
            series=("vLLM", "Sarathi-Serve"),
        )
    )
