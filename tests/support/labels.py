"""Records of a run by label, one label at a time: the plain form of `servesim.run.label_groups`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servesim.metrics.requests import RequestColumns


def parts_of(columns: RequestColumns, labels: Sequence[str]) -> dict[str, RequestColumns]:
    """Return the records of each label, sorted by label. `labels`: one per trace row; retries have the label of their
    row."""
    names = np.array(labels)[columns.table["row"] % len(labels)]
    return {str(name): columns.take(names == name) for name in np.unique(names)}
