"""Fit of a server's front-end times to recorded runs: the part of the TTFT that the engine does not account for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from servesim.cost.host import HostTerms
from servesim.experiments.recording import Floats, RecordedRun
from servesim.experiments.recording_replay import replay

UNQUEUED = 5.0
"""Percentile of TTFT that represents requests that found the server idle."""
SPREAD = 4.0
"""Minimum ratio of longest to shortest prompt for a run to show the tokenization time per token."""


def fit_front(terms: HostTerms, runs: Sequence[RecordedRun]) -> HostTerms:
    """Return `terms` with `front_in_per_token` and `front_per_request`. The first comes from runs that have both long
    and short prompts: the excess of the lowest TTFTs over the simulated ones, for long prompts relative to short ones.
    The second is the median of the remaining TTFT excess of the least loaded runs. Without open-loop runs, neither is
    set.

    Runs with a few requests per second do not show which part of the second term is work of the API process and which
    part is mere delay. All of it counts as work, so the resulting ceiling on requests/s is the lowest that the server
    can have.
    """
    bare = replace(terms, front_in=0.0, front_per_request=0.0, front_in_per_token=0.0, front_in_per_token_by_model={})
    runs = [run for run in runs if run.concurrency is None and len(run) > 1 and np.isfinite(run.ttft_ms).any()]
    if not runs:
        return bare
    engine = [replay(run, bare).ttft_ms for run in runs]
    slopes = [_per_token(run, ours) for run, ours in zip(runs, engine, strict=True)]
    known = [slope for slope in slopes if slope is not None]
    token_ns = max(0.0, round(float(np.median(known)), 1)) if known else 0.0
    rates = [len(run) / (int(run.arrival_ns[-1]) or 1) for run in runs]
    rest = [
        run.ttft_ms * 1e6 - ours * 1e6 - token_ns * run.prompt_len
        for run, ours, rate in zip(runs, engine, rates, strict=True)
        if rate <= 1.05 * min(rates)
    ]
    beyond = float(np.nanmedian(np.concatenate(rest))) / 1e3
    return replace(bare, front_per_request=max(0.0, round(beyond) * 1e3), front_in_per_token=token_ns)


def _per_token(run: RecordedRun, ours_ms: Floats) -> float | None:
    """Return the nanoseconds per prompt token spent outside the engine, from long prompts compared with short ones, or
    None if all prompts have about the same length."""
    known = np.isfinite(run.ttft_ms) & np.isfinite(ours_ms)
    lengths = run.prompt_len[known]
    if not known.any() or lengths.max() < SPREAD * lengths.min():
        return None
    long = lengths > np.sqrt(float(lengths.min()) * float(lengths.max()))
    rest = [
        np.percentile(run.ttft_ms[known][of], UNQUEUED) - np.percentile(ours_ms[known][of], UNQUEUED)
        for of in (long, ~long)
    ]
    return float((rest[0] - rest[1]) * 1e6 / (lengths[long].mean() - lengths[~long].mean()))
