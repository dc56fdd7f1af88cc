"""Routers that see past reports of the engines instead of their current state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from servesim.contracts.feature import Feature, features
from servesim.contracts.section import Section

if TYPE_CHECKING:
    from servesim.contracts.figures import Group
    from servesim.contracts.part import Part

SECOND = 1_000_000_000


class ViewSettings(Section):
    """The age of the router's views."""

    report_every_s: float = Field(default=0.0, ge=0, le=1e6)
    """Seconds between reports from a replica to the router. A report contains the replica's queue, running requests
    and memory, as of the last step that has ended. llm-d polls every 0.05 s, SGLang's gateway every 10 s, and vLLM's
    production stack every 30 s. 0 means that the router sees the current state."""
    report_lag_s: float = Field(default=0.0, ge=0, le=1e6)
    """Seconds from a report until the router sees it."""


@features.register("view_lag")
class ViewLagFeature(Feature):
    """Delayed views."""

    rank, section, Settings = 20, "cluster", ViewSettings
    acts = True

    def build(self, setup: Any) -> Part | None:
        from servesim.features.view_lag.part import Reporting

        settings = self.settings(setup.scenario)
        every, lag = round(settings.report_every_s * SECOND), round(settings.report_lag_s * SECOND)
        return Reporting(every, lag) if every else None

    def in_world(self, world: Any, draws: Any) -> Any:
        from servesim.features.view_lag.world import with_reports

        return with_reports(world, draws)

    def groups(self) -> tuple[Group, ...]:
        from servesim.features.view_lag.figures import ROUTER_VIEW

        return (ROUTER_VIEW,)
