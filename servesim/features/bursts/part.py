"""The part of a run for a trace with added bursts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts.part import Finished, Part
from servesim.features.bursts.burst import burst_text
from servesim.features.bursts.figures import BURSTS
from servesim.features.bursts.found import bursts_of
from servesim.features.bursts.replicas import holding


class Bursts(Part):
    """Figures of each burst; with `replicas`, also the number of replicas that would have absorbed it, which takes
    further runs."""

    def __init__(self, scenario: Any, replicas: bool) -> None:
        self._scenario, self._replicas = scenario, replicas
        self._unknown: list[str] = []

    def figures(self, finished: Finished) -> dict[str, Any]:
        bursts, self._unknown = bursts_of(self._scenario, finished.requests.table)
        for found in bursts if self._replicas else ():
            table = finished.records.table.to_pandas()
            found["held"] = holding(
                found, self._scenario, table, lambda count: finished.again({"replicas": count}).requests
            )
        return {"bursts": [BURSTS.of(one) for one in bursts]} if bursts else {}

    def notes(self, summary: Mapping[str, Any]) -> list[str]:
        return [*map(burst_text, summary.get("bursts", ())), *self._unknown]
