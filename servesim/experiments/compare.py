"""A/B comparisons of policies on one workload, paired replicate by replicate, with intervals and verdicts.

Written under `out`:

    comparison.json      the document below
    comparison.parquet   tidy, one row per value: variant, replicate, metric, value (null: nothing to measure)
    cells/<address>/     one result directory per run, as `servesim run --out` writes it

comparison.json, keys sorted, NaN and infinity as null:

    schema        "servesim.comparison/1"
    baseline      label of the variant that all others are compared with
    settings      level, margin, warmup, cooldown, interval, rank_by
    workload      settings that all variants share (trace, model, gpu, slo, ...)
    replicates    {kind: "seeds" | "windows" | "blocks", count, changes: [scenario changes of each replicate]};
                  windows: parts of one run per variant over the whole trace; blocks: one run per variant, cut into
                  successive parts
    metrics       [{name, unit, better: "lower" | "higher", scale: "ratio" | "difference", latency}]
    variants      [{label, axes, oracle, asynchronous: steps are planned while the one before runs,
                  max_num_batched_tokens: per step, or null, usd_per_hour: of all its GPUs that are up, open_loop:
                  arrivals come at an independent rate, unstable: number of unstable runs, error: null or text,
                  cells: [address or null by replicate]}], the baseline first
    equal         [{labels, why: null or text}], groups of variants that served every request at the same times
    answer        sentence that names the variant ranked first, or says that none can be distinguished
    warnings      [sentences] that could change the decision, such as differences other than the policies
    rows          [{variant, metric, unit, better, scale, value, baseline_value, change, change_low, change_high, p,
                  p_holm, verdict, replicates, more_replicates, gap_to_oracle; and if replicates are windows,
                  window_mean: the mean over them}]
    ranking       {metric, order: [labels, best first], unstable: [labels], failed: [labels]}
    headline      [sentences]
    model_error   [{variant, metric, change, low, high, level, says, differ_in}]: the part of the change that may be the
                  model's error (servesim.experiments.compare_error), from measured pairs for mean latencies, propagated
                  for percentiles, goodput, throughput and price, which also have scale; low and high null: not known,
                  `says` gives the reason; one of them null: at that end a queue grows without bound
    baseline_bars range that would contain eight of ten measured servers' means for the baseline's first run, as
                  `intervals` of summary.json; null: error bars were left out
    error_runs    number of extra runs for that; null: error bars were left out
    drill_down    [{variant, baseline, replicate, compared, worse, better, not_completed, causes: {cause: requests},
                  worst: [{row, prompt_len, output_len, e2el_ms: [baseline, variant], more_ms: {queue, prefill, decode},
                  cause}], divergence: null or {replica, step, time_s, baseline, variant}, divergence_text}]
    notes         [sentences]

`value` is the mean over replicates, and the geometric mean if scale is "ratio". `change` is value / baseline_value - 1
for a ratio, else value - baseline_value. If replicates are windows of a recorded trace, `value` is computed over the
whole trace, as by `servesim run`, and changes are computed from the means over the windows.

verdict: better, worse, equivalent (the interval lies within the margin), undecided, identical; set by the rate (the
price per token is determined by arrivals); too fast, too slow (a simulated server against a measured one); baseline;
unstable (in at least half of the runs of one of the two, a queue grows without bound, so its latencies depend on the
trace's length); failed. `more_replicates` is the number of additional replicates that would probably settle the
comparison, or null if the verdict is not undecided or no reasonable number exists. `gap_to_oracle` is the change from
the best oracle to this variant, or null without an oracle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.errors import UserError
from servesim.experiments.against_recording import (
    is_recording,
    measured_document,
    measured_metrics,
    measured_variants,
    read_recording,
)
from servesim.experiments.axes import Variant, load_grid
from servesim.experiments.compare_document import Values, judged_document, whole_document
from servesim.experiments.documents import answered
from servesim.experiments.metrics import Metric, metrics_of
from servesim.experiments.names import check_names
from servesim.experiments.objects import Objects
from servesim.experiments.recording import RecordedRun
from servesim.experiments.replicates import Replicates, margins, replicates_of
from servesim.experiments.run_metrics import check_window
from servesim.experiments.runner import OnProgress, Runner, open_runner
from servesim.experiments.statistics import check_method
from servesim.experiments.variants import (
    named,
    own_features_of,
    put_first,
    same_workload,
    shared_settings,
    variants_of,
)
from servesim.experiments.verdicts import Settings
from servesim.plugins.trust import takes_trust
from servesim.run.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

COMPARISON = "comparison.json"
REPLICATES = 10


@takes_trust
def compare(
    *scenarios: str | Path | Mapping[str, Any],
    replicates: int | None = None,
    window: int | None = None,
    baseline: str | None = None,
    metrics: Sequence[Any] | str | None = None,
    rank_by: str | None = None,
    margin: float = 0.02,
    level: float = 0.95,
    interval: str = "auto",
    warmup: float | None = None,
    cooldown: float | None = None,
    jobs: int | None = None,
    executor: str = "local",
    out: str | Path | None = None,
    on_progress: OnProgress | None = None,
    overwrite: bool = False,
    intervals: bool = True,
    **axes: Any,
) -> pd.DataFrame:
    """Compare policies on one workload under common random numbers. Return the rows of the document as a DataFrame.

    Pass either one scenario (or none) and `axes`, which are settings by keyword, some with several values (a list or a
    comma-separated list: `scheduler="static,vllm"`), or several scenarios that replay the same workload. The baseline
    is the first variant that runs and is stable, unless one is named. `replicates` (default 10) is the number of seeds
    of a synthetic workload or preset, or of windows of the single run of a recorded trace; 1 compares
    successive parts of one run. `window` is the number of requests per window (by default, the trace divided by the
    replicates). `warmup` and `cooldown` are the shares of the arrivals left out at the start and the end (by default
    0.1, or 0 for a recorded trace). Changes within `margin` (by default 2 %, or 2 percentage points for shares) do not
    matter. A scenario may be a measured run (JSON of `vllm bench serve --save-detailed`): its requests are then
    replayed, and it is the baseline. `overwrite` lets `out` replace another experiment's document. `intervals` adds the
    model's error; for p99, goodput and price, this takes two more runs of each variant that resembles a measured pair.
    `trust` allows code that is named only in scenario files to run. The whole document is in `.attrs["document"]`.
    Raises UserError if the question is invalid.
    """
    check_window(*margins(warmup, cooldown))
    check_method(interval)
    if not 0 <= margin < 1:
        raise UserError(f"margin is {margin:g} but must be at least 0 and less than 1")
    ends = (warmup, cooldown)
    settings = Settings(level, margin, *margins(*ends), interval, "ttft_p99" if rank_by is None else rank_by)
    objects = Objects()
    given, axes = [objects.named(s) for s in scenarios], objects.named(axes)
    recordings, others = [s for s in given if is_recording(s)], [s for s in given if not is_recording(s)]
    recording = None
    if recordings:
        if window is not None:
            raise UserError(
                "compare: --window cannot be used with a measured run, which is compared as a whole, request by request"
            )
        recording, variants = _measured(recordings, others, axes, objects)
    else:
        variants = variants_of(given, axes)
    check_names(variants, objects)
    shared = shared_settings([v.settings for v in variants])
    with open_runner(out, COMPARISON, executor, jobs, on_progress, objects, shared, overwrite) as runner:
        if recording is not None:
            wanted = _with_goal(measured_metrics(recording, metrics), settings.rank_by)
            judged = measured_document(runner, recording, variants, wanted, settings)
            document = whole_document(judged, Replicates("blocks", ({},)), wanted, settings)
        else:
            same_workload(variants)
            repeats = replicates_of(variants[0].settings, replicates, runner.objects, window, REPLICATES)
            warmup, cooldown = repeats.margins(*ends)
            successive = repeats.kind == "windows" and len(repeats) > 1
            if successive and interval != "auto":
                raise UserError(
                    f"interval={interval} requires independent replicates. Windows of one run depend on each other, "
                    "so use interval=auto."
                )
            settings = settings._replace(warmup=warmup, cooldown=cooldown, successive=successive)
            document = _simulated(runner, variants, repeats, baseline, metrics, settings, intervals)
        values = document.pop("values")
        return answered(document, document["rows"], out, COMPARISON, values)


def _simulated(
    runner: Runner,
    variants: list[Variant],
    repeats: Replicates,
    baseline: str | None,
    metrics: Sequence[Any] | str | None,
    settings: Settings,
    intervals: bool,
) -> dict[str, Any]:
    """Compare policies against each other."""
    if baseline is not None:
        variants = put_first(variants, named(variants, baseline))
    known = Scenario.of(variants[0].settings)
    wanted = _with_goal(
        metrics_of(metrics, known.slo or known.slo_classes, own_features_of(variants)), settings.rank_by
    )
    cells = [[runner.cell(repeats.settings(v.settings, j)) for j in range(len(repeats))] for v in variants]
    names = {cell.address: v.label for v, row in zip(variants, cells, strict=True) for cell in row}
    runner.run([cell for row in zip(*cells, strict=True) for cell in row], names)
    found = [Values.of(runner, v, row, repeats, wanted, settings) for v, row in zip(variants, cells, strict=True)]
    best = 0
    if baseline is None:
        runs = [i for i, one in enumerate(found) if one.entry["error"] is None]
        usable = [i for i in runs if 2 * found[i].entry["unstable"] < len(repeats)]
        best = (usable or runs or [0])[0]
    judged = judged_document(runner, put_first(found, best), repeats, wanted, settings, intervals)
    if best:
        said = "is the baseline because it is the first variant that runs and is stable"
        judged["notes"].insert(0, f"{variants[best].label} {said}")
    return whole_document(judged, repeats, wanted, settings)


def _measured(
    recordings: Sequence[Any], scenarios: Sequence[Any], axes: Mapping[str, Any], objects: Objects
) -> tuple[RecordedRun, list[Variant]]:
    """Return the measured run and the variants compared with it."""
    if len(recordings) > 1 or len(scenarios) > 1:
        raise UserError("compare: specify one measured run and at most one scenario")
    recording = read_recording(recordings[0])
    given, lists = load_grid(scenarios[0] if scenarios else None, axes)
    return recording, measured_variants(recording, objects, given, lists)


def _with_goal(metrics: list[Metric], goal: str) -> list[Metric]:
    metric = metrics_of([goal], {"ttft": 1.0})[0]
    return metrics if metric in metrics else [metric, *metrics]
