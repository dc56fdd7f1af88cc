"""Part of a run that computes error bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts.part import Finished, Part
from servesim.features.bars.figures import INTERVALS
from servesim.features.bars.propagation import NOT_ASKED, propagated
from servesim.run.error_bars import intervals


class Bars(Part):
    """Error bars of means, from the summary. With `propagate`, also those of the other figures, which take two more
    runs."""

    def __init__(self, setup: Any, propagate: bool) -> None:
        self._setup, self._propagate = setup, propagate

    def conclusions(self, summary: Mapping[str, Any], finished: Finished) -> dict[str, Any]:
        found = intervals(summary)
        if not self._propagate:
            return {"intervals": INTERVALS.of(found | {"propagated": {"says": NOT_ASKED, "runs": 0}})}
        setup = self._setup
        waits = setup.trace.after is not None
        bars = propagated(summary, setup.asked, setup.facts, waits, lambda more: finished.again(more).summary)
        return {"intervals": INTERVALS.of(found | {"propagated": bars})}
