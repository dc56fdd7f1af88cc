"""Sentences on the worth of a feature: what it saves, whether the saving is certain, and what the feature
needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from servesim.experiments.capacity_error import UNKNOWN
from servesim.experiments.variants import usd_of_gpus
from servesim.run.scenario import Scenario

_TRAINED = {
    "eagle": "a draft head that was trained for this model",
    "eagle3": "a draft head that was trained for this model",
    "medusa": "draft heads that were trained for this model",
    "early-exit": "a model that was trained to exit early",
    "draft-model": "a small model with the same vocabulary",
}
"""Things that a speculator needs besides the model, by the speculator's name."""


def answer_of(worth: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on what each feature is worth, with the rates and prices if there is only one."""
    return worth[0]["says_worth"] if len(worth) == 1 else f"{'; '.join(map(_gain, worth))}."


def sentence(one: Mapping[str, Any]) -> str:
    """Return a sentence on the worth of a feature, with the rates and prices it follows from."""
    said = _gain(one)
    if one["price_ratio"] is None:
        return f"{said}."
    (hour, other), (rate, without) = one["usd_per_hour"], one["rate"]
    if rate == without:
        return f"{said}: ${hour:,.2f}/h instead of ${other:,.2f}/h for {rate:.4g} requests/s."
    return f"{said}: {rate:.4g} requests/s at ${hour:,.2f}/h with it, {without:.4g} at ${other:,.2f}/h without it."


def _gain(one: Mapping[str, Any]) -> str:
    """Return what a feature saves, with its interval, or the reason why that is not known."""
    ours, theirs = one["verdicts"]
    if one["price_ratio"] is None:
        if ours == "carries":
            return f"{one['of']}: without it, no rate is sustained ({theirs})"
        return f"{one['of']}: with it, no rate is sustained ({ours})"
    gain, why = one["gain"], doubt(one)
    begins = f"{one['of']}: undecided ({why}); as simulated it" if why else one["of"]
    saved = f"{begins} saves {100 * gain:.0f} %" if gain >= 0 else f"{begins} costs {-100 * gain:.0f} % more"
    if abs(gain) < 0.005:
        saved = f"{begins} changes the price by less than 0.5 %"
    bars = f" [{100 * one['low']:.0f}, {100 * one['high']:.0f}]" if one["low"] is not None else ""
    rate, without = one["rate"]
    return saved if rate == without else f"{saved}{bars} per request"


def doubt(one: Mapping[str, Any]) -> str:
    """Return the reason why it is undecided whether a feature saves or costs anything, or an empty string."""
    if one["low"] is not None and one["low"] <= 0.0 <= one["high"]:
        return f"over the replicates, the gain is {100 * one['low']:.0f} to {100 * one['high']:.0f} %"
    bars = one["model_error"]
    if bars is None:
        return ""
    if None not in (bars["low"], bars["high"]):
        if bars["low"] <= 0.0 <= bars["high"]:
            return f"given the model's error, the gain is {100 * bars['low']:.0f} to {100 * bars['high']:.0f} %"
        return ""
    ours, theirs = one["usd_range"]
    if ours is None or theirs is None or ours[0] > theirs[1] or theirs[0] > ours[1]:
        return ""
    return "given the model's error, either may be cheaper, because their price intervals overlap"


def usd_range(row: Mapping[str, Any], scenario: Scenario) -> tuple[float, float] | None:
    """Return the range of a deployment's price that its model error allows, in dollars per hour per request/s, or None
    if the model error has no such interval. Each number of GPUs has its own price, since some may be reserved."""
    bars = row.get("model_error")
    if bars is None or not bars["low"] or not bars["high"]:
        return None
    if row["by"] == "replicas":
        low, high = (usd_of_gpus(scenario, bars[end]) / row["rate"] for end in ("low", "high"))
        return low, high
    return row["usd_per_hour"] / bars["high"], row["usd_per_hour"] / bars["low"]


def needs(known: Scenario, without: Scenario) -> Iterator[str]:
    """Yield sentences on what a deployment requires beyond another one and no simulation can show: quality to check,
    and parts to obtain."""
    if known.dtype != without.dtype:
        yield f"Weights in {known.dtype} change the model's answers a little: check them on your own tasks."
    if known.kv_dtype == "fp8" != without.kv_dtype:
        yield "Keys and values in FP8 change the model's answers a little: check them on your own tasks."
    name = known.speculation["name"]
    if name in _TRAINED and name != without.speculation["name"]:
        yield f"Speculation by {name} needs {_TRAINED[name]}."


def needed(worth: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the features that save something need, each once."""
    return list(
        dict.fromkeys(need for one in worth if one["gain"] is not None and one["gain"] > 0 for need in one["needs"])
    )


def error_words(one: Mapping[str, Any]) -> str:
    """Return a sentence on the extent of the model's error, or an empty string if error bars were left out."""
    bars = one["model_error"]
    if bars is None:
        return ""
    if bars["low"] is None and bars["high"] is None:
        return f"{one['of']}{UNKNOWN}{bars['says'].removeprefix('none: ')}"
    low, high = (None if bars[end] is None else f"{100 * bars[end]:.0f}" for end in ("low", "high"))
    gain = f"at most {high}" if low is None else f"at least {low}" if high is None else f"{low} to {high}"
    return (
        f"{one['of']}: the gain is {gain} % ({100 * bars['level']:.0f} % interval {bars['says']}; propagated, "
        "not validated)"
    )
