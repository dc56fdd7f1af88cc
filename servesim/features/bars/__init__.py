"""Error bars: the interval in which measured servers like this one lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from servesim.contracts.feature import Feature, features
from servesim.contracts.section import Section
from servesim.errors import UserError

if TYPE_CHECKING:
    from servesim.contracts.figures import Group
    from servesim.contracts.part import Part


class BarOptions(Section):
    """Options of error bars."""

    intervals: bool = True
    """Add error bars to means, based on measured servers."""
    propagate: bool = False
    """Add error bars to p99, goodput and price as well, from two more runs."""


@features.register("bars")
class BarsFeature(Feature):
    """Error bars."""

    rank, section, Options = 90, "", BarOptions

    def build(self, setup: Any) -> Part | None:
        options = setup.options
        if options.propagate and not options.intervals:
            raise UserError("propagate needs the error bars that --no-intervals (intervals=False) leaves out")
        if not options.intervals:
            return None
        from servesim.features.bars.part import Bars

        return Bars(setup, options.propagate)

    def groups(self) -> tuple[Group, ...]:
        from servesim.features.bars.figures import INTERVALS

        return (INTERVALS,)

    def from_summary(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        from servesim.features.bars.figures import INTERVALS
        from servesim.run.error_bars import intervals

        return {"intervals": INTERVALS.of(intervals(summary))}
