"""Energy per request: a feature in one file, as a user writes it."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from servesim.contracts.feature import Feature
from servesim.contracts.figures import Figure, Group
from servesim.contracts.part import Finished, Part
from servesim.contracts.section import Section
from servesim.metrics.requests import per


class Power(Section):
    """The power of a GPU."""

    busy_w: float = Field(default=700.0, ge=0, le=1e5)
    """Watts of a GPU while it computes."""
    idle_w: float = Field(default=100.0, ge=0, le=1e5)
    """Watts of a GPU while it waits."""


ENERGY = Group(
    "energy",
    "energy",
    (
        Figure("joules", "energy of all GPUs", lambda m: m[0], "J"),
        Figure("joules_per_request", "that over completed requests", lambda m: per(*m), "J", better="lower"),
    ),
)


class Meter(Part):
    def __init__(self, power: Power) -> None:
        self.power = power

    def conclusions(self, summary: Mapping[str, Any], finished: Finished) -> dict[str, Any]:
        busy, done = summary["engine"]["gpu_busy_share"] or 0.0, summary["requests"]["completed"]
        watts = busy * self.power.busy_w + (1 - busy) * self.power.idle_w
        return {"energy": ENERGY.of((watts * 3600 * summary["price"]["gpu_hours"], done))}


class Energy(Feature):
    Settings = Power

    def build(self, setup: Any) -> Part:
        return Meter(self.settings(setup.scenario))

    def groups(self) -> tuple[Group, ...]:
        return (ENERGY,)
