"""Limits of a scenario as users write them, taken apart into numbers and percentiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.metrics.slo import is_time, milliseconds, parse_slo, split_slo
from servesim.parsing import spelt


def with_percentiles(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which limits, of all requests (`slo`) and of classes (`slo_classes`), are milliseconds by
    metric, and percentiles stand in keys of their own. What is no limits at all is left for the validation to refuse.
    """
    found = dict(settings)
    plain, percentiles = _taken_apart(found.get("slo"))
    found |= {"slo": plain} if "slo" in found else {}
    found |= {"slo_percentiles": percentiles} if percentiles else {}
    classes = found.get("slo_classes")
    if isinstance(classes, Mapping):
        apart = {name: _taken_apart(limits) for name, limits in classes.items()}
        found["slo_classes"] = {name: limits for name, (limits, _) in apart.items()}
        each = {name: percentiles for name, (_, percentiles) in apart.items() if percentiles}
        found |= {"slo_class_percentiles": each} if each else {}
    return found


def _taken_apart(limits: Any) -> tuple[Any, dict[str, float]]:
    limits = parse_slo(limits) if isinstance(limits, str) and limits else limits
    if not isinstance(limits, Mapping):
        return limits, {}
    plain, percentiles = split_slo(limits)
    numbers = {name: milliseconds(name, value) if is_time(value) else spelt(value) for name, value in plain.items()}
    return numbers, percentiles


def check_percentiles(limits: Mapping[str, float], percentiles: dict[str, float]) -> dict[str, float]:
    """Return percentiles of limits; ValueError where one has no limit, or is none."""
    for name, percentile in percentiles.items():
        if name not in limits or not 0 < percentile <= 100:
            raise ValueError("percentiles of limits in slo, above 0 and up to 100, are needed")
    return percentiles
