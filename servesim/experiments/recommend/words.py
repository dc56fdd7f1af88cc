"""Sentences of a recommendation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.experiments.recommend.aims import MostTraffic, PriceForRate, PricePerRequest
from servesim.hardware import Gpu

Row = Mapping[str, Any]
AIMS: dict[type[Any], str] = {
    PricePerRequest: "price per request",
    PriceForRate: "price for the rate",
    MostTraffic: "highest rate for the GPUs",
}
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


def sure_price(row: Row) -> float:
    """Return the hourly price per request/s at the low end of the rate's interval, or at the rate of the question."""
    rate = row["rate"] if row["by"] == "replicas" else row["rate_low"]
    return float(row["usd_per_hour"] / rate) if rate else math.inf


def first_words(first: Row, others: Sequence[Row]) -> str:
    """Return the answer in one sentence."""
    size = f"{first['gpus']} x {str(first['gpu']).upper()}"
    said = f"Run {first['label'] or 'the deployment'} on {size} at ${first['usd_per_hour']:,.2f}/h"
    if first["by"] != "replicas":
        said += f": it sustains at least {first['rate_low']:.4g} requests/s (estimate {first['rate']:.4g})"
    if others and (ratio := sure_price(others[0]) / sure_price(first)) >= 1.005:
        said += f"; the next costs {percent(ratio)} more per request"
    return said


def runner_up_words(first: Row, other: Row, ratio: float) -> str:
    """Return why the runner-up lost."""
    if ratio < 1.005:
        return f"{other['label']} costs the same per request"
    said = f"{other['label']} costs {percent(ratio)} more per request"
    if other["by"] == "replicas":
        said += f": it needs {other['gpus']} x {str(other['gpu']).upper()} at ${other['usd_per_hour']:,.2f}/h"
    else:
        needed = other["usd_per_hour"] / sure_price(first)
        said += f": it surely sustains {other['rate_low']:.4g} requests/s, not {needed:.4g} for the same price"
    return said + (f"; its limiting factor is {other['binds']}" if other["binds"] else "")


def published_words(first: Row, other: Row, ratio: float) -> str:
    """Return the price of keeping the published formats."""
    return f"with the formats of the published model, {other['label']} is the best and costs {percent(ratio)} more"


def miss_words(label: str, ratio: float, share: float, goal: str) -> str:
    """Return by how much a cheaper deployment misses the SLO."""
    return (
        f"{label} at {100 * (1 - ratio):.0f} % less misses the SLO: {100 * share:.4g} % instead of {goal} "
        "(in a short run)"
    )


def changes(document: Mapping[str, Any], first: Row, others: Sequence[Row]) -> list[str]:
    """Return what would change the answer: other prices, and errors of the model."""
    found = []
    for other in others[:2]:
        one, two = Gpu.load(first["gpu"]), Gpu.load(other["gpu"])
        if one.name == two.name:
            continue
        paid = other["usd_per_hour"] / other["gpus"]
        ratio = sure_price(first) / sure_price(other)
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


def knob_words(one: Mapping[str, Any]) -> str:
    """Return what a setting of the recommended deployment is worth."""
    ratio, value = one["price_ratio"], one["value"]
    what = f"{one['key']}={'the default' if value is None else value}"
    if ratio is None:
        return f"{what}: without it, the SLO is missed at any load"
    least = "at least " if one["at_least"] else ""
    share = f", {100 * one['share']:.0f} % of the gain" if one["share"] is not None else ""
    return f"{what}: without it, the best found costs {least}{percent(ratio)} more{share}"


def searched_words(search: Mapping[str, int]) -> str:
    """Return the extent of the search in a sentence."""
    return (
        f"searched {search['structures']} combinations of GPU, engine, formats and parallelism ({search['refused']} of "
        f"them cannot run or are not measured), of which {search['screened']} were run, and {search['improved']} "
        f"changes of flags and features, in {search['runs']} short runs"
    )
