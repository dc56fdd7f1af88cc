"""Records and limits by label: class of service, tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from servesim.metrics.slo import SLO_METRICS

Slos = Mapping[str, Mapping[str, float]]


def class_limits(
    labels: Sequence[str], rows: NDArray[np.int64], slo: Mapping[str, float], slos: Slos
) -> dict[str, NDArray[np.float64]]:
    """Return the limits in ms, by metric, for the requests of these trace rows: the limits of a request's class if the
    class has its own, otherwise the common limits; infinity where there is no limit."""
    own = [slos.get(labels[row], slo) for row in rows.tolist()]
    known = [name for name in SLO_METRICS if name in slo or any(name in limits for limits in slos.values())]
    return {name: np.array([limits.get(name, np.inf) for limits in own], dtype=np.float64) for name in known}
