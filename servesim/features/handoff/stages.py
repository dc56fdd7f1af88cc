"""Times of requests in each stage from arrival to end, and the bytes sent for them, summed up as they are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.metrics.distribution import Values
from servesim.metrics.requests import MS, RequestColumns
from servesim.metrics.sketch import Sketch

STAGES = ("prefill_queue", "prefill", "handover", "wire", "first_step", "decode")


class Stages:
    """Times in each stage of the completed requests that went through both sides, and transfers of all requests."""

    def __init__(self) -> None:
        self._spent: Mapping[str, Values | Sketch] = {name: Values() for name in STAGES}
        self._straight_ttft: Values | Sketch = Values()
        self.requests = self.straight = 0
        """Number of requests, and of those whose prompt a decode replica computed."""
        self.transfers = 0
        self.num_bytes = 0

    def sketch(self) -> None:
        """Keep no times from here on, only sketches of them."""
        self._spent = {name: Sketch() for name in STAGES}
        self._straight_ttft = Sketch()

    def add(
        self, requests: RequestColumns, own: Mapping[str, NDArray[np.int64]], straight: NDArray[np.bool_] | None
    ) -> None:
        """Add recorded requests with their columns of passages (`figures.COLUMNS`). `straight`: which of them went
        straight to a decode replica, or None if none may."""
        if straight is not None:
            self.requests += len(straight)
            self.straight += int(straight.sum())
            first = {name: requests.table[name][straight & requests.done] for name in ("arrival_ns", "first_token_ns")}
            self._straight_ttft.add(first["first_token_ns"] - first["arrival_ns"])
        received = own["received_ns"] >= 0
        self.transfers += int(received.sum())
        self.num_bytes += int(own["kv_bytes"][received].sum())
        migrated = own["received_ns"] > requests.table["first_token_ns"]  # its stages after the crash are other ones
        through = requests.done & received & ~migrated
        table = {name: column[through] for name, column in {**requests.table, **own}.items()}
        begun = np.maximum(table["prefilled_ns"], table["reserved_ns"])  # if memory was taken earlier, as SGLang does
        ends = [table[name] for name in ("arrival_ns", "scheduled_ns", "prefilled_ns")]
        ends += [begun, *(table[name] for name in ("received_ns", "first_token_ns", "last_token_ns"))]
        for spent, start, end in zip(self._spent.values(), ends, ends[1:], strict=False):
            spent.add(end - start)

    def straight_ttft_ms(self) -> dict[str, float] | None:
        """Return the distribution of TTFT in ms of the completed requests that went straight to a decode replica."""
        return self._straight_ttft.describe(MS)

    def stages_ms(self) -> dict[str, Any]:
        """Return the distribution of times in ms by stage."""
        return {name: spent.describe(MS) for name, spent in self._spent.items()}
