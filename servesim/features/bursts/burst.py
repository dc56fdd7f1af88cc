"""Effect of a burst of requests on a server: the requests that waited, and the time until the queue was as short as
before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.metrics.requests import SECOND


def burst(table: Mapping[str, NDArray[np.int64]], at_s: float, for_s: float, times: float) -> dict[str, Any]:
    """Return the figures of one burst. `table` holds the request records as columns (arrival_ns, scheduled_ns,
    finished_ns, row), with times relative to the start of the trace.

    `recovery_s` is the time from the end of the burst until no more requests are waiting than the maximum before the
    burst (0 if that is so immediately, None if it is never so within the run). `waited` is the number of requests that
    arrived between the beginning of the burst and the end of the recovery and waited longer than any request before the
    burst; `rows` are the first and the last row of these requests. `longest_wait_before_ms` is the longest wait before
    the burst.
    """
    arrival = table["arrival_ns"]
    start, end = at_s * SECOND, (at_s + for_s) * SECOND
    left = np.where(table["scheduled_ns"] < 0, table["finished_ns"], table["scheduled_ns"])
    times_ns = np.concatenate((arrival, left))
    order = np.lexsort((np.repeat((1, 0), len(arrival)), times_ns))  # simultaneous departures come first
    waiting = np.cumsum(np.repeat((1, -1), len(arrival))[order])
    clock = times_ns[order]
    before = int(waiting[clock < start].max(initial=0))
    long = np.flatnonzero((clock >= start) & (waiting > before))
    after = np.flatnonzero((clock >= end) & (waiting <= before))
    still = waiting[np.searchsorted(clock, end, side="right") - 1] > before
    recovered = end if not still else float(clock[after[0]]) if len(after) else None
    until = recovered if recovered is not None else float(clock[-1])
    wait = left - arrival
    usual = int(wait[arrival < start].max(initial=0))
    slow = np.flatnonzero((arrival >= start) & (arrival <= until) & (wait > usual))
    return {
        "at_s": at_s,
        "for_s": for_s,
        "times": times,
        "requests": int(((arrival >= start) & (arrival < end)).sum()),
        "most_waiting": int(waiting[long].max(initial=before)),
        "most_waiting_before": before,
        "recovery_s": None if recovered is None else (recovered - end) / SECOND,
        "waited": len(slow),
        "rows": [int(table["row"][slow].min()), int(table["row"][slow].max())] if len(slow) else None,
        "longest_wait_ms": float(wait[slow].max(initial=0)) / 1e6,
        "longest_wait_before_ms": usual / 1e6,
    }


def burst_text(found: Mapping[str, Any]) -> str:
    """Describe the figures, including the number of replicas that would have absorbed the burst if a search for it was
    run (servesim.features.bursts.replicas)."""
    held = found.get("held")
    return _what_came_of_it(found) + (f"; {held['says']}" if held else "")


def _what_came_of_it(found: Mapping[str, Any]) -> str:
    begun = f"burst at {found['at_s']:g} s, {found['for_s']:g} s long: {found['requests']:,} requests arrived"
    if not found["waited"]:
        return f"{begun}, and none of them waited longer than earlier requests"
    first, last = found["rows"]
    recovery = found["recovery_s"]
    over = (
        "the queue did not recover before the run ended"
        if recovery is None
        else f"the queue recovered {recovery:.1f} s after the burst ended"
    )
    return (
        f"{begun} and up to {found['most_waiting']:,} waited at once ({found['most_waiting_before']:,} before the "
        f"burst); {over}; {found['waited']:,} requests (rows {first:,} to {last:,}) waited longer than any "
        f"earlier request, up to {found['longest_wait_ms'] / 1000.0:.2f} s"
    )
