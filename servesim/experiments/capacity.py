"""Capacity: the highest rate a deployment carries within its SLO, or the cheapest one that carries a given rate.

Written under `out`:

    capacity.json        the document below
    capacity.parquet     tidy, one row per run: label, replicate, rate, replicas, address, unstable, attainment, and one
                         column per metric
    cells/<address>/     one result directory a run, as `servesim run --out` writes it

capacity.json, keys sorted, NaN and infinity as null:

    schema      "servesim.capacity/1"
    question    "highest rate" or "cheapest deployment"
    answer      the answer in one sentence
    settings    slo, slo_classes (where there are any), goals: [{limits, share, text}], attainment, window_minutes,
                window_requests, tolerance, level, warmup, cooldown, max_replicas
    workload    settings all runs share
    replicates  {kind: "seeds" | "windows", count}
    rows        [{label, axes, gpu, gpus, replicas, usd_per_hour, rate, rate_low, rate_high, goal: number of the goal
                that binds, attainment, attainment_low, attainment_high: its share and interval, best_attainment,
                best_at: its best share and from what load on (by "replicas", or null: requests/s; null: on an idle
                server), window, minute: {minute, minutes, requests, share, low, high} the worst ones, binds: what is
                late just beyond, reason: why it never carries, values: {metric: mean at this rate and size}, verdict,
                pareto, cheapest, error, model_error: null or {low, high: of GPUs (of the rate, where that is sought),
                null where none was found, says: what it is, or why there is none}}]
    points      [{label, replicate, rate, replicas, address, unstable, attainment, worst_window}], in the order they
                were run
    notes       [sentences]
    model_error null, or {level, says, runs: how many more the intervals took, decisions: [{cheapest, against, holds:
                null where not known, factor, says}]} (servesim.experiments.capacity_error)

A goal is a share of requests within limits: `attainment` of them within all limits that are given jointly, and
the percentile of a limit that has its own. Requests that arrive in the steady window count; of a recorded trace all do.
A load is carried if every goal is reached on average over the seeds; of a recorded trace, which is replayed whole, over
all of it and in every window of `window_minutes` that begins with an arrival and holds at least `window_requests`. In
less than half of the runs may a queue grow without end. First every request is served alone: where that misses a goal,
no load reaches it, and none is run.

The highest rate is bisected on common random numbers: a new rate stretches the same arrivals by one factor. Its
interval is where the interval of the share (t, over seeds, or over windows of the trace) meets the goal: up to
`rate_low` even its lower end does (0: at no rate tried), from `rate_high` on not even its upper end, so it contains
what bisection leaves open. `replicas` of a deployment is the fewest that carry the rate; doubling them ends where it
changes nothing while GPUs are idle most of the time. `cheapest`: the lowest price per request carried.

verdict: carries; never (not even with max_replicas, or at any rate); no limit (the trace is too short to fill the
deployment, whatever the rate); failed (see error: often the model does not fit).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.errors import UserError
from servesim.experiments.axes import Variant, load_grid, product
from servesim.experiments.capacity_answer import Answer, notes, sentence
from servesim.experiments.capacity_error import CapacityError
from servesim.experiments.capacity_study import REPORTED, Study
from servesim.experiments.documents import write_document
from servesim.experiments.goals import goals_of
from servesim.experiments.names import check_names
from servesim.experiments.objects import Objects
from servesim.experiments.outcome import Measuring
from servesim.experiments.replicates import replicates_of
from servesim.experiments.run_metrics import METRICS, check_window
from servesim.experiments.runner import OnProgress, open_runner
from servesim.experiments.statistics import LEVEL
from servesim.experiments.variants import shared_settings
from servesim.hardware.gpu import Gpu, gpu_names
from servesim.run.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "servesim.capacity/1"
CAPACITY, POINTS = "capacity.json", "capacity.parquet"
REPLICATES = 5


def capacity(
    scenario: str | Path | Mapping[str, Any] | None = None,
    *,
    attainment: float = 0.99,
    replicates: int | None = None,
    window: int | None = None,
    window_minutes: float = 10.0,
    window_requests: int = 300,
    tolerance: float = 0.02,
    max_replicas: int = 64,
    warmup: float | None = None,
    cooldown: float | None = None,
    jobs: int | None = None,
    executor: str = "local",
    out: str | Path | None = None,
    on_progress: OnProgress | None = None,
    overwrite: bool = False,
    intervals: bool = True,
    by_formula: bool = False,
    **axes: Any,
) -> pd.DataFrame:
    """Find the highest rate each variant carries within its SLO; with `rate`, the replicas each needs and the cheapest.

    `attainment`: share of requests that must meet every SLO; `tolerance`: where bisection stops, as a ratio.
    `replicates` (5): seeds, or windows of a recorded trace, each of `window` requests. Of such a trace every window of
    `window_minutes` with at least `window_requests` must pass too. `warmup`, `cooldown`: shares of the arrivals left
    out at the ends (0.1; of a recorded trace nothing). The document is in `.attrs["document"]`. `overwrite`: let
    `out` replace another experiment's. `intervals`: of the model's error, which take further runs. `by_formula`: answer
    also for GPUs without kernel tables, whose steps are priced by formula alone. UserError for these otherwise, and
    where the question makes no sense.
    """
    import pandas as pd

    check_window(warmup or 0.0, cooldown or 0.0)
    _check(attainment, tolerance, max_replicas, window_minutes, window_requests)
    objects = Objects()
    settings, lists = load_grid(objects.named(scenario), objects.named(axes))
    variants = product(settings, lists)
    check_names(variants, objects)
    known = Scenario.of(variants[0].settings)
    _check_question(known, variants)
    if not by_formula:
        _check_measured(variants)
    goals = goals_of(known, attainment)
    shared = shared_settings([v.settings for v in variants])
    with open_runner(out, CAPACITY, executor, jobs, on_progress, objects, shared, overwrite) as runner:
        repeats = replicates_of(variants[0].settings, replicates, objects, window, REPLICATES)
        ends = repeats.margins(warmup, cooldown)
        metrics = [METRICS[name] for name in REPORTED]
        study = Study(runner, variants, Measuring(metrics, goals, repeats, ends, window_minutes, window_requests))
        answer = Answer(study, goals)
        rate = None
        if known.rate is None:
            rows = answer.by_rate(study.highest_rates(tolerance))
        else:
            rate = study.rate_of(variants[0], known.rate)
            rows = answer.by_price(rate, study.fewest_replicas(max_replicas))
        error = CapacityError(study, rows, max_replicas, rate is not None).add() if intervals else None
        document = {
            "schema": SCHEMA,
            "question": "highest rate" if rate is None else "cheapest deployment",
            "answer": sentence(rows, rate is not None, goals, rate),
            "settings": {
                "slo": known.slo,
                **({"slo_classes": known.slo_classes} if known.slo_classes else {}),
                "goals": [{"limits": goal.limits, "share": goal.share, "text": goal.text} for goal in goals],
                "attainment": attainment,
                **({"window_minutes": window_minutes, "window_requests": window_requests} if repeats.recorded else {}),
                "tolerance": tolerance,
                "level": LEVEL,
                "warmup": ends[0],
                "cooldown": ends[1],
                "max_replicas": max_replicas,
            },
            "workload": shared_settings([v.settings for v in variants]),
            "replicates": {"kind": repeats.kind, "count": len(repeats)},
            "rows": rows,
            "points": [{k: x for k, x in p.items() if k != "values"} for p in study.points],
            "notes": notes(rows, repeats, goals, known.price),
            "model_error": error,
        }
        if out is not None:
            write_document(Path(out), CAPACITY, document, POINTS, study.columns())
    flat = [
        {k: x for k, x in row.items() if k not in ("values", "axes", "model_error")} | row["values"] for row in rows
    ]
    frame = pd.DataFrame(flat)
    frame.attrs |= {"document": document, "folder": str(out) if out is not None else None}
    return frame


def _check_question(known: Scenario, variants: Sequence[Variant]) -> None:
    if not (known.slo or known.slo_classes):
        raise UserError("capacity: give an SLO to meet, such as --slo ttft:500,tpot:50")
    if any(key.partition(".")[0] in ("slo", "slo_classes") for v in variants for key in v.axes):
        raise UserError("capacity: one SLO is needed; ask once for each")
    if "rate" in {key for v in variants for key in v.axes}:
        raise UserError("capacity: one rate is needed for the cheapest deployment, none for the highest rate")
    if known.rate == math.inf:
        raise UserError("capacity: no deployment carries an infinite rate; give requests/s, or leave --rate out")
    if known.rate is not None and any("replicas" in v.axes for v in variants):
        raise UserError("capacity: with a rate the number of replicas is what is sought; leave --replicas out")


def _check_measured(variants: Sequence[Variant]) -> None:
    """Raise UserError for a GPU without kernel tables where none are named: machines are bought by the answer."""
    names = [v.settings.get("gpu") for v in variants if v.settings.get("kernel_tables") is None]
    measured = [name for name in gpu_names() if Gpu.load(name).tables is not None]
    for name in sorted({name.lower() for name in names if isinstance(name, str)} - set(measured)):
        if name in gpu_names():
            raise UserError(
                f"capacity: {name} has no kernel tables, so all its steps would be priced by formula; --by-formula "
                "answers all the same, --kernel-tables names tables of one's own (there are tables of "
                f"{', '.join(measured)})"
            )


def _check(attainment: float, tolerance: float, max_replicas: int, minutes: float, least: int) -> None:
    if not 0 < attainment <= 1:
        raise UserError(f"attainment is {attainment:g}, must be a share above 0")
    if not 0.001 <= tolerance <= 0.5:
        raise UserError(f"tolerance is {tolerance:g}, must be from 0.001 to 0.5")
    if max_replicas < 1:
        raise UserError(f"max_replicas is {max_replicas}, must be at least 1")
    if not 0 < minutes < math.inf:
        raise UserError(f"window_minutes is {minutes:g}, must be above 0")
    if least < 1:
        raise UserError(f"window_requests is {least}, must be at least 1")
