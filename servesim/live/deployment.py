"""Deployments as a live server sets them up: before it knows any request."""

from __future__ import annotations

import numpy as np

from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.setup import Setup, check_together, set_up
from servesim.workload.trace import Samples, Trace


def set_up_live(scenario: Scenario) -> Setup:
    """Set up a scenario without its trace. Raise UserError if a policy needs to know future requests."""
    setup = set_up(scenario, one_row(1, 1))
    for core in setup.cores:
        if "future" in core.kv.needs:
            raise UserError(f"kv {core.kv.name} needs to know future requests, which a live server cannot know")
    return setup


def why_no_samples(scenario: Scenario, also: str = "") -> str:
    """Return why a deployment cannot serve several samples of a prompt, or an empty text if it can. `also`: a feature
    that is on, whatever the scenario says."""
    try:
        setup = set_up(scenario, one_row(1, 1, samples=2))
        check_together(setup.scenario, setup.pools, setup.trace, also=also)
    except UserError as error:
        return str(error)
    return ""


def one_row(prompt_len: int, output_len: int, samples: int = 1) -> Trace:
    """Return a trace of one request."""
    further = Samples.of(np.array([samples - 1]), np.full(samples - 1, output_len))
    return Trace.from_lengths("live", [0], [prompt_len], [output_len], samples=further)
