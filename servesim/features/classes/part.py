"""The part of a run for labeled requests: figures of each class and of each tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts.part import Finished, Part
from servesim.features.classes.figures import CLASSES, TENANTS, Classes, Tenants
from servesim.metrics.measured import good_of
from servesim.metrics.request_figures import GOODPUT


class Labeled(Part):
    """Figures by label. `slo`, `slo_classes`: limits in ms, for all requests and for individual classes; `rows`: number
    of requests in the trace."""

    def __init__(self, slo: Mapping[str, float], slo_classes: Mapping[str, Mapping[str, float]], rows: int) -> None:
        self._slo, self._slo_classes, self._rows = slo, slo_classes, rows

    def figures(self, finished: Finished) -> dict[str, Any]:
        requests, records = finished.requests, finished.records
        found: dict[str, Any] = {}
        if "class" in records.groups:
            classes = records.groups["class"].parts
            found["classes"] = CLASSES.of(Classes(requests, classes, self._slo, self._slo_classes))
            if self._slo_classes:
                good = good_of(requests, self._slo, records.limits)
                found["goodput"] = GOODPUT.values(good._replace(slo_classes_ms=self._slo_classes))
        if "tenant" in records.groups:
            tenants = records.groups["tenant"]
            found["tenants"] = TENANTS.of(Tenants(requests, tenants.parts, self._rows, self._slo, tenants.sums))
        return found
