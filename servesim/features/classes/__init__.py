"""Figures by class of service and by tenant, if the trace labels its requests so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servesim.contracts.feature import Feature, features
from servesim.contracts.schemas import COUNT, DISTRIBUTION, FIGURE, a_map, an_object, or_null

if TYPE_CHECKING:
    from servesim.contracts.part import Part


@features.register("classes")
class ClassesFeature(Feature):
    """Classes of service and tenants."""

    rank, section = 70, ""
    claims = ("slo_classes", "slo_class_percentiles")

    def build(self, setup: Any) -> Part | None:
        labels = setup.facts.labels if setup.stream is not None else setup.trace.labels
        if not {"class", "tenant"} & set(labels):
            return None
        from servesim.features.classes.part import Classes

        return Classes(setup.scenario.slo, setup.scenario.slo_classes, len(setup.facts))

    def schema(self) -> dict[str, Any]:
        latencies = an_object(**dict.fromkeys(("ttft", "tpot", "e2el"), DISTRIBUTION))
        good = or_null(an_object(slo_attainment=FIGURE, good_requests=COUNT, request_goodput=FIGURE))
        group = {
            "arrived": COUNT,
            "completed": COUNT,
            "output_throughput": FIGURE,
            "latency_ms": latencies,
            "goodput": good,
        }
        tenant = an_object(service=FIGURE, speed=FIGURE, **group)
        sums = {"good_requests": COUNT, "request_goodput": FIGURE, "slo_attainment": FIGURE}
        return {
            "classes": an_object(classes=a_map(an_object(**group)), **sums),
            "tenants": an_object(tenants=a_map(tenant), jain_index=a_map(FIGURE)),
        }
