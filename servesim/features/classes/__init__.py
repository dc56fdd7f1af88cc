"""Figures by class of service and by tenant, if the trace labels its requests with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servesim.contracts.feature import Feature, features

if TYPE_CHECKING:
    from servesim.contracts.figures import Group
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
        from servesim.features.classes.part import Labeled

        return Labeled(setup.scenario.slo, setup.scenario.slo_classes, len(setup.facts))

    def groups(self) -> tuple[Group, ...]:
        from servesim.features.classes.figures import CLASSES, TENANTS

        return CLASSES, TENANTS
