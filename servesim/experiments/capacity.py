"""Capacity: the highest rate a deployment carries within its SLO, or the cheapest one that carries a given rate.

Written under `out`:

    capacity.json        the document below
    capacity.parquet     tidy, one row per run: label, replicate, rate, replicas, address, unstable, attainment, and one
                         column per metric
    cells/<address>/     one result directory a run, as `servesim run --out` writes it

capacity.json, keys sorted, NaN and infinity as null:

    schema      "servesim.capacity/1"
    question    "highest rate" or "cheapest deployment"
    settings    slo, slo_classes (where there are any), attainment, tolerance, level, warmup, cooldown, max_replicas
    workload    settings all runs share
    replicates  {kind: "seeds" | "windows", count}
    rows        [{label, axes, gpu, gpus, replicas, usd_per_hour, rate, rate_low, rate_high, attainment,
                attainment_low, attainment_high, values: {metric: mean at this rate and size}, verdict, pareto,
                cheapest, error}]
    points      [{label, replicate, rate, replicas, address, unstable, attainment}], in the order they were run
    notes       [sentences]

A rate is carried if, on average over the replicates, at least `attainment` of the requests that arrive in the steady
window meet every SLO, and less than half of the runs are unstable. The highest rate is bisected on common random
numbers: a new rate stretches the same arrivals. Its interval is where the interval of the mean attainment (t, over
replicates) meets the target: up to `rate_low` even its lower end does (0: at no rate tried), from `rate_high` on not
even its upper end, so it contains what bisection leaves open. `replicas` of a deployment is the fewest that carry the
rate. `cheapest`: the lowest price per request carried.

verdict: carries; never (not even with max_replicas, or at any rate); no limit (the trace is too short to fill the
deployment, whatever the rate); failed (see error: often the model does not fit).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.errors import UserError
from servesim.experiments.axes import load_grid, product
from servesim.experiments.capacity_study import Study
from servesim.experiments.documents import write_document
from servesim.experiments.names import check_names
from servesim.experiments.objects import Objects
from servesim.experiments.replicates import replicates_of
from servesim.experiments.run_metrics import check_window
from servesim.experiments.runner import OnProgress, open_runner
from servesim.experiments.statistics import LEVEL
from servesim.experiments.variants import shared_settings
from servesim.run.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "servesim.capacity/1"
CAPACITY, POINTS = "capacity.json", "capacity.parquet"


def capacity(
    scenario: str | Path | Mapping[str, Any] | None = None,
    *,
    attainment: float = 0.99,
    replicates: int = 5,
    tolerance: float = 0.02,
    max_replicas: int = 64,
    warmup: float = 0.1,
    cooldown: float = 0.1,
    jobs: int | None = None,
    executor: str = "local",
    out: str | Path | None = None,
    on_progress: OnProgress | None = None,
    overwrite: bool = False,
    **axes: Any,
) -> pd.DataFrame:
    """Find the highest rate each variant carries within its SLO; with `rate`, the replicas each needs and the cheapest.

    `attainment`: share of requests that must meet every SLO; `tolerance`: where bisection stops, as a ratio. The
    document is in `.attrs["document"]`. `overwrite`: let `out` replace another experiment's. UserError where the
    question makes no sense.
    """
    import pandas as pd

    check_window(warmup, cooldown)
    _check(attainment, tolerance, max_replicas)
    objects = Objects()
    settings, lists = load_grid(objects.named(scenario), objects.named(axes))
    variants = product(settings, lists)
    check_names(variants, objects)
    known = Scenario.of(variants[0].settings)
    if not (known.slo or known.slo_classes):
        raise UserError("capacity: give an SLO to meet, such as --slo ttft:500,tpot:50")
    if "rate" in {key for v in variants for key in v.axes}:
        raise UserError("capacity: one rate is needed for the cheapest deployment, none for the highest rate")
    if known.rate == math.inf:
        raise UserError("capacity: no deployment carries an infinite rate; give requests/s, or leave --rate out")
    if known.rate is not None and any("replicas" in v.axes for v in variants):
        raise UserError("capacity: with a rate the number of replicas is what is sought; leave --replicas out")
    shared = shared_settings([v.settings for v in variants])
    with open_runner(out, CAPACITY, executor, jobs, on_progress, objects, shared, overwrite) as runner:
        repeats = replicates_of(variants[0].settings, replicates, objects=objects)
        study = Study(runner, variants, repeats, attainment, warmup, cooldown)
        rows = study.highest_rates(tolerance) if known.rate is None else study.cheapest(known.rate, max_replicas)
        document = {
            "schema": SCHEMA,
            "question": "highest rate" if known.rate is None else "cheapest deployment",
            "settings": {
                "slo": known.slo,
                **({"slo_classes": known.slo_classes} if known.slo_classes else {}),
                "attainment": attainment,
                "tolerance": tolerance,
                "level": LEVEL,
                "warmup": warmup,
                "cooldown": cooldown,
                "max_replicas": max_replicas,
            },
            "workload": shared_settings([v.settings for v in variants]),
            "replicates": {"kind": repeats.kind, "count": len(repeats)},
            "rows": rows,
            "points": [{k: x for k, x in p.items() if k != "values"} for p in study.points],
            "notes": study.notes(rows),
        }
        if out is not None:
            write_document(Path(out), CAPACITY, document, POINTS, study.columns())
    flat = [{k: x for k, x in row.items() if k not in ("values", "axes")} | row["values"] for row in rows]
    frame = pd.DataFrame(flat)
    frame.attrs |= {"document": document, "folder": str(out) if out is not None else None}
    return frame


def _check(attainment: float, tolerance: float, max_replicas: int) -> None:
    if not 0 < attainment <= 1:
        raise UserError(f"attainment is {attainment:g}, must be a share above 0")
    if not 0.001 <= tolerance <= 0.5:
        raise UserError(f"tolerance is {tolerance:g}, must be from 0.001 to 0.5")
    if max_replicas < 1:
        raise UserError(f"max_replicas is {max_replicas}, must be at least 1")
