"""Sentences of a recommendation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.experiments.metrics import metric_label
from servesim.experiments.recommend.aims import Aim, LeastLatency
from servesim.hardware import Gpu
from servesim.metrics.words import number

Row = Mapping[str, Any]
NOT_SEARCHED: list[dict[str, Any]] = [
    {
        "keys": ["speculation"],
        "says": "speculation, because how many drafts this traffic accepts is not known (list methods, such as "
        "--speculation none,eagle3:k=3, with --acceptance if it was measured)",
    },
    {"keys": ["pp"], "says": "pipeline parallelism (list values, such as --pp 1,2)"},
    {"keys": ["scaler"], "says": "autoscalers (list them, such as --scaler none,keda:target=8)"},
    {
        "keys": ["engine.gpu_memory_utilization"],
        "says": "the share of GPU memory, whose upper end is a risk that no simulation shows",
    },
]
"""Settings that are searched only if their values are listed, and why."""


def percent(ratio: float) -> str:
    """Return a price ratio above 1 as a percentage."""
    share = 100 * (ratio - 1)
    return f"{share:.0f} %" if share >= 1 else f"{share:.1f} %"


def worse(aim: Aim, ratio: float, at_least: bool = False) -> str:
    """Return in words by how much a deployment loses that has `ratio` times the price of another."""
    least = "at least " if at_least else ""
    if aim.metric:
        return f"has {least}{percent(ratio)} more {metric_label(aim.metric)}"
    if aim.traffic:
        return f"sustains {least}{percent(2 - 1 / ratio)} less"
    return f"costs {least}{percent(ratio)} more"


def sure_price(aim: Aim, row: Row) -> float:
    """Return what is minimized, at the low end of the rate's interval or at the rate of the question: the hourly price
    per request/s, the time per request if the highest rate is searched, or a latency in ms. Infinity for a deployment
    that is over a budget."""
    if isinstance(aim, LeastLatency):
        return float(row["latency"]["ms"]) if aim.most.within(row["gpus"], row["usd_per_hour"]) else math.inf
    rate = row["rate"] if row["by"] == "replicas" else row["rate_low"]
    cost = 1.0 if aim.traffic else row["usd_per_hour"]
    return float(cost / rate) if rate else math.inf


def first_words(aim: Aim, first: Row, others: Sequence[Row]) -> str:
    """Return the answer in one sentence."""
    size = f"{first['gpus']} x {str(first['gpu']).upper()}"
    said = f"Run {first['label'] or 'the deployment'} on {size} at ${first['usd_per_hour']:,.2f}/h"
    if aim.metric:
        said += f": {metric_label(aim.metric)} is {_ms(first['latency'])}"
    elif first["by"] != "replicas":
        said += f": it sustains at least {first['rate_low']:.4g} requests/s (estimate {first['rate']:.4g})"
    if others and (ratio := sure_price(aim, others[0]) / sure_price(aim, first)) >= 1.005:
        said += f"; the next {worse(aim, ratio)}" + _unit(aim)
    return said


def _unit(aim: Aim) -> str:
    """Return what a price is for: for a request, unless rates or latencies are compared."""
    return "" if aim.traffic or aim.metric else " per request"


def _ms(found: Mapping[str, Any]) -> str:
    """Return a latency with its interval over seeds: "52.3 ms (50.1 to 54.4)"."""
    ends = "" if found["low"] is None else f" ({number(found['low'])} to {number(found['high'])})"
    return f"{number(found['ms'])} ms{ends}"


def ratio_words(low: float | None, high: float | None) -> str:
    """Return how sure a ratio of latencies is, from its interval by seed."""
    if low is None or high is None:
        return "; one run of a log has no interval"
    undecided = "" if low > 1 else ", so it is not decided"
    return f"; 95 % interval of the difference {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %{undecided}"


def runner_up_words(aim: Aim, first: Row, other: Row, ratio: float) -> str:
    """Return why the runner-up lost."""
    if ratio < 1.005:
        same = f"has the same {metric_label(aim.metric)}" if aim.metric else "costs the same per request"
        return f"{other['label']} {'sustains the same rate' if aim.traffic else same}"
    said = f"{other['label']} {worse(aim, ratio)}" + _unit(aim)
    if aim.metric:
        return f"{said}: {_ms(other['latency'])} on {other['gpus']} x {str(other['gpu']).upper()}"
    if other["by"] == "replicas":
        said += f": it needs {other['gpus']} x {str(other['gpu']).upper()} at ${other['usd_per_hour']:,.2f}/h"
    elif aim.traffic:
        said += f": surely {other['rate_low']:.4g} requests/s"
    else:
        needed = other["usd_per_hour"] / sure_price(aim, first)
        said += f": it surely sustains {other['rate_low']:.4g} requests/s, not {needed:.4g} for the same price"
    return said + (f"; its limiting factor is {other['binds']}" if other["binds"] else "")


def published_words(aim: Aim, first: Row, other: Row, ratio: float) -> str:
    """Return the price of keeping the published formats."""
    return f"with the formats of the published model, {other['label']} is the best and {worse(aim, ratio)}"


def miss_words(aim: Aim, label: str, ratio: float, share: float, goal: str) -> str:
    """Return by how much a better deployment misses the SLO."""
    gain = f"{percent(1 / ratio)} more requests/s" if aim.traffic else f"{100 * (1 - ratio):.0f} % less"
    return f"{label} at {gain} misses the SLO: {100 * share:.4g} % instead of {goal} (in a short run)"


def changes(aim: Aim, document: Mapping[str, Any], first: Row, others: Sequence[Row]) -> list[str]:
    """Return what would change the answer: other prices, and errors of the model."""
    found = []
    for other in others[: 0 if aim.traffic or aim.metric else 2]:
        one, two = Gpu.load(first["gpu"]), Gpu.load(other["gpu"])
        if one.name == two.name:
            continue
        paid = other["usd_per_hour"] / other["gpus"]
        ratio = sure_price(aim, first) / sure_price(aim, other)
        found.append(
            f"below ${paid * ratio:.2f} per {two.name.upper()}-hour (assumed: ${paid:.2f}), {other['label']} is cheaper"
        )
    error = document["model_error"] or {"decisions": []}
    return found + [one["says"] for one in error["decisions"] if one["holds"] is False]


def measure_words(document: Mapping[str, Any], settings: Mapping[str, Any], first: Row) -> list[str]:
    """Return what to measure on a GPU, and how much surer that makes the answer."""
    tp = f" --tp {settings['tp']}" if int(settings.get("tp") or 1) > 1 else ""
    error = first["model_error"] or {}
    width = ""
    if error.get("low") and error.get("high"):
        unit = "GPUs" if first["by"] == "replicas" else "requests/s"
        width = f" Today the model's error spans {error['low']:.4g} to {error['high']:.4g} {unit}."
    command = f"servesim measure http://localhost:8000 --gpu {settings['gpu']}{tp} --out mine"
    return [
        f"Start the command on one replica and run `{command}` (20 minutes), then `servesim calibrate host mine "
        f"--out terms.yaml` and repeat this search with --host terms.yaml.{width}"
    ]


def without_words(aim: Aim, ratio: float, at_least: bool) -> str:
    """Return what the best deployment without a setting loses; `ratio` is infinite if it carries nothing."""
    return f"the best found {worse(aim, ratio, at_least)}" if ratio < math.inf else "the SLO is missed at any load"


def knob_words(one: Mapping[str, Any]) -> str:
    """Return what a setting of the recommended deployment is worth."""
    value = "the default" if one["value"] is None else one["value"]
    share = f", {100 * one['share']:.0f} % of the gain" if one["share"] is not None else ""
    return f"{one['key']}={value}: without it, {one['without']}{share}"


def searched_words(search: Mapping[str, int]) -> str:
    """Return the extent of the search in a sentence."""
    return (
        f"searched {search['structures']} combinations of GPU, engine, formats and parallelism ({search['refused']} of "
        f"them cannot run or are not measured), of which {search['screened']} were run, and {search['improved']} "
        f"changes of flags and features, in {search['runs']} short runs"
    )
