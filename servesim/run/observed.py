"""A core that tells which requests each step computes: for records of single steps, in reference mode."""

from __future__ import annotations

from collections.abc import Callable

from servesim.contracts.plan import Plan
from servesim.engine.core import EngineCore
from servesim.records.step import Step

Observer = Callable[[int, Plan], None]
"""Called with a step's id and its plan, once the plan has been verified."""


class ObservedCore(EngineCore):
    """An EngineCore whose `observer`, if there is one, is told every step that is planned."""

    observer: Observer | None = None

    def plan(self, now: int) -> Step | None:
        """Plan the next step, and tell the observer."""
        step = super().plan(now)
        if step is not None and self.observer is not None and self.last_plan is not None:
            self.observer(step.id, self.last_plan)
        return step
