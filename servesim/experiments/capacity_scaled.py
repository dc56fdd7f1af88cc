"""Deployments with autoscaled replicas in a capacity question: the quantity searched for, and the cost.

A fixed deployment costs money all the time, but an autoscaler's replicas only while they are up. Their price is
therefore a result of the runs. Its interval is a t interval over seeds, or over windows of a recorded trace, centered
on the overall price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servesim.contracts.section import Settings, policy_settings
from servesim.errors import UserError
from servesim.experiments.axes import Variant
from servesim.experiments.outcome import Outcome
from servesim.experiments.statistics import mean_interval
from servesim.run.scenario import Scenario, fleet_varies

SCALED = ("usd_per_hour_low", "usd_per_hour_high")


def scaled_labels(variants: Sequence[Variant]) -> frozenset[str]:
    """Return the labels of the deployments with an autoscaler."""
    found = []
    for v in variants:
        try:
            if fleet_varies(Scenario.of(v.settings)):
                found.append(v.label)
        except UserError:
            continue  # its run reports the error
    return frozenset(found)


def check_scalers(command: str, variants: Sequence[Variant]) -> None:
    """Raise UserError, with the name of the command, if an autoscaler's maximum number of replicas is given, because
    the search determines it."""
    for v in variants:
        if v.settings.get("scaler") is not None and "max" in policy_settings(v.settings["scaler"]):
            raise UserError(
                f"{command}: the autoscaler's max cannot be combined with --rate, because {command} searches for it"
            )


def at_load(settings: Mapping[str, Any], key: str, load: float) -> Settings:
    """Return the settings of a load, which is a rate or a number of replicas. With an autoscaler, that number is both
    the maximum and the initial number of replicas."""
    scaler = settings.get("scaler")
    if key != "replicas" or scaler is None:
        return {key: load}
    given = policy_settings(scaler)
    least = {"min": min(int(given["min"]), int(load))} if "min" in given else {}
    return {key: load, "scaler": {**given, **least, "max": int(load)}}


def cost_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the hourly price of the replicas that were up, and its interval."""
    usd = float(np.mean([outcome.usd_per_hour for outcome in outcomes]))
    values = np.array(outcomes[0].usd_parts or [outcome.usd_per_hour for outcome in outcomes])
    low = high = usd
    if len(values) > 1:
        ends = mean_interval(values, bool(outcomes[0].usd_parts))
        low, high = (max(usd + end - float(values.mean()), 0.0) for end in ends)
    found = {"usd_per_hour": usd, "usd_per_hour_low": low, "usd_per_hour_high": high}
    return {name: round(value, 9) for name, value in found.items()}  # always-up replicas cost the same as fixed ones


def hour_text(row: Mapping[str, Any]) -> str:
    """Return the hourly price, with its interval for an autoscaler: "$2.30/h (2.21 to 2.39)"."""
    text = f"${row['usd_per_hour']:,.2f}/h"
    low, high = row["usd_per_hour_low"], row["usd_per_hour_high"]
    return text if low is None or low == high else f"{text} ({low:,.2f} to {high:,.2f})"


def against_fixed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each deployment with an autoscaler, on what it saves or misses relative to the cheapest
    fixed deployment. Return an empty list if there is no fixed or no autoscaled one."""
    costs = [row for row in rows if row["verdict"] == "carries" and row["usd_per_hour_low"] is None]
    scaled = [row for row in rows if row["usd_per_hour_low"] is not None]
    if not costs:
        return []
    fixed = min(costs, key=lambda row: float(row["usd_per_hour"]))
    return [_beside(row, fixed) for row in scaled]


def _beside(row: Mapping[str, Any], fixed: Mapping[str, Any]) -> str:
    always = f"{fixed['gpus']} x {str(fixed['gpu']).upper()} all the time"
    if row["verdict"] != "carries":
        why = f": {row['reason']}" if row["reason"] else ""
        share = f"{100 * row['best_attainment']:.4g} % at best"
        instead = f"{hour_text(row)} instead of {hour_text(fixed)} for {always}"
        return f"{row['label']} at {instead} misses the limits, {share}{why}"
    usd = float(fixed["usd_per_hour"])
    if not usd:
        return f"{row['label']} and {always} are free"
    saved = [100 * (1 - row[key] / usd) for key in ("usd_per_hour", "usd_per_hour_high", "usd_per_hour_low")]
    if round(saved[0]) == 0 and saved[1] == saved[2]:
        return f"{row['label']} costs as much as {always}"
    sign, way = (1, "less") if saved[0] >= 0 else (-1, "more")
    low, high = sorted(sign * each for each in saved[1:])
    bounds = f" (95 % interval {round(low)} to {round(high)} %)" if low < high else ""
    return f"{row['label']} costs {sign * saved[0]:.0f} % {way}{bounds} than {always}"
