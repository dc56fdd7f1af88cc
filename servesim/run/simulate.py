"""Run a scenario: from settings to a Result."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.engine import compiled
from servesim.engine.cluster import Cluster
from servesim.errors import UserError
from servesim.metrics.bursts import burst_text
from servesim.metrics.classes import by_class, by_tenant
from servesim.metrics.requests import RequestColumns, goodput
from servesim.metrics.summary import summarize
from servesim.run.beginning import check_beginning
from servesim.run.burst_replicas import holding
from servesim.run.bursts import bursts_of
from servesim.run.custom_metrics import Function, custom_values, load_metrics
from servesim.run.fleet import FleetFigures
from servesim.run.intervals import intervals as error_bars
from servesim.run.notes import after_run, on_costs
from servesim.run.offload import offload_figures
from servesim.run.pools import of_each
from servesim.run.processes import check_independent, run_apart
from servesim.run.propagation import NOT_ASKED, propagated
from servesim.run.records import Records, StreamedRecords
from servesim.run.result import Result
from servesim.run.result_files import ResultWriter
from servesim.run.scenario import Scenario, load_settings, with_parts
from servesim.run.setup import Setup, set_up
from servesim.run.speculation import figures as speculation_figures
from servesim.run.stages import stage_columns, stages
from servesim.run.step_requests import StepRequests, check_step_requests
from servesim.run.trace_source import OBJECT
from servesim.run.views import sendings_of, view_columns, view_figures
from servesim.workload.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int], None]
"""Called now and then with (simulated ns, requests that have left)."""


def simulate(
    scenario: Scenario | Mapping[str, Any] | str | Path | None = None,
    *,
    trace: str | Trace | pd.DataFrame | None = None,
    out: str | Path | None = None,
    on_ready: Callable[[Setup], Progress | None] | None = None,
    jobs: int = 1,
    intervals: bool = True,
    propagate: bool = False,
    page: Callable[[Path], object] | None = None,
    overwrite: bool = True,
    step_requests: bool = False,
    metrics: str | Function | Iterable[str | Function] | None = None,
    burst_replicas: bool = False,
    **settings: Any,
) -> Result:
    """Replay a trace and return its result.

    The run is described by keywords (`servesim.Scenario` lists them), by a scenario (an object, a mapping, or
    a YAML file), or by a scenario with keywords that override it. `trace` may be a Trace, or a DataFrame that
    servesim.load_trace makes one of. With `out` the result directory is written too, step records while the run goes
    on. `page` writes a page into the directory before it is in place. `on_ready` is told the resolved setup before
    the run begins and may return a callback for progress. With `jobs`
    replicas are served in `jobs` processes, where a router splits requests without looking at them; the result is the
    same to the byte. `intervals`: error bars are part of the summary; `propagate`: those of percentiles, goodput and
    price too, which takes two more runs (servesim.run.propagation). Without `overwrite` the result of another
    scenario that stands in `out` is not replaced.
    `step_requests`: with mode="reference", write which requests each step computed (servesim.run.step_requests).
    `metrics`: functions of your own, or `file.py:function` (servesim.run.custom_metrics), whose values are
    `summary["custom_metrics"]`. `burst_replicas`: find out by further runs how many replicas would have held a burst
    of the scenario's shape (servesim.run.burst_replicas).

    Raises UserError for input that is wrong, PolicyError where a policy breaks its contract.
    """
    began = _Clock()
    if propagate and not intervals:
        raise UserError("propagate needs the error bars that --no-intervals (intervals=False) leaves out")
    own = load_metrics(metrics)  # a wrong name is found before the run
    if trace is not None and not isinstance(trace, str | Path | Trace):
        from servesim.traces import load_trace

        trace = load_trace(trace)
    writer = ResultWriter(out) if out is not None else None
    try:
        asked, given = _scenario(scenario, trace, settings), trace if isinstance(trace, Trace) else None
        setup = set_up(asked, given)
        if writer is not None and not overwrite:
            writer.check_same(setup.scenario.to_yaml())
        if setup.scenario.check and setup.scenario.mode == "fast":
            check_beginning(setup)
        if step_requests:
            check_step_requests(setup.scenario, writer, jobs)
        told = StepRequests(writer, setup.cores) if step_requests and writer is not None else None
        records = (StreamedRecords if setup.stream is not None else Records)(setup, writer)
        on_progress = on_ready(setup) if on_ready else None
        loop, cluster = _Clock(), None
        apart_s = 0.0
        if jobs > 1:
            check_independent(setup)
            apart_s = run_apart(setup, asked, given, jobs, records.recorder)
        else:
            cluster = setup.cluster(records.workload, records.recorder, on_progress=on_progress)
            cluster.run()
        records.flush()
        if told is not None:
            told.flush()
        ended = _Clock()
        handoff = cluster.handoff if cluster is not None else None
        records.close(handoff)
        if handoff is not None:
            records.add_columns(stage_columns(handoff, records.table["row"].to_numpy()))
        if setup.stream is None and (seen := sendings_of(cluster)):
            records.add_columns(view_columns(seen, records.table["row"].to_numpy()))
        summary = _summary(setup, records, cluster)

        def again(changes: Mapping[str, Any]) -> Result:
            changed = Scenario.of({**asked.model_dump(), **changes})
            return simulate(changed, trace=given, jobs=jobs, intervals=False)

        if burst_replicas and not asked.pools:
            _hold_bursts(summary, setup.scenario, records, again)
        if intervals:
            summary["intervals"] = _error_bars(summary, asked, setup, again if propagate else None)
        if own:
            if setup.stream is not None:
                raise UserError("metrics: a streamed run keeps no requests to compute them from")
            functions = [function for _, function in own]
            summary["custom_metrics"] = custom_values(functions, records.table.to_pandas, summary)
        summary["notes"] += told.notes() if told is not None else []
        timing = _timing(began, loop, ended, apart_s, summary)
        if writer is not None:
            writer.finish(
                summary,
                records.table,
                setup.scenario.to_yaml(),
                timing,
                records.samples,
                page if setup.stream is None else None,
            )
        return Result(summary, setup.scenario, timing, records.table, records.tables, records.samples)
    finally:
        if writer is not None:
            writer.discard()


def _hold_bursts(
    summary: dict[str, Any], scenario: Scenario, records: Records, again: Callable[[Mapping[str, Any]], Result]
) -> None:
    """Say in the summary how many replicas would have held each burst; `again` simulates with changed settings."""
    for i, found in enumerate(summary.get("bursts", ())):
        table = records.table.to_pandas()
        found["held"] = holding(found, scenario, table, lambda count: again({"replicas": count}).requests)
        summary["notes"][i] = burst_text(found)  # notes begin with those of bursts


def _error_bars(
    summary: Mapping[str, Any], asked: Scenario, setup: Setup, again: Callable[[Mapping[str, Any]], Result] | None
) -> dict[str, Any]:
    """Return the error bars of a run; those of percentiles, goodput and price where `again`, which simulates with
    changed settings, is given."""
    found = error_bars(summary)
    if again is None:
        return found | {"propagated": {"says": NOT_ASKED, "runs": 0}}
    waits = setup.trace.after is not None
    bars = propagated({**summary, "intervals": found}, asked, setup.facts, waits, lambda more: again(more).summary)
    return found | {"propagated": bars}


def _scenario(
    scenario: Scenario | Mapping[str, Any] | str | Path | None, trace: Any, settings: Mapping[str, Any]
) -> Scenario:
    source = ""
    if isinstance(scenario, Scenario):
        base: Mapping[str, Any] = scenario.model_dump()
    elif isinstance(scenario, str | Path):
        base, source = load_settings(scenario), f"scenario {scenario}"
    else:
        base = scenario or {}
    if isinstance(trace, Trace):
        trace = f"{OBJECT}{trace.name}"
    parts = {key: value for key, value in settings.items() if key not in Scenario.model_fields}
    whole = {key: value for key, value in settings.items() if key not in parts}
    found = {**base, **({"trace": trace} if trace is not None else {}), **whole}
    return Scenario.of(with_parts(found, parts), source)


def _summary(setup: Setup, records: Records, cluster: Cluster | None) -> dict[str, Any]:
    """Return the figures of a run; `cluster`: what served it, None where that were several processes."""
    scenario, requests, totals = setup.scenario, records.requests, records.totals
    fleet = FleetFigures(setup, cluster, requests)
    figures = summarize(requests, records.itl, totals, fleet.deployments, scenario.slo)
    if records.replicas is not None:
        figures |= fleet.figures(records.replicas)
    if cluster is not None and cluster.handoff is not None and isinstance(requests, RequestColumns):
        figures["disaggregation"] = stages(cluster.handoff, requests)
    if seen := sendings_of(cluster):
        figures["router_view"] = view_figures(seen)
    if (offload := offload_figures(setup.cores, requests)) is not None:
        figures["offload"] = offload
    if "class" in records.parts:
        slo, own = scenario.slo, scenario.slo_classes
        figures["classes"] = by_class(requests, records.parts["class"], slo, own)
        if own:
            figures["goodput"] = goodput(requests, slo, records.limits) | {"slo_classes_ms": own}
    if "tenant" in records.parts:
        figures["tenants"] = by_tenant(requests, records.parts["tenant"], len(setup.facts), scenario.slo)
    bursts, unknown = bursts_of(scenario, requests.table) if isinstance(requests, RequestColumns) else ([], [])
    if bursts:
        figures["bursts"] = bursts
    tables = setup.cost.tables
    figures["uncertainty"] = totals.uncertainty(tables.relative_error if tables is not None else None)
    figures["requests"] |= {"retries": records.retries, "unsent": records.workload.unsent}
    figures["speculation"] = speculation_figures(core.spec_stats for core in setup.cores)
    return {
        **figures,
        "notes": [
            *map(burst_text, bursts),
            *unknown,
            *setup.notes,
            *after_run(scenario, setup.facts, setup.pools[0].server.defaults, figures, setup.front),
            *of_each([p.name for p in setup.pools], [[*on_costs(p.cost, totals.decode_reach)] for p in setup.pools]),
            *records.notes,
        ],
        "scenario": scenario.model_dump(mode="json"),
        "provenance": {**setup.provenance, "versions": versions()},
    }


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    from importlib.metadata import version

    names = ("servesim", "simpy", "numpy", "pyarrow")
    return ("python", platform.python_version()), *((name, version(name)) for name in names)


def versions() -> dict[str, str]:
    """Return the versions a result depends on to the byte."""
    return dict(_versions())


class _Clock:
    """Wall and CPU seconds of this process, at the moment it is made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()


def _timing(
    began: _Clock, loop: _Clock, ended: _Clock, apart_s: float, summary: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the timing of a run; `apart_s`: CPU seconds of other processes."""
    cpu = ended.cpu - loop.cpu + apart_s
    requests, steps = summary["requests"]["arrived"], summary["engine"]["steps"]
    return {
        "startup_wall_s": loop.wall - began.wall,
        "startup_cpu_s": loop.cpu - began.cpu,
        "loop_wall_s": ended.wall - loop.wall,
        "loop_cpu_s": cpu,
        "requests_per_cpu_s": requests / cpu if cpu else None,
        "steps_per_cpu_s": steps / cpu if cpu else None,
        "peak_memory_mb": _peak_memory_mb(),
        "compiled": compiled(),
    }


def _peak_memory_mb() -> float | None:
    """Return the peak resident memory of the process; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
