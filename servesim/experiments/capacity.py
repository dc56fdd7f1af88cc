"""Capacity: the highest rate a deployment carries within its SLO, or the cheapest one that carries a given rate.

Written under `out`:

    capacity.json        the document below
    capacity.parquet     tidy, one row per run: label, replicate, rate, replicas, address, unstable, attainment, and one
                         column per metric
    cells/<address>/     one result directory per run, as `servesim run --out` writes it

capacity.json, keys sorted, NaN and infinity as null:

    schema      "servesim.capacity/1"
    question    "highest rate" or "cheapest deployment"
    answer      the answer in one sentence
    settings    slo, slo_classes (if any), goals: [{limits, share, of: class, or null, text}], attainment,
                window_minutes and window_requests (if the log has such windows), tolerance, level, warmup, cooldown,
                max_replicas
    workload    settings that all runs share
    replicates  {kind: "seeds" | "windows", count}
    rows        [{label, axes, gpu, gpus, replicas, usd_per_hour, usd_per_hour_low, usd_per_hour_high: interval of
                the cost of an autoscaler's replicas while they were up (null without one), rate, rate_low, rate_high,
                goal: number of the limiting goal, attainment, attainment_low, attainment_high: its share and
                interval, best_attainment, best_at: its best share and the lowest load that has it (replicas if `by` is
                "replicas", else requests/s; null on an idle server), window, minute: {minute, minutes, requests, share,
                low, high} the worst ones, binds: what limits it: the metric missed just beyond, or a growing queue,
                enough_requests: number of requests that would tell whether the queue is stable (null if most runs do),
                checked_requests: length of the longer runs that checked `rate_low` (null if there were none),
                low_end_needs: length that would be enough for `rate_low`, if the runs are shorter (null if not),
                reason: why it never carries, values: {metric: mean at this rate and size}, verdict, pareto: on the
                front of price, throughput and the latency closest to its limit, cheapest, error, model_error: null or
                {low, high: of GPUs, or of the rate when that is searched, null if not found, says: what it is, or why
                there is none}}]
    points      [{label, replicate, rate, replicas, address, unstable, attainment, worst_window}], in the order they
                were run
    warnings    [sentences] that could change the decision
    notes       [sentences]
    model_error null, or {level, says, runs: number of extra runs for the intervals, decisions: [{cheapest, against,
                holds: null if not known, factor, says}]} (servesim.experiments.capacity_error)

A goal is a share of requests within limits: `attainment` for all limits that apply jointly, and a limit's own
percentile if it has one. Only requests that arrive in the steady window count; for a recorded trace, all do. A load is
carried if every goal is reached on average over the seeds. A recorded trace is replayed whole; the goals must then hold
over all of it and in every window of `window_minutes` that begins with an arrival and holds at least `window_requests`.
The queue may grow without bound only in less than half of the runs; a load is surely carried, or surely not, only where
more runs than chance would let agree on that. A synthetic workload of no stated length is run longer until the answer
is sure enough (servesim.experiments.run_lengths), and shorter runs find where to look. First, every request is served
alone: if that misses a goal, it is missed at any load, and no load is run.

The highest rate is bisected on common random numbers: a new rate stretches the same arrivals by one factor. Its
interval is the range of rates at which the share's interval (t, over seeds or over windows of the trace) contains the
goal: up to `rate_low`, even the lower end of the share's interval reaches the goal (0 if it does at no rate tried), and
from `rate_high` up, not even its upper end does, so the range that bisection leaves open is included. Where requests
miss the SLO together, as in a busy period, short runs may show no such period, and longer ones check `rate_low`
(servesim.experiments.low_ends). `replicas` of a deployment is the smallest number that carries the rate; the search
starts at the cost model's bound (servesim.experiments.bounds) and stops doubling the number when that changes nothing
while GPUs are idle most of the time. For a deployment with an autoscaler, the search is over `max`, which is also the
initial number of replicas, and doubling stops when it changes nothing. `cheapest` marks the lowest price per request
carried.

verdict: carries; never (not even with max_replicas, or at any rate); no limit (the trace is too short to fill the
deployment, whatever the rate); failed (see error: often the model does not fit).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from servesim.contracts.warn import split_notes
from servesim.errors import UserError
from servesim.experiments.axes import Variant, load_grid, product
from servesim.experiments.capacity_answer import REPLICATES, Answer, notes, sentence
from servesim.experiments.capacity_error import CapacityError
from servesim.experiments.capacity_scaled import check_scalers
from servesim.experiments.capacity_study import REPORTED, Study
from servesim.experiments.documents import answered
from servesim.experiments.goals import Goal, goals_of
from servesim.experiments.low_ends import low_ends
from servesim.experiments.metrics import METRICS
from servesim.experiments.names import check_names
from servesim.experiments.objects import Objects
from servesim.experiments.outcome import Measuring
from servesim.experiments.replicates import Replicates, check_count, margins, replicates_of
from servesim.experiments.run_lengths import RunLengths
from servesim.experiments.run_metrics import check_window
from servesim.experiments.runner import OnProgress, Runner, open_runner
from servesim.experiments.smallest_tp import with_smallest_tp
from servesim.experiments.splits import split
from servesim.experiments.statistics import LEVEL
from servesim.experiments.variants import shared_settings
from servesim.hardware.gpu import Gpu, gpu_names
from servesim.plugins.trust import takes_trust
from servesim.run.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "servesim.capacity/1"
CAPACITY = "capacity.json"


class Terms(NamedTuple):
    """Terms of a capacity question. Every field is a keyword of `capacity`."""

    attainment: float = 0.99
    """Share of requests that must be within every SLO limit."""
    replicates: int | None = None
    """Number of seeds, or of windows of a recorded trace; 5 by default."""
    window: int | None = None
    """Number of requests per window; by default the trace divided by the replicates."""
    window_minutes: float = 10.0
    """Minutes per window; every window of a recorded trace must meet the goals as well."""
    window_requests: int = 300
    """Minimum number of requests for a window to count."""
    tolerance: float = 0.02
    """Ratio at which bisection of a rate stops."""
    max_replicas: int = 64
    """Maximum number of replicas to try when a rate is given."""
    warmup: float | None = None
    """Share of the arrivals left out at the start; by default 0.1, or 0 for a recorded trace."""
    cooldown: float | None = None
    """Share of the arrivals left out at the end; same default."""
    jobs: int | None = None
    """Number of processes; by default one per core."""
    executor: str = "local"
    """Executor: local, ray, or ray:ADDRESS of a running cluster."""
    out: str | Path | None = None
    """Directory for results; runs already there are not repeated."""
    on_progress: OnProgress | None = None
    """Callback invoked after each run."""
    overwrite: bool = False
    """Whether another experiment's results in `out` may be replaced."""
    intervals: bool = True
    """Whether to add the model's error bars, which take additional runs."""
    by_formula: bool = False
    """Whether to also answer for GPUs without kernel tables, whose steps are priced by formula alone."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> tuple[Terms, dict[str, Any]]:
        """Extract the terms from keywords. Return the terms and the remaining settings. Raise UserError if a term is
        invalid."""
        terms = cls(**{name: given[name] for name in cls._fields if name in given})
        terms.check()
        return terms, {name: value for name, value in given.items() if name not in cls._fields}

    def check(self) -> None:
        """Raise UserError if a number is invalid."""
        check_window(self.warmup or 0.0, self.cooldown or 0.0)
        check_count(1 if self.replicates is None else self.replicates)
        if not 0 < self.attainment <= 1:
            raise UserError(f"attainment is {self.attainment:g} but must be above 0 and at most 1")
        if not 0.001 <= self.tolerance <= 0.5:
            raise UserError(f"tolerance is {self.tolerance:g} but must be from 0.001 to 0.5")
        if self.max_replicas < 1:
            raise UserError(f"max_replicas is {self.max_replicas} but must be at least 1")
        if not 0 < self.window_minutes < math.inf:
            raise UserError(f"window_minutes is {self.window_minutes:g} but must be above 0")
        if self.window_requests < 1:
            raise UserError(f"window_requests is {self.window_requests} but must be at least 1")

    def measuring(self, goals: Sequence[Goal], repeats: Replicates) -> Measuring:
        """Return how the runs of a workload's replicates are measured."""
        ends = repeats.margins(self.warmup, self.cooldown)
        metrics = [METRICS[name] for name in REPORTED]
        return Measuring(metrics, goals, repeats, ends, self.window_minutes, self.window_requests)


@takes_trust
def capacity(scenario: str | Path | Mapping[str, Any] | None = None, **asked: Any) -> pd.DataFrame:
    """Find the highest rate that each variant carries within its SLO or, if `rate` is given, the number of replicas
    that each one needs and the cheapest variant.

    Keywords are the fields of `Terms` and settings of the scenario. Each setting may be a list; every combination is a
    variant. Without a `tp`, a model too large for one GPU gets the smallest that fits. `pd=4` stands for every split of
    4 GPUs between prefill and decode, and for 4 GPUs without a split. `trust` allows code that is named only in the
    scenario's file to run. The document is in `.attrs["document"]`. Raises UserError for GPUs without kernel tables
    unless `by_formula` is set, or if the question is invalid.
    """
    terms, axes = Terms.of(asked)
    objects = Objects()
    settings, lists = load_grid(objects.named(scenario), objects.named(axes))
    variants, chosen = with_smallest_tp(split(product(settings, lists)))

    def finish(found: Found) -> None:
        found.document["warnings"] = [*chosen, *found.document["warnings"]]

    return answer(variants, objects, terms, finish)


class Found(NamedTuple):
    """Findings of a study before they are written."""

    study: Study
    rows: list[dict[str, Any]]
    error: CapacityError | None
    document: dict[str, Any]


def answer(
    variants: Sequence[Variant], objects: Objects, terms: Terms, finish: Callable[[Found], None] = lambda found: None
) -> pd.DataFrame:
    """Answer the question for these variants, as `capacity` does. `finish` adds to the document before it is written
    and may request additional runs."""
    shared = shared_settings([v.settings for v in variants])
    with opened(terms, objects, shared) as runner:
        return answer_with(runner, variants, terms, finish)


def opened(terms: Terms, objects: Objects, shared: Mapping[str, Any]) -> AbstractContextManager[Runner]:
    """Return the runner of a question whose runs all share some settings."""
    where, report = (terms.out, CAPACITY, terms.executor, terms.jobs), terms.on_progress
    return open_runner(*where, report, objects, shared, terms.overwrite)


def answer_with(
    runner: Runner,
    variants: Sequence[Variant],
    terms: Terms,
    finish: Callable[[Found], None] = lambda found: None,
    near: Mapping[str, float] = MappingProxyType({}),
) -> pd.DataFrame:
    """Answer the question for these variants, as `answer` does, with the runs of an open experiment. `near` holds rates
    near the answers, by label, if they are known."""
    check_names(variants, runner.objects)
    known = Scenario.of(variants[0].settings)
    check_question("capacity", known, variants)
    if not terms.by_formula:
        _check_measured(variants)
    goals = goals_of(known, terms.attainment)
    study, rows, rate = _studied(runner, variants, terms, goals, near)
    repeats = study.measuring.repeats
    error = CapacityError(study, rows, terms.max_replicas, rate is not None) if terms.intervals else None
    document = {
        "schema": SCHEMA,
        "question": "highest rate" if rate is None else "cheapest deployment",
        "answer": sentence(rows, rate is not None, goals, rate),
        "settings": _settings(known, terms, study),
        "workload": shared_settings([v.settings for v in study.variants]),
        "replicates": {"kind": repeats.kind, "count": len(repeats)},
        "rows": rows,
        **split_notes([*notes(rows, repeats, goals, known.price), *study.warnings()]),
        "model_error": error.add() if error is not None else None,
    }
    finish(Found(study, rows, error, document))
    document["points"] = [{k: x for k, x in p.items() if k != "values"} for p in study.points]
    left = ("values", "axes", "model_error")
    flat = [{k: x for k, x in row.items() if k not in left} | row["values"] for row in rows]
    return answered(document, flat, terms.out, CAPACITY, study.columns())


def _studied(
    runner: Runner, variants: Sequence[Variant], terms: Terms, goals: Sequence[Goal], near: Mapping[str, float]
) -> tuple[Study, list[dict[str, Any]], float | None]:
    """Run the question at one length after another. Return the last study, its rows, and the requested rate in
    requests/s, or None if no rate was requested."""
    known = Scenario.of(variants[0].settings)
    kept = 1 - sum(margins(terms.warmup, terms.cooldown))
    lengths = RunLengths.of(variants, goals, known.rate is None, kept, near)
    while True:
        sized = lengths.sized(variants)
        repeats = replicates_of(sized[0].settings, terms.replicates, runner.objects, terms.window, REPLICATES)
        study = Study(runner, sized, terms.measuring(goals, repeats), near)
        found = Answer(study, goals)
        if known.rate is not None:
            rate = study.rate_of(study.variants[0], known.rate)
            rows = found.by_price(rate, study.fewest_replicas(terms.max_replicas))
            if not lengths.longer(rows):
                return study, rows, rate
            continue
        searches = study.highest_rates(terms.tolerance)
        rows = found.by_rate(searches)
        if not lengths.longer(rows):
            checked = low_ends(study, searches, terms.tolerance)
            return study, [row | checked.get(row["label"], {}) for row in rows], None
        near = {row["label"]: row["rate"] for row in rows if row["verdict"] == "carries"}


def _settings(known: Scenario, terms: Terms, study: Study) -> dict[str, Any]:
    measuring, outcomes = study.measuring, [*study.idle.values(), *(o for row in study.outcomes.values() for o in row)]
    windows = {"window_minutes": terms.window_minutes, "window_requests": terms.window_requests}
    return {
        "slo": known.slo,
        **({"slo_classes": known.slo_classes} if known.slo_classes else {}),
        "goals": [{"limits": g.limits, "share": g.share, "of": g.of, "text": g.text} for g in measuring.goals],
        "attainment": terms.attainment,
        **(windows if any(any(outcome.worst) for outcome in outcomes) else {}),
        "tolerance": terms.tolerance,
        "level": LEVEL,
        "warmup": measuring.ends[0],
        "cooldown": measuring.ends[1],
        "max_replicas": terms.max_replicas,
    }


def check_question(command: str, known: Scenario, variants: Sequence[Variant]) -> None:
    """Raise UserError, with the name of the command, if a question on these deployments has no answer."""
    varied = {key for v in variants for key in v.axes}
    searched = f"--replicas cannot be combined with --rate, because {command} searches for the number of replicas"
    faults = {
        "specify an SLO, such as --slo ttft:500,tpot:50": not (known.slo or known.slo_classes),
        "specify only one SLO, and run the command once per SLO": bool(
            {key.partition(".")[0] for key in varied} & {"slo", "slo_classes"}
        ),
        "specify one rate to find the cheapest deployment, or no rate to find the highest rate": "rate" in varied,
        "no deployment can sustain an infinite rate; specify --rate in requests/s, or omit it": known.rate == math.inf,
        searched: known.rate is not None and "replicas" in varied,
        "specify a rate, because an autoscaler sets the number of replicas by the load": known.rate is None
        and any(v.settings.get("scaler") is not None for v in variants),
        "specify a rate, because clients that wait for answers never send more than a deployment carries": known.rate
        is None
        and bool(known.clients.max_concurrency or known.clients.max_sessions),
    }
    if said := next((said for said, wrong in faults.items() if wrong), ""):
        raise UserError(f"{command}: {said}")
    if known.rate is not None:
        check_scalers(command, variants)


def _check_measured(variants: Sequence[Variant]) -> None:
    """Raise UserError for a GPU without kernel tables, unless tables are given, because hardware is bought based on the
    answer."""
    names = [v.settings.get("gpu") for v in variants if v.settings.get("kernel_tables") is None]
    measured = [name for name in gpu_names() if Gpu.load(name).tables is not None]
    for name in sorted({name.lower() for name in names if isinstance(name, str)} - set(measured)):
        if name in gpu_names():
            raise UserError(
                f"capacity: {name} has no kernel tables, so a formula would price all its steps. Add --by-formula to "
                f"accept that, or specify --kernel-tables (tables exist for {', '.join(measured)})"
            )
