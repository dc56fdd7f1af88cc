"""The summary of a run: figures of what was recorded, sections and notes of features, scenario and provenance."""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

from servesim.contracts.part import Finished
from servesim.engine.cluster import Cluster
from servesim.metrics.summary import summarize
from servesim.plugins.user_policies import blaming
from servesim.run.fleet import FleetFigures
from servesim.run.notes import after_run, on_costs
from servesim.run.pools import of_each
from servesim.run.records import Records
from servesim.run.setup import Setup
from servesim.run.speculation import figures as speculation_figures


def summary_of(
    setup: Setup, records: Records, cluster: Cluster | None, finished: Finished, conclude: bool
) -> dict[str, Any]:
    """Return the summary of a run. `cluster`: what served it, None if several processes did; `conclude`: with what
    follows from the summary itself."""
    scenario, requests, totals = setup.scenario, records.requests, records.totals
    fleet = FleetFigures(setup, cluster, requests)
    figures = summarize(requests, records.itl, totals, fleet.deployments, scenario.slo)
    if records.replicas is not None:
        figures |= fleet.figures(records.replicas)
    kinds = [type(part) for part in setup.parts]
    with blaming(kinds):
        for part in setup.parts:
            figures |= part.figures(finished)
    tables = setup.cost.tables
    figures["uncertainty"] = totals.uncertainty(tables.relative_error if tables is not None else None)
    figures["requests"] |= {"retries": records.retries, "unsent": records.workload.unsent}
    figures["speculation"] = speculation_figures(core.spec_stats for core in setup.cores)
    reached = [[*on_costs(pool.cost, totals.decode_reach)] for pool in setup.pools]
    with blaming(kinds):
        said = [note for part in setup.parts for note in part.notes(figures)]
    notes = [
        *said,
        *setup.notes,
        *after_run(scenario, setup.facts, setup.pools[0].server.defaults, figures, setup.front),
        *of_each([pool.name for pool in setup.pools], reached),
        *records.notes,
    ]
    provenance = {**setup.provenance, "versions": versions()}
    summary = {**figures, "notes": notes, "scenario": scenario.model_dump(mode="json"), "provenance": provenance}
    with blaming(kinds):
        for part in setup.parts if conclude else ():
            summary |= part.conclusions(summary, finished)
    return summary


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    from importlib.metadata import version

    names = ("servesim", "simpy", "numpy", "pyarrow")
    return ("python", platform.python_version()), *((name, version(name)) for name in names)


def versions() -> dict[str, str]:
    """Return the versions that a result depends on to the byte."""
    return dict(_versions())
