"""A run that was measured, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servesim.metrics.measured import Deployment, Measured
from servesim.metrics.requests import Requests, Stats
from servesim.metrics.steps import StepTotals


def measured(
    requests: Requests,
    itl: Stats = None,
    totals: StepTotals | None = None,
    pools: Sequence[Deployment] = (),
    slo: Mapping[str, float] | None = None,
) -> Measured:
    """Return a run with these records, and of the rest what is not given nothing."""
    return Measured(requests, itl, totals if totals is not None else StepTotals(), pools, slo or {})
