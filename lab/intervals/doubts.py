"""Doubtful cases: the expected error from which a run says that servers like it were simulated worst, and how many of
the worst cells that would have found.

The expected error of a cell comes from bars that its deployment was left out of: `Factors.expected` of the metric `BY`.
That metric and the weight of the scale were chosen among three metrics and four weights, with the same cells in view
(27 November 2026), which find 25 to 35 % of the worst tenth.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim.intervals.distance import DEPLOYMENT
from servesim.intervals.fitted import WORST, Factors
from servesim_lab.intervals.conformal import Floats, leave_out
from servesim_lab.intervals.fit import Data, inner_folds

BY = "tpot"
"""Metric whose expected error is compared."""
OF = "e2e"
"""Metric by which cells are the worst."""
FALSE_ALARMS = 0.1
"""Share of the other cells for which a false alarm is accepted."""


def doubts(data: Data) -> dict[str, Any]:
    """Return the expected error from which a case is doubtful (`above`), the relative error from which a cell is one of
    the worst (`worst`), the share of those found, the share of false alarms, the share of the doubtful cells that are
    among the worst (`right`, null if none is doubtful), and the metrics `by` and `of`."""
    size, expected = np.abs(data.residuals(OF)), _expected(data)
    bound = float(np.quantile(size, 1 - WORST))
    worst = size >= bound
    above = float(np.quantile(expected[~worst], 1 - FALSE_ALARMS))
    doubtful = expected > above
    return {
        "by": BY,
        "of": OF,
        "above": round(above, 3),
        "worst": round(float(np.expm1(bound)), 3),
        "found": round(float(doubtful[worst].mean()), 3),
        "false_alarms": round(float(doubtful[~worst].mean()), 3),
        "right": round(float(worst[doubtful].mean()), 3) if doubtful.any() else None,
    }


def _expected(data: Data) -> Floats:
    """Return the expected errors (n) of BY, each from cells of other deployments."""
    y = data.residuals(BY)
    design, spread = data.designs(DEPLOYMENT)
    found = np.full(len(y), np.nan)
    for fold in data.folds(DEPLOYMENT):
        used = ~fold.barred
        weights = np.where(used, data.weights, 0.0)
        left = leave_out(design, spread, y, weights, inner_folds(data, DEPLOYMENT, used))
        location, scale = design.values(left.location), np.exp(spread.values(left.scale))
        for i in np.flatnonzero(fold.predicted):
            found[i] = Factors(float(location[i]), float(scale[i]), ()).expected
    return found
