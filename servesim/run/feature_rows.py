"""What features say of a run, among the rows of the terminal's table and of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts.feature import Feature, Rows
from servesim.run.scenario import scenario_features


def feature_rows(summary: Mapping[str, Any]) -> Rows:
    """Return the rows of all features, by rank."""
    return [row for feature in _features(summary) for row in feature.rows(summary)]


def with_rows(rows: Rows, summary: Mapping[str, Any]) -> Rows:
    """Return a table's rows with those of features among them."""
    found = [*rows]
    for feature in _features(summary):
        labels = [label for label, _ in found]
        at = next((labels.index(label) + 1 for label in feature.rows_after if label in labels), len(found))
        found[at:at] = feature.rows(summary)
    return found


def _features(summary: Mapping[str, Any]) -> tuple[Feature, ...]:
    return scenario_features(tuple(summary["scenario"].get("features", ())))
