"""What became of the bursts that a scenario's shape adds, and how many replicas would have held them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from servesim.contracts.feature import Feature, features
from servesim.contracts.schemas import COUNT, FIGURE, NUMBER, TEXT, a_list, an_object, or_null
from servesim.contracts.section import Section

if TYPE_CHECKING:
    from servesim.contracts.part import Part


class BurstOptions(Section):
    """What is found out about bursts."""

    burst_replicas: bool = Field(default=False, json_schema_extra={"on_command_line": True})
    """Find out by further runs how many replicas would have held each burst of the shape."""


@features.register("bursts")
class BurstsFeature(Feature):
    """Bursts of a shape."""

    rank, section, Options = 80, "", BurstOptions

    def build(self, setup: Any) -> Part | None:
        if setup.stream is not None or not any(text.startswith("burst") for text in setup.scenario.shape):
            return None
        from servesim.features.bursts.part import Bursts

        return Bursts(setup.scenario, setup.options.burst_replicas and not setup.scenario.pools)

    def schema(self) -> dict[str, Any]:
        count = {"type": ["integer", "null"]}
        held = an_object(replicas=count, share=FIGURE, runs=COUNT, says=TEXT)
        times = dict.fromkeys(("at_s", "for_s", "times", "longest_wait_ms", "longest_wait_before_ms"), NUMBER)
        counts = dict.fromkeys(("requests", "most_waiting", "most_waiting_before", "waited"), COUNT)
        one = an_object({"held": held}, recovery_s=FIGURE, rows=or_null(a_list(COUNT)), **times, **counts)
        return {"bursts": a_list(one)}
