"""Error bars: the interval in which measured servers like this one lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from servesim.contracts.feature import Feature, Rows, features
from servesim.contracts.schemas import COUNT, FIGURE, NUMBER, SHARE, TEXT, TEXT_OR_NULL, a_map, an_object, or_null
from servesim.contracts.section import Section
from servesim.errors import UserError

if TYPE_CHECKING:
    from servesim.contracts.part import Part


class BarOptions(Section):
    """What is found out about errors."""

    intervals: bool = True
    """Error bars of means, by measured servers."""
    propagate: bool = False
    """Error bars of p99, goodput and price too, by two more runs."""


@features.register("bars")
class BarsFeature(Feature):
    """Error bars."""

    rank, section, Options = 90, "", BarOptions
    rows_after = ("goodput", "throughput")

    def build(self, setup: Any) -> Part | None:
        options = setup.options
        if options.propagate and not options.intervals:
            raise UserError("propagate needs the error bars that --no-intervals (intervals=False) leaves out")
        if not options.intervals:
            return None
        from servesim.features.bars.part import Bars

        return Bars(setup, options.propagate)

    def rows(self, summary: Mapping[str, Any]) -> Rows:
        from servesim.features.bars.words import bar_rows

        return bar_rows(summary["intervals"]) if summary.get("intervals") else []

    def from_summary(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        from servesim.run.error_bars import intervals

        return {"intervals": intervals(summary)}

    def schema(self) -> dict[str, Any]:
        bar = or_null(an_object(mean=NUMBER, low=NUMBER, high=NUMBER, coverage=or_null(a_map(FIGURE))))
        means = dict.fromkeys(("ttft", "tpot", "e2el"), bar)
        fitted = an_object(date=TEXT, cells=COUNT, deployments=COUNT)
        rest = an_object(says=TEXT, runs=COUNT)
        found = an_object(level=SHARE, kind=TEXT_OR_NULL, says=TEXT, fitted=fitted, propagated=rest, **means)
        return {"intervals": found}
