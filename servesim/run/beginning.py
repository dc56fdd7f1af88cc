"""The first requests of a run, served in fast mode and in reference mode: both must agree."""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim.errors import PolicyError
from servesim.records.recorder import Recorder
from servesim.run.agreement import Outcome, difference
from servesim.run.records import clients_of
from servesim.run.setup import Setup, set_up
from servesim.workload.workload import TraceWorkload

REQUESTS = 300
"""Requests compared, or fewer where a run has fewer."""


def check_beginning(setup: Setup, requests: int = REQUESTS) -> None:
    """Compare both modes on the first requests of a run. PolicyError says which request and step differ first."""
    fast, plain = (_outcome(setup, mode, requests) for mode in ("fast", "reference"))
    if isinstance(fast, Outcome) and isinstance(plain, Outcome):
        told = difference(fast, plain)
    elif str(fast) == str(plain):
        return  # the policy may wait for more requests than these: the run itself will show
    else:
        errors = [str(each) if isinstance(each, PolicyError) else "all is served" for each in (fast, plain)]
        told = f"{errors[0]}; in reference mode {errors[1]}"
    if told:
        name = setup.cores[0].scheduler.name
        count = min(requests, len(setup.trace))
        raise PolicyError(f"{name}: fast mode differs from reference mode in the first {count} requests: {told}")


def _outcome(setup: Setup, mode: str, requests: int) -> Outcome | PolicyError:
    """Serve the first requests and return their outcome."""
    trace = setup.trace.take(np.arange(min(requests, len(setup.trace))))
    whole: dict[str, Any] = {
        "requests": None,
        "skip": 0,
        "rate": None,
        "shape": [],
        "stream": False,
    }  # of what the trace is already
    part = set_up(setup.scenario.model_copy(update={**whole, "mode": mode, "check": False}), trace)
    clients, form = clients_of(part.scenario), part.cores[0].scheduler.samples
    cluster = part.cluster(TraceWorkload(trace, part.predicted, clients, form), Recorder(out_ns=part.out_ns))
    try:
        cluster.run()
    except PolicyError as error:
        return error
    return Outcome.of(cluster)
