"""Deployments as a live server sets them up: before it knows any request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.setup import Setup, set_up
from servesim.workload.trace import Samples, Trace


def set_up_live(scenario: Scenario) -> Setup:
    """Set up a scenario without its trace. Raise UserError if a policy needs to know future requests."""
    setup = set_up(scenario, one_row(1, [1]))
    for core in setup.cores:
        if "future" in core.kv.needs:
            raise UserError(f"kv {core.kv.name} needs to know future requests, which a live server cannot know")
    return setup


def why_no_samples(scenario: Scenario) -> str:
    """Return why a deployment cannot serve several samples of a prompt, or an empty text if it can."""
    try:
        set_up(scenario, one_row(1, [1, 1]))
    except UserError as error:
        return str(error)
    return ""


def why_not_operated(scenario: Scenario) -> str:
    """Return why operators cannot act on a deployment, or an empty text if they can."""
    try:
        from servesim.live.operations import Operations
    except ImportError:
        return "the feature failures is not installed"
    try:
        Operations(set_up_live(scenario))
    except UserError as error:
        return str(error).removeprefix("cluster.failures: ")
    return ""


def one_row(prompt_len: int, outputs: Sequence[int]) -> Trace:
    """Return a trace of one request for answers of these lengths."""
    further = Samples.of(np.array([len(outputs) - 1]), np.array(outputs[1:], dtype=np.int64))
    return Trace.from_lengths("live", [0], [prompt_len], [outputs[0]], samples=further)
