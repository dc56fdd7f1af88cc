"""Conversion of per-replicate values into rows with intervals and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.experiments.metrics import Metric, metric_label
from servesim.experiments.run_metrics import Run, Slice
from servesim.experiments.statistics import (
    Interval,
    effective_number,
    holm,
    interval,
    replicates_needed,
    sign_flip_p,
    successive_interval,
    verdict,
)

Array = NDArray[np.float64]
Row = dict[str, Any]
Variants = Sequence[Mapping[str, Any]]
"""Entries of the variants in the document, the baseline first."""

PARTS = 10
"""Number of successive parts into which a single run is cut to compare it."""


class Settings(NamedTuple):
    """Settings of a comparison."""

    level: float
    margin: float
    warmup: float
    cooldown: float
    interval: str
    rank_by: str
    successive: bool = False
    """Whether replicates are successive windows of one run."""


class Judged(NamedTuple):
    """Differences of one variant from the baseline, before the family of tests is known."""

    d: Array
    found: Interval
    p: float


def judge(
    variants: Variants, values: Array, metrics: Sequence[Metric], settings: Settings, runs: Sequence[Run | None] | None
) -> list[Row]:
    """Return a row for each metric and variant. `values` has shape (variants, replicates, metrics). If there is only
    one replicate, `runs` holds the run of each variant (None if it failed), which is cut into `PARTS`."""
    each = (_metric_rows(variants, values[:, :, m], metric, settings, runs) for m, metric in enumerate(metrics))
    return [row for rows in each for row in rows]


def is_unstable(variant: Mapping[str, Any]) -> bool:
    """Return whether a queue grows without bound in at least half of a variant's runs. Leaving out only the unstable
    runs would introduce survivorship bias."""
    ran = sum(address is not None for address in variant["cells"])
    return bool(2 * variant["unstable"] >= max(ran, 1))


def _metric_rows(
    variants: Variants, values: Array, metric: Metric, settings: Settings, runs: Sequence[Run | None] | None
) -> list[Row]:
    ratio = metric.scale == "ratio" and bool((values[~np.isnan(values)] > 0).all())
    scaled = np.log(values) if ratio else values
    # A metric that may be 0, or is 0 here, is compared by difference; the margin is then a share of its usual value.
    margin = np.log1p(settings.margin) if ratio else settings.margin * _usual(values[0], metric)
    unstable = [metric.latency and is_unstable(v) for v in variants]
    judged: dict[int, Judged] = {}
    for i in range(1, len(variants)):
        d = scaled[i] - scaled[0]
        d = d[~np.isnan(d)]
        if variants[i]["error"] is None and not unstable[i] and not unstable[0] and len(d):
            judged[i] = _judged(d, metric, settings, None if runs is None else (runs[0], runs[i]), ratio)
    adjusted = dict(zip(judged, holm([j.p for j in judged.values()]), strict=True))
    centres = [float(np.mean(row[~np.isnan(row)])) if (~np.isnan(row)).any() else np.nan for row in scaled]
    oracles = [c for v, c, u in zip(variants, centres, unstable, strict=True) if v["oracle"] and not u and c == c]
    oracle = (min if metric.better == "lower" else max)(oracles, default=None)
    rows = []
    for i, v in enumerate(variants):
        row: Row = {
            "variant": v["label"],
            "metric": metric.name,
            "unit": metric.unit,
            "better": metric.better,
            "scale": "ratio" if ratio else "difference",
            "value": _value(centres[i], ratio),
            "baseline_value": _value(centres[0], ratio),
            **dict.fromkeys(("change", "change_low", "change_high", "p", "p_holm")),
            "verdict": "baseline" if i == 0 else "failed" if v["error"] else "undecided",
            "replicates": int((~np.isnan(values[i])).sum()),
            "more_replicates": None,
            "gap_to_oracle": None if oracle is None or unstable[i] else _change(centres[i] - oracle, ratio),
        }
        if unstable[i] or (unstable[0] and not v["error"]):
            row["verdict"] = "unstable"
        if i in judged:
            family = len(judged) if runs is None else 0
            row |= _figures(judged[i], adjusted[i], metric, margin, settings, ratio, family)
        rows.append(row)
    return rows


def _judged(
    d: Array, metric: Metric, settings: Settings, runs: tuple[Run | None, Run | None] | None, ratio: bool
) -> Judged:
    """Return the interval and p-value of a variant's differences. Those of two single `runs` follow from how much the
    differences of successive parts vary."""
    if settings.successive:
        return Judged(d, *successive_interval(d, settings.level))
    if runs is None:
        return Judged(d, interval(d, settings.interval, settings.level), sign_flip_p(d) if len(d) > 1 else 1.0)
    base, other = runs
    if base is None or other is None or not metric.latency or not d.any():
        return Judged(d, Interval(-np.inf, np.inf), 1.0)
    parts = np.array_split(Slice.of(base, settings.warmup, settings.cooldown).rows, PARTS)
    a, b = (
        np.array([metric.part(replace(run, rows=part, whole=False)) if len(part) else np.nan for part in parts])
        for run in (Slice.of(base, 0, 0), Slice.of(other, 0, 0))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.log(b / a) if ratio else b - a
    each = each[np.isfinite(each)]
    centred = each + (float(d.mean()) - each.mean()) if len(each) else each
    return Judged(d, *successive_interval(centred, settings.level))


def _figures(
    found: Judged, p_holm: float, metric: Metric, margin: float, settings: Settings, ratio: bool, family: int
) -> Row:
    """Return the fields of a row that depend on the family of tests: their number is `family`, or 0 if there are no
    replicates of which there could be more."""
    word = verdict(found.d, found.found, p_holm, metric.better, margin, settings.level)
    more = None
    if word == "undecided" and family and len(found.d) > 1:
        needed = replicates_needed(found.d, margin, family, settings.level)
        if needed is not None and settings.successive:  # as dependent as the windows there are
            needed = ceil(needed * len(found.d) / effective_number(found.d))
        more = None if needed is None else max(1, needed - len(found.d))
    return {
        "change": _change(float(found.d.mean()), ratio),
        "change_low": _change(found.found.low, ratio),
        "change_high": _change(found.found.high, ratio),
        "p": found.p,
        "p_holm": p_holm,
        "verdict": word,
        "more_replicates": more,
    }


def _usual(baseline: Array, metric: Metric) -> float:
    """Return the value that a margin refers to: 1 for shares and counts per request, else the baseline's mean."""
    if metric.unit in ("share", "") or np.isnan(baseline).all():
        return 1.0
    return float(np.abs(np.nanmean(baseline))) or 1.0


def _value(centre: float, ratio: bool) -> float | None:
    if centre != centre:
        return None
    return float(np.exp(centre)) if ratio else centre


def _change(difference: float, ratio: bool) -> float | None:
    """Return a change on the reported scale, or None if it is not finite."""
    changed = float(np.expm1(difference)) if ratio else difference
    return changed if np.isfinite(changed) else None


def ranking(variants: Variants, rows: Sequence[Row], metric: Metric) -> dict[str, Any]:
    """Rank variants, best first. Unstable and failed ones are listed but not ranked."""
    value = {row["variant"]: row["value"] for row in rows if row["metric"] == metric.name}
    unstable = [v["label"] for v in variants if is_unstable(v) and v["error"] is None]
    failed = [v["label"] for v in variants if v["error"] is not None]
    ranked = [v["label"] for v in variants if v["label"] not in (*unstable, *failed) and value[v["label"]] is not None]
    sign = 1 if metric.better == "lower" else -1
    order = sorted(ranked, key=lambda label: sign * value[label])
    return {"metric": metric.name, "order": order, "unstable": unstable, "failed": failed}


AT_THE_RATE = "set by the rate"
"""Verdict on a price per token that no policy could have changed."""
TOO = {("lower", "better"): "too fast", ("lower", "worse"): "too slow"}
"""Verdicts on a simulated server compared with a measured one, keyed by the metric's direction and the verdict that
would be given on two policies."""


def set_by_rate(rows: Sequence[Row], variants: Variants, equal: Collection[str] = ()) -> list[Row]:
    """Return the rows, marking prices per token that are set by the arrival rate: variants with the same hourly price
    that serve the same requests as they arrive pay the same for them. `equal` holds the labels of variants that are
    identical to the baseline."""
    hourly = {v["label"]: v["usd_per_hour"] for v in variants if v["open_loop"]}
    base = hourly.get(variants[0]["label"])
    return [
        row | {"verdict": AT_THE_RATE, "more_replicates": None}
        if row["metric"].startswith("usd_per_million")
        and base is not None
        and hourly.get(row["variant"]) == base
        and row["verdict"] in ("equivalent", "undecided", "identical")
        and row["variant"] not in equal
        else row
        for row in rows
    ]


def off_the_measured(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a comparison with a measured server, with verdicts on the direction of the simulation's
    error."""
    return [row | {"verdict": TOO.get((row["better"], row["verdict"]), row["verdict"])} for row in rows]


def sentence(row: Row, baseline: str) -> str:
    """Return a row as a sentence."""
    name, who = metric_label(row["metric"]), row["variant"]
    if row["verdict"] == "failed":
        return f"{who} cannot run"
    if row["verdict"] == "unstable":
        return f"{who}: {name} is not compared, because the queue grows without bound"
    if row["verdict"] == "identical":
        return f"{who} and {baseline} are identical in {name}"
    if row["verdict"] == AT_THE_RATE:
        return f"{who} and {baseline} cost the same: at a fixed rate no variant can be cheaper ({name})"
    low, high = row["change_low"], row["change_high"]
    ratio = row["scale"] == "ratio"
    change = abs(row["change"])
    much = f"{100 * change:.1f} %" if ratio else f"{change:.4g} {row['unit']}".strip()
    way = "lower" if row["change"] < 0 else "higher"
    off = row["verdict"] in TOO.values()
    said = f"{who} has {much} {way} {name} than {baseline}"
    if off:
        said = f"{who} is {row['verdict']} by {much} in {name}"
    if low is not None and high is not None:
        ends = [f"{100 * x:+.1f}" if ratio else f"{x:+.4g}" for x in (low, high)]
        said += f" (interval {ends[0]} to {ends[1]}{' %' if ratio else ''})"
    if row["verdict"] == "undecided":
        more = row["more_replicates"]
        return f"{said}: undecided" + (f", with about {more} more replicates needed to decide" if more else "")
    return said if off else f"{said}: {row['verdict']}"
