"""Routers that see past reports of the engines instead of their current state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from servesim.contracts.feature import Feature, features
from servesim.contracts.section import Section

if TYPE_CHECKING:
    from servesim.contracts.figures import Group
    from servesim.contracts.part import Part

SECOND = 1_000_000_000


class ViewSettings(Section):
    """The age of the router's views."""

    report_every_s: float | None = Field(default=None, ge=0, le=1e6)
    """Seconds between reports from a replica to the router. A report contains the replica's queue, running requests
    and memory, as of the last step that has ended. 0 means that the router sees the current state. None is what the
    router's gateway does by default: llm-d polls every 0.05 s and smg every 10 s. Routers that use no reports see the
    current state."""
    report_lag_s: float = Field(default=0.0, ge=0, le=1e6)
    """Seconds from a report until the router sees it."""


@features.register("view_lag")
class ViewLagFeature(Feature):
    """Delayed views."""

    rank, section, Settings = 20, "cluster", ViewSettings
    acts = True
    alone: ClassVar[Mapping[str, Any]] = {"cluster.report_every_s": 0}

    def is_on(self, scenario: Any) -> bool:
        return every_s(scenario) > 0

    def resolved(self, scenario: Any) -> dict[str, Any]:
        every, cluster = every_s(scenario), scenario.cluster
        return {"cluster": cluster.model_copy(update={"report_every_s": every})} if every else {}

    def build(self, setup: Any) -> Part | None:
        from servesim.features.view_lag.part import Reporting

        settings = self.settings(setup.scenario)
        every, lag = round(every_s(setup.scenario) * SECOND), round(settings.report_lag_s * SECOND)
        return Reporting(every, lag) if every else None

    def in_world(self, world: Any, draws: Any) -> Any:
        from servesim.features.view_lag.world import with_reports

        return with_reports(world, draws)

    def groups(self) -> tuple[Group, ...]:
        from servesim.features.view_lag.figures import ROUTER_VIEW

        return (ROUTER_VIEW,)


def every_s(scenario: Any) -> float:
    """Return the seconds between reports: the scenario's, or else those between which its router polls."""
    given: float | None = scenario.cluster.report_every_s
    if given is not None:
        return given
    from servesim.contracts.router import routers

    router, params = routers.configured(scenario.router)
    return router.polls_s(params)
