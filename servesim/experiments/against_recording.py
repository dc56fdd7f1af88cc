"""Comparison of a simulated server with a measured one on the same requests, paired one to one, with intervals from
successive parts of the run.

There is only one measured run, so the intervals describe that run and not the variation between similar runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from servesim.contracts.request import State
from servesim.contracts.section import policy_settings
from servesim.errors import UserError
from servesim.experiments.axes import Variant, product
from servesim.experiments.metrics import DEFAULTS, METRICS, Metric
from servesim.experiments.objects import Objects
from servesim.experiments.recording import RecordedRun
from servesim.experiments.recording_formats import is_recording_name, read_folder
from servesim.experiments.recording_replay import recorded_trace
from servesim.experiments.run_metrics import Run, measure
from servesim.experiments.runner import Runner
from servesim.experiments.sameness import described, warnings_of
from servesim.experiments.variants import shared_settings
from servesim.experiments.verdicts import Settings, judge, off_the_measured
from servesim.metrics.requests import MS
from servesim.parsing import listed

LABEL = "measured"
REPLAYED = ("trace", "requests", "skip", "rate", "sort", "timing", "shape", "spread_ticks", "stream")
"""Scenario settings that define what is replayed."""


def is_recording(source: Any) -> bool:
    """Return whether a scenario argument is a measured run, as written by a benchmark client or a gateway, rather than
    a scenario, which is YAML."""
    return not isinstance(source, Mapping) and is_recording_name(str(source))


def read_recording(path: str | Path) -> RecordedRun:
    """Read a measured run that has the times of its requests. Raise UserError for anything else."""
    run = read_folder(Path(path))[0]
    if run.unpriced and run.concurrency is None:
        raise UserError(f"{path}: {run.unpriced}")
    if not _known(run):
        raise UserError(
            f"{path}: contains no per-request times; record it with vllm bench serve --save-detailed, or compare "
            "totals with servesim validate"
        )
    return run


def measured_metrics(run: RecordedRun, names: Sequence[Any] | str | None) -> list[Metric]:
    """Return the requested metrics or, by default, those of the latencies that were measured."""
    known = _known(run)
    usual = [name for name in DEFAULTS if name.rpartition("_")[0] in known]
    names = listed("metrics", names) if isinstance(names, str) else list(names or usual)
    for name in names:
        if name not in METRICS or name.rpartition("_")[0] not in known:
            raise UserError(f"metric {name!r}: {run.path.name} has only {', '.join(known)}")
    return [METRICS[name] for name in names]


def _known(run: RecordedRun) -> list[str]:
    values = {"ttft": run.ttft_ms, "tpot": run.tpot_ms, "e2el": run.e2el_ms, "ntpot": run.e2el_ms}
    return [name for name, column in values.items() if not np.isnan(column).all()]


def measured_variants(
    run: RecordedRun, objects: Objects, given: Mapping[str, Any], axes: Mapping[str, Any]
) -> list[Variant]:
    """Return scenarios that replay the run with the recorded server's settings, unless the scenario or the axes set
    them. The scenario's own requests are ignored, because those of the run are replayed.

    The requests are added to `objects`.
    """
    trace = recorded_trace(run)
    server = run.server
    limits = {"max_num_seqs": server.max_num_seqs, "max_num_batched_tokens": server.max_num_batched_tokens}
    own: dict[str, Any] = {
        **{key: getattr(server, key) for key in ("model", "gpu", "tp", "dtype", "kv_dtype")},
        **{key: getattr(server, key) or None for key in ("speculation", "acceptance")},
        "scheduler": {**policy_settings(server.scheduler), **{k: v for k, v in limits.items() if v is not None}},
        "clients": {"max_concurrency": run.concurrency} if run.concurrency is not None else None,
        "engine": {"num_gpu_blocks": server.num_blocks} if server.num_blocks is not None else None,
    }
    for key in ("requests", "rate", "skip", "trace"):
        if key in axes:
            raise UserError(f"{key}: remove it, because the measured run determines the requests")
    kept = {key: value for key, value in given.items() if key not in REPLAYED}
    clients = kept.get("clients")
    if isinstance(clients, Mapping) and own["clients"] is not None and clients.get("max_concurrency") is None:
        kept["clients"] = {**clients, **own["clients"]}
    settings = {k: v for k, v in own.items() if v is not None} | kept | {"trace": objects.add(trace)}
    return product(settings, axes)


def measured_document(
    runner: Runner, recording: RecordedRun, variants: Sequence[Variant], metrics: Sequence[Metric], settings: Settings
) -> dict[str, Any]:
    """Return the comparison's document (see servesim.experiments.compare) without the fields that apply only to
    simulated runs."""
    cells = [runner.cell(v.settings) for v in variants]
    runner.run(cells)
    errors = [runner.errors.get(cell.address) for cell in cells]
    simulated = [runner.load(c) if e is None else None for c, e in zip(cells, errors, strict=True)]
    first = next((run for run in simulated if run is not None), None)
    if first is None:
        raise UserError(f"compare: {recording.path} cannot be replayed: {errors[0]}")
    runs = [as_run(recording, first), *simulated]
    found = [described(runner, v, [cell]) for v, cell in zip(variants, cells, strict=True)]
    measured = {"label": LABEL, "axes": {}, "oracle": False, "open_loop": False, "cells": [None]}  # others are unknown
    # The measured server was as busy as an unstable one, which is compared anyway.
    entries = [{**dict.fromkeys(found[0]), **measured}, *found]
    entries = [{**one, "label": one["label"] or "simulated", "unstable": 0} for one in entries]
    ends = settings.warmup, settings.cooldown
    each = [measure(run, metrics, *ends) if run is not None else {} for run in runs]
    values = np.array([[[one.get(m.name, np.nan) for m in metrics]] for one in each])
    return {
        "workload": shared_settings([v.settings for v in variants]),
        "variants": entries,
        "equal": [],
        "warnings": [*map(str, warnings_of(entries))],
        "missed": [],  # the measured server was as good as it was
        "rows": off_the_measured(judge(entries, values, metrics, settings, runs)),
        "values": values,
        "drill_down": [],
        "notes": [
            f"measured: {recording.path.name}, {len(recording)} requests on {recording.server.engine or 'a server'}",
            "intervals come from successive parts of the one measured run",
            "too fast and too slow describe the simulated server relative to the measured one, whatever the cause",
            *recording.notes,
        ],
    }


def as_run(recording: RecordedRun, simulated: Run) -> Run:
    """Return the measured run in the form of a simulated one, with the send times of the simulated requests."""
    c = simulated.columns
    if len(c["arrival_ns"]) != len(recording):
        raise UserError(f"{recording.path}: {len(recording)} requests, but the replay has {len(c['arrival_ns'])}")
    columns = {
        "arrival_ns": c["arrival_ns"],
        "state": np.full(len(recording), float(State.FINISHED)),
        "output_len": recording.output_len.astype(np.float64),
        "ttft_ns": recording.ttft_ms * MS,
        "tpot_ns": recording.tpot_ms * MS,
        "e2el_ns": recording.e2el_ms * MS,
        "last_token_ns": c["arrival_ns"] + recording.e2el_ms * MS,
    }
    return Run(simulated.summary, columns)
