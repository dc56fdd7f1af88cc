"""Outcome of the bursts that a scenario's shape adds, and the number of replicas that would have absorbed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from servesim.contracts.feature import Feature, features
from servesim.contracts.section import Section

if TYPE_CHECKING:
    from servesim.contracts.figures import Group
    from servesim.contracts.part import Part


class BurstOptions(Section):
    """Options of bursts."""

    burst_replicas: bool = Field(default=False, json_schema_extra={"on_command_line": True})
    """Find, with additional runs, how many replicas would have absorbed each burst in the shape."""


@features.register("bursts")
class BurstsFeature(Feature):
    """Bursts of a shape."""

    rank, section, Options = 80, "", BurstOptions

    def build(self, setup: Any) -> Part | None:
        if setup.stream is not None or not any(text.startswith("burst") for text in setup.scenario.shape):
            return None
        from servesim.features.bursts.part import Bursts

        return Bursts(setup.scenario, setup.options.burst_replicas and not setup.scenario.pools)

    def groups(self) -> tuple[Group, ...]:
        from servesim.features.bursts.figures import BURSTS

        return (BURSTS,)
