"""Execution of a scenario, from settings to a Result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.contracts.part import Finished
from servesim.engine import compiled
from servesim.engine.cluster import Cluster
from servesim.errors import UserError
from servesim.metrics.custom import Function, custom_values, load_metrics
from servesim.plugins.trust import takes_trust
from servesim.run.agreement import check_beginning
from servesim.run.part_names import with_parts
from servesim.run.processes import check_independent, run_apart
from servesim.run.records import Records, StreamedRecords
from servesim.run.result import Result
from servesim.run.result_files import ResultWriter
from servesim.run.scenario import Scenario, own_features, scenario_class, scenario_features
from servesim.run.setting_names import load_settings
from servesim.run.setup import Setup, options_of, set_up
from servesim.run.shown import groups_of
from servesim.run.step_requests import StepRequests, check_step_requests
from servesim.run.summary import summary_of
from servesim.run.trace_source import OBJECT
from servesim.workload.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int], None]
"""Callback for progress, called periodically with (simulated ns, requests that have left)."""


@takes_trust
def simulate(
    scenario: Scenario | Mapping[str, Any] | str | Path | None = None,
    *,
    trace: str | Trace | pd.DataFrame | None = None,
    out: str | Path | None = None,
    on_ready: Callable[[Setup], Progress | None] | None = None,
    jobs: int = 1,
    conclude: bool = True,
    page: Callable[[Path], object] | None = None,
    overwrite: bool = True,
    step_requests: bool = False,
    metrics: str | Function | Iterable[str | Function] | None = None,
    **settings: Any,
) -> Result:
    """Replay a trace and return its result.

    The run is described by keywords (listed by `servesim.Scenario`), by a scenario (an object, a mapping, or a YAML
    file), or by a scenario with keywords that override it. `trace` may be a Trace, or a DataFrame, which
    servesim.load_trace converts. With `out`, the result directory is written too, with step records written during the
    run. `page` writes a page into the directory before it is in place. `on_ready` receives the resolved setup before
    the run begins and may return a callback for progress. With `jobs`, replicas are served in `jobs` processes if the
    router assigns requests without looking at the replicas; the result is byte-identical. Without `conclude`, the
    summary lacks parts derived from it, such as error bars, and takes less time. Without `overwrite`, the result of
    another scenario in `out` is not replaced. `step_requests`: with mode="reference", write the requests that each step
    computed (servesim.run.step_requests). `metrics`: your own functions, or `file.py:function`
    (servesim.metrics.custom), whose values are `summary["custom_metrics"]`. Options of features are keywords too:
    `propagate=True` adds error bars of percentiles, goodput and price, by two more runs; `burst_replicas=True` finds
    how many replicas would have held the bursts of the scenario's shape; `intervals=False` leaves out all error bars.
    `trust=True` lets code run that only the scenario's file names (servesim.plugins.trust).

    Raises UserError for invalid input, and PolicyError if a policy breaks its contract.
    """
    began = _Clock()
    own = load_metrics(metrics)  # reports a wrong name before the run
    if trace is not None and not isinstance(trace, str | Path | Trace):
        from servesim.traces import load_trace

        told = settings.pop("columns", None)
        trace = load_trace(trace, **({"columns": told} if told else {}))
    asked, options = _asked(scenario, trace, settings)
    given = trace if isinstance(trace, Trace) else None
    with ResultWriter.of(out) as writer:
        setup = set_up(asked, given, options)
        if own and setup.stream is not None:
            raise UserError("metrics: not available in a streamed run, which does not store requests")
        if writer is not None and not overwrite:
            writer.check_same(setup.scenario.to_yaml())
        if setup.scenario.check and setup.scenario.mode == "fast":
            check_beginning(setup)
        if step_requests:
            check_step_requests(setup.scenario, writer, jobs)
        told = StepRequests(writer) if step_requests and writer is not None else None
        setup.parts.extend([told] if told is not None else [])
        records = (StreamedRecords if setup.stream is not None else Records)(setup, writer)
        on_progress = on_ready(setup) if on_ready else None
        loop = _Clock()
        cluster, apart_s = _serve(setup, records, given, jobs, on_progress)
        if told is not None:
            told.flush()
        ended = _Clock()
        records.close()

        def again(changes: Mapping[str, Any]) -> Result:
            changed = Scenario.of({**asked.model_dump(), **changes})
            return simulate(changed, trace=given, jobs=jobs, conclude=False)

        summary = summary_of(setup, records, cluster, Finished(records.requests, records, again), conclude)
        if own:
            functions = [function for _, function in own]
            summary["custom_metrics"] = custom_values(functions, records.table.to_pandas, summary)
        timing = _timing(began, loop, ended, apart_s, summary)
        if writer is not None:
            shown = page if setup.stream is None else None
            writer.finish(summary, records.table, setup.scenario.to_yaml(), timing, records.samples, shown)
        return Result(summary, setup.scenario, timing, records.table, records.tables, records.samples)


def _serve(
    setup: Setup, records: Records, given: Trace | None, jobs: int, on_progress: Progress | None
) -> tuple[Cluster | None, float]:
    """Serve all requests and return the cluster (None if several processes served them) and the processes' CPU
    seconds."""
    cluster, apart_s = None, 0.0
    if jobs > 1:
        check_independent(setup)
        apart_s = run_apart(setup, given, jobs, records.recorder)
    else:
        cluster = setup.cluster(records.workload, records.recorder, on_progress=on_progress)
        cluster.run()
    records.flush()
    return cluster, apart_s


def _asked(
    scenario: Scenario | Mapping[str, Any] | str | Path | None, trace: Any, settings: Mapping[str, Any]
) -> tuple[Scenario, Any]:
    """Return the requested scenario, and the options of its features."""
    base: Mapping[str, Any]
    source = ""
    if isinstance(scenario, Scenario):
        base = scenario.model_dump()
    elif isinstance(scenario, str | Path):
        base, source = load_settings(scenario, settings), f"scenario {scenario}"
    else:
        base = scenario or {}
    if isinstance(trace, Trace):
        trace = f"{OBJECT}{trace.name}"
    own = own_features(settings.get("features", base.get("features")))
    fields = scenario_class(own).model_fields
    known = {name for feature in scenario_features(own) for name in feature.Options.model_fields}
    options = {key: value for key, value in settings.items() if key in known}
    whole = {key: value for key, value in settings.items() if key in fields}
    parts = {key: value for key, value in settings.items() if key not in fields and key not in known}
    found = {**base, **({"trace": trace} if trace is not None else {}), **whole}
    asked = Scenario.of(with_parts(found, parts, Scenario), source)
    if own:
        groups_of(own)  # invalid figures are reported before the run
    return asked, options_of(asked, options)


class _Clock:
    """Wall and CPU seconds of this process at the time of creation."""

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
    """Return the peak resident memory of the process, or None if the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
