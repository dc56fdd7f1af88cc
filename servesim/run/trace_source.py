"""The trace that a scenario names: complete and in memory, or as a stream of chunks."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from servesim.contracts import KVAllocator
from servesim.draws import gamma
from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.sections import Rate, factor_of
from servesim.workload.peak import peak_note
from servesim.workload.trace import Trace
from servesim.workload.trace_stream import TraceStream

OBJECT = "object:"
"""Prefix of the name of a trace that was passed as an object."""
MEAN_GAP_NS = 1e9
"""Mean gap between drawn arrivals, before they are scaled to their rate."""
DRAWN = ("preset:", "synth:")
T = TypeVar("T", Trace, TraceStream)
KEPT_TRACES, KEPT_REQUESTS = 8, 50_000
"""Number of traces kept for the next run of a process, and maximum number of requests in such a trace."""
_KEPT: dict[tuple[Any, ...], Trace] = {}


def open_scenario(scenario: Scenario, trace: Trace | None = None) -> Trace:
    """Open the trace that a scenario names, or the given one, with shape and cuts applied."""
    from servesim.traces import open_trace

    if trace is not None:
        return _cut(trace, scenario)
    _refuse_object(scenario)
    options: dict[str, Any] = {}
    if not scenario.trace.startswith(DRAWN):
        options |= {"sort": True} if scenario.sort else {}
        options |= {"spread_ticks": scenario.spread_ticks} if scenario.spread_ticks != "none" else {}
        options |= {"timing": scenario.timing} if scenario.timing != "auto" else {}
        options |= {"columns": scenario.columns} if scenario.columns is not None else {}
    wanted = scenario.requests + scenario.skip if scenario.requests is not None else None
    if scenario.shape and not scenario.trace.startswith(DRAWN):
        wanted = None  # files are cut after shaping, drawn traces when drawn
    key = (scenario.trace, wanted, scenario.seed, *options.items(), *_stamp(scenario.trace))
    if key not in _KEPT:
        opened = open_trace(scenario.trace, requests=wanted, seed=scenario.seed, **options)
        if len(opened) > KEPT_REQUESTS or not (key[3 + len(options) :] or scenario.trace.startswith("preset:")):
            return _cut(opened, scenario)
        while len(_KEPT) >= KEPT_TRACES:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = opened
    return _cut(_KEPT[key], scenario)


def _stamp(trace: str) -> tuple[int, ...]:
    """Return values that change whenever the trace file does; empty for drawn traces."""
    try:
        found = os.stat(trace)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _cut(trace: Trace, scenario: Scenario) -> Trace:
    from servesim.traces.shape import shape

    trace = shape(trace, scenario.shape, scenario.seed)
    if scenario.skip >= len(trace):
        raise UserError(f"skip is {scenario.skip}, but trace {trace.name} has only {len(trace)} requests")
    end = len(trace) if scenario.requests is None else min(scenario.skip + scenario.requests, len(trace))
    if end - scenario.skip < len(trace):
        trace = trace.take(np.arange(scenario.skip, end))
    if not scenario.trace.startswith(DRAWN) and (note := peak_note(trace.arrival_ns)) is not None:
        trace = replace(trace, notes=(*trace.notes, note))
    rate, factor = scenario.rate, factor_of(scenario.rate)
    if factor is not None and scenario.clients.burstiness is not None and (mean := mean_rate(trace)) is not None:
        rate = factor * mean  # relative to the drawn trace, not the recorded one
    return paced(_redrawn(trace, scenario), rate)


def _redrawn(trace: Trace, scenario: Scenario) -> Trace:
    """Return the trace with gaps drawn from a gamma distribution between its requests, if the clients send that way."""
    burstiness = scenario.clients.burstiness
    if burstiness is None or scenario.rate is None or scenario.rate == float("inf") or len(trace) < 2:
        return trace
    if trace.after is not None:
        raise UserError("clients.burstiness cannot be used with conversations: their turns wait for answers")
    gaps = gamma(scenario.seed, "client arrivals", np.arange(len(trace)), cv=burstiness**-0.5)
    arrival = np.rint(np.cumsum(gaps) * MEAN_GAP_NS).astype(np.int64)
    note = f"gaps between arrivals drawn from a gamma distribution with shape {burstiness:g}"
    return replace(trace, arrival_ns=arrival - arrival[0], notes=(*trace.notes, note))


def open_stream(scenario: Scenario, trace: Trace | None, kv: type[KVAllocator]) -> TraceStream:
    """Open the same trace as `open_scenario`, but in chunks; raise UserError for settings that need the complete
    trace."""
    from servesim.traces import open_stream as opened

    clients = scenario.clients
    whole = {
        "shape": bool(scenario.shape),
        "sort": scenario.sort,
        "spread_ticks": scenario.spread_ticks != "none",
        "columns": scenario.columns is not None,
        "clients.max_sessions": clients.max_sessions is not None,
        "clients.retries": clients.retries > 0,
        "clients.burstiness": clients.burstiness is not None,
        f"kv {scenario.kv['name']}": "future" in kv.needs,
    }
    for name, asked in whole.items():
        if asked:
            raise UserError(f"{name} needs the whole trace in memory, so it cannot be used with --stream")
    wanted = scenario.requests + scenario.skip if scenario.requests is not None else None
    if trace is None:
        _refuse_object(scenario)
        stream: TraceStream = opened(scenario.trace, wanted, scenario.seed)
    else:
        stream = TraceStream.of(trace)
    stream = stream.cut(scenario.skip, scenario.requests)
    if next(stream.read(), None) is None:
        raise UserError(f"skip is {scenario.skip}, but trace {stream.name} has no more requests")
    return paced(stream, scenario.rate)


def _refuse_object(scenario: Scenario) -> None:
    if scenario.trace.startswith(OBJECT):
        raise UserError(f"trace {scenario.trace} was a Python object: pass it again, as simulate(..., trace=...)")


def paced(trace: T, rate: Rate | None) -> T:
    """Return the trace at this rate, with all gaps scaled by one factor, so that peaks remain peaks."""
    if rate is None:
        return trace
    return trace.with_rate(rate) if isinstance(rate, float) else trace.faster(float(rate[:-1]))


def mean_rate(trace: Trace) -> float | None:
    """Return the mean arrivals per second, or None if all requests arrive at the same time."""
    span = int(trace.arrival_ns[-1] - trace.arrival_ns[0]) if len(trace) else 0
    return (len(trace) - 1) / span * 1e9 if span > 0 else None
