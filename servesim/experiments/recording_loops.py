"""Detection of open and closed loops, i.e. whether a recorded run's client waited for answers before sending more
requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from servesim.experiments.recording import Ints, RecordedRun

MOST_TURN_NS = 10_000_000
"""Maximum time from an answer to the request that it made room for. Clients of known closed loops took 0.03 to 0.16 ms
(1st to 99th percentile; 256 requests in flight, same host)."""
FLAT = 0.02
"""Maximum relative amount by which the number of requests in flight may fall below its peak, for at least a fraction
FLAT_SENDS of the sends after the peak is reached."""
FLAT_SENDS = 0.9


def tell_loop(run: RecordedRun) -> RecordedRun:
    """Return the run as a closed loop if it was recorded as an open one but the number of requests in flight stays at a
    cap and each request beyond the cap was sent right after an answer. Return any other run unchanged.

    If the requests of such a run were sent at their recorded times, they would queue up at a simulated server that is
    slower by a few percent, which the recorded client did not allow.
    """
    if run.concurrency is not None or len(run) < 3 or not np.isfinite(run.e2el_ms).all():
        return run
    sent, ends = run.arrival_ns, np.sort(run.arrival_ns + np.rint(run.e2el_ms * 1e6).astype(np.int64))
    in_flight = np.arange(1, len(sent) + 1) - np.searchsorted(ends, sent, side="right")
    cap = int(in_flight.max())
    reached = int(np.argmax(in_flight == cap))
    later = in_flight[reached:]
    if len(later) < max(len(sent) / 2, 2) or np.mean(later >= (1 - FLAT) * cap - 1) < FLAT_SENDS:
        return run
    turns = sent[cap:] - ends[: len(sent) - cap]
    turn = float(np.median(turns[max(reached - cap, 0) :])) if len(turns) else np.inf
    if not 0 <= turn <= MOST_TURN_NS:
        return run
    note = (
        f"a closed loop: {cap} requests are in flight from request {reached + 1} on, and each is sent "
        f"{turn / 1e6:.2g} ms (median) after an answer. The replay uses --max-concurrency {cap}, because requests "
        "sent at recorded times would pile up on a slower simulated server"
    )
    return replace(run, concurrency=cap, notes=(*run.notes, note))


def due_ns(run: RecordedRun) -> Ints:
    """Return the earliest time at which the replay may send each request. A client that runs a closed loop also waits
    for an answer before it sends another request; beyond the cap, it waits for nothing else."""
    if run.concurrency is None or not len(run):
        return run.arrival_ns
    due: Ints = np.minimum(run.arrival_ns, run.arrival_ns[min(run.concurrency, len(run)) - 1])
    return due
