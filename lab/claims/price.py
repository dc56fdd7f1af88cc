"""Prices of tokens: by load, for input and output, and for many concurrent users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from servesim.run.scenario import Scenario
from servesim.run.simulate import simulate
from servesim.run.trace_source import open_scenario

from . import Curve, Given, Lines, Outcome, Row, amount, experiment
from .outcome import COURSE


@dataclass(frozen=True)
class Price:
    """Price in dollars per million tokens."""

    input: float
    output: float

    def __str__(self) -> str:
        return f"${self.input:.2f} in, ${self.output:.2f} out"


IN, OUT = 0.30, 0.60
"""Published prices in dollars per million tokens."""
WITHIN = 0.25
"""Relative distance from a price told to one digit that counts as the same."""
CAUSE = "it depends on load, lengths and GPUs, and the published figures name none of them"


@experiment(
    "price-per-token",
    group="time",
    claim="A self-hosted Llama-3-70B costs $0.30 per million input tokens and $0.60 per million output tokens; output "
    "costs 3 to 10 times input",
    source=f"{COURSE}; H100 at $2 an hour",
)
def price_per_token(given: Given) -> Outcome:
    """Return the price under an SLO, of a saturated server, and by load."""
    outcome = Outcome()
    limits = ", ".join(f"{key} {ms} ms" for key, ms in given["slo"].items())
    for name, deployment in given["deployments"].items():
        base = {**given["base"], **deployment, "trace": given["trace"], "requests": given["requests"]}
        rate = highest_rate(base, given["slo"], given["attainment"], *given["rates"])
        loads = {f"{rate:.2g} requests/s, the most within {limits}": rate, "saturated": float("inf")}
        for load, sent in loads.items():
            found = price_of({**base, "rate": sent})
            met = [abs(a / b - 1) <= WITHIN for a, b in ((found.input, IN), (found.output, OUT))]
            what, note = f"price per million tokens, 70B, {name}, {load}", f"the same: up to {WITHIN:.0%} off"
            outcome.holds(what, str(Price(IN, OUT)), str(found), met, note=note, cause=CAUSE)
    _by_load(outcome, given)
    outcome.notes.append(
        "input: the GPU time of the prompts alone (the same requests with one output token each, saturated); output: "
        "all the rest, waiting included"
    )
    return outcome


def highest_rate(
    base: Mapping[str, Any], slo: Mapping[str, float], attainment: float, low: float, high: float
) -> float:
    """Return the highest rate between `low` and `high` at which enough requests meet the SLO, by bisection to within 3
    %."""
    while high / low > 1.03:
        rate = (low * high) ** 0.5
        summary = simulate({**base, "rate": rate, "slo": dict(slo)}).summary
        low, high = (rate, high) if summary["goodput"]["slo_attainment"] >= attainment else (low, rate)
    return low


def price_of(settings: Mapping[str, Any]) -> Price:
    """Return the price of a run, with prompts charged at their cost alone."""
    whole, prompts = simulate(settings).summary["price"], prompts_alone(settings)
    share = prompts / whole["usd_per_million_input_tokens"]
    return Price(prompts, whole["usd_per_million_output_tokens"] * (1 - share))


def prompts_alone(base: Mapping[str, Any]) -> float:
    """Return the dollars per million input tokens of a saturated server that generates one token per request."""
    settings = {**base, "rate": float("inf"), "clients": {}}
    trace = open_scenario(Scenario.of(settings))
    one = np.ones_like(trace.output_len)
    run = simulate(settings, trace=replace(trace, output_len=one, max_tokens=one))
    return float(run.summary["price"]["usd_per_million_input_tokens"])


def _by_load(outcome: Outcome, given: Given) -> None:
    curve = given["curve"]
    base = {**given["base"], **given["deployments"][curve["deployment"]], "trace": curve["trace"]}
    found = {}
    for clients in curve["clients"]:
        load = {"requests": clients * curve["rounds"], "rate": float("inf"), "clients": {"max_concurrency": clients}}
        found[clients] = price_of({**base, **load})
    ratios = {n: price.output / price.input for n, price in found.items()}
    told = ", ".join(f"{amount(ratio)} x at {n}" for n, ratio in ratios.items())
    outcome.near(
        "price of an output token over an input token, by load",
        (3, 10),
        [*ratios.values()],
        "x",
        note=f"{told} clients; prompts compute at the rate of the arithmetic whatever the load, while a decode step "
        "reads the weights, and each sequence its KV, for one token per sequence",
    )
    outcome.figures.append(
        Lines(
            name="price",
            title=f"Price by load, {given['base']['model']}, {curve['deployment']}",
            alt=f"Input stays at {amount(found[curve['clients'][0]].input)} dollars; output falls from "
            f"{amount(found[curve['clients'][0]].output)} to {amount(found[curve['clients'][-1]].output)} dollars.",
            x_label="clients",
            y_label="$ per million tokens",
            curves=[
                Curve("output", list(found), [p.output for p in found.values()]),
                Curve("input", list(found), [p.input for p in found.values()]),
            ],
            log="xy",
        )
    )


@experiment(
    "thousand-users",
    group="time",
    claim="1,000 users at 24 tokens/s each need 1,000 H100s, $2,000 an hour",
    source=COURSE,
)
def thousand_users(given: Given) -> Outcome:
    """Return the number of users that a replica serves at that speed, and the cost for all users."""
    outcome = Outcome()
    users, usd = given["users"], given["base"]["usd_per_gpu_hour"]
    for name, deployment in given["deployments"].items():
        base = {**given["base"], **deployment}
        most = most_users(base, given)
        gpus = ceil(users / most) * deployment["tp"]
        outcome.add(
            Row(
                f"{users:,} users at {given['tokens_per_s']} tokens/s, {name} H100",
                f"{users:,} H100, ${usd * users:,}/h",
                f"{gpus} H100, ${usd * gpus:,}/h",
                "corrected",
                f"one user a GPU is what no batching would need; a replica serves {most} at a time, "
                f"{given['attainment']:.0%} of the replies at that speed",
            )
        )
    return outcome


def most_users(base: Mapping[str, Any], given: Given) -> int:
    """Return the maximum number of closed-loop clients with fast enough replies, by bisection."""
    limit = 1e3 / given["tokens_per_s"]
    low, high = 1, 1025
    while high - low > max(1, low // 50):
        clients = (low + high) // 2
        load = {"requests": clients * given["rounds"], "rate": float("inf"), "clients": {"max_concurrency": clients}}
        summary = simulate({**base, **load, "slo": {"tpot": limit}}).summary
        low, high = (clients, high) if summary["goodput"]["slo_attainment"] >= given["attainment"] else (low, clients)
    return low
