"""Worth of a feature X: a capacity question with and without X, on the same draws of the workload.

Each X of `of` is compared separately with a deployment that has none of them, and several are also compared together.
The worth of X is given by the ratio of the hourly price per request/s with X to the price without it. The deployments
compared are those that carry `rate` (whole replicas) if it is given, else each at its highest rate.

The document is that of servesim.experiments.capacity with one more key:

    worth         [{of: X, which is the label of the row with it, with, without: the settings that differ,
                  price_ratio, gain: 1 - price_ratio; null: one of the two carries nothing,
                  low, high: of the gain, a 95 % t interval over replicates, each with and without X under the same
                  requests, null if there is none (`says`); model_error: {low, high: of the gain, level, says} or
                  null; usd_per_hour, rate, verdicts: of the two rows; usd_range: of the two rows, [low, high] of $/h
                  per request/s by the model's error, or null; needs: sentences on quality to check and parts to
                  obtain; says_worth, says_error: all of it in sentences}]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servesim.contracts import kv_allocators
from servesim.contracts.section import Settings
from servesim.errors import UserError, shown, suggest
from servesim.experiments.axes import Variant, check_key, load_grid, product
from servesim.experiments.capacity import Found, Terms, answer
from servesim.experiments.capacity_error import price_of_row
from servesim.experiments.capacity_study import Study
from servesim.experiments.objects import Objects
from servesim.experiments.outcome import Outcome
from servesim.experiments.statistics import interval
from servesim.experiments.worth_words import answer_of, error_words, needed, needs, sentence, usd_range
from servesim.parsing import listed
from servesim.plugins.trust import takes_trust
from servesim.run.scenario import Scenario, spelled_out
from servesim.run.setting_names import assigned, full_name, override
from servesim.run.trace_source import open_scenario

if TYPE_CHECKING:
    import pandas as pd

WITHOUT = "without"
"""Label of the deployment without any of the features in question."""
SWITCHES = {
    "fp8": ("dtype=fp8", "dtype=bf16"),
    "fp8-kv": ("kv_dtype=fp8", "kv_dtype=bf16"),
    "chunked-prefill": ("scheduler.enable_chunked_prefill=true", "scheduler.enable_chunked_prefill=false"),
    "async-scheduling": ("engine.async_scheduling=true", "engine.async_scheduling=false"),
    "expert-parallel": ("engine.enable_expert_parallel=true", "engine.enable_expert_parallel=false"),
}
"""Settings with and without a feature, by its name."""
BY_CONTENT = ("prefix-caching", "offload")
"""Features that find KV by the content of the prompt."""
NAMES = ("prefix-caching", "speculation", "offload", "tp", "disaggregation", *SWITCHES)


class Feature(NamedTuple):
    """Feature whose worth is computed."""

    name: str
    on: tuple[str, ...]
    """Assignments that add the feature to a deployment."""
    off: tuple[str, ...]
    """Assignments that remove the feature."""


@takes_trust
def worth(
    scenario: str | Path | Mapping[str, Any] | None = None, *, of: str | Sequence[str], **asked: Any
) -> pd.DataFrame:
    """Compute the worth of features on a workload: prefix-caching, fp8, fp8-kv, speculation, offload, tp,
    chunked-prefill, async-scheduling, expert-parallel, disaggregation (`pd` against the same number of GPUs in replicas
    that do both prefill and decode, each with the scenario's `tp`), or any setting (`scheduler.max_num_seqs=64`)
    against the scenario's own value.

    Keywords are those of `servesim.capacity`, but each setting takes only one value. Returns the rows of the
    deployments. The document, including the worth of each feature, is in `.attrs["document"]`. Raises UserError if the
    question is invalid.
    """
    terms, axes = Terms.of(asked)
    objects = Objects()
    base = product(*load_grid(objects.named(scenario), objects.named(axes)))
    if len(base) > 1:
        raise UserError(
            "worth: specify only one deployment, because worth compares it with and without the feature; "
            f"{next(iter(base[0].axes))} has several values"
        )
    settings = base[0].settings
    features = [feature(name, settings) for name in _names(of)]
    variants = _variants(features, settings)
    _check_told(features, variants, objects)

    def finish(found: Found) -> None:
        found.document["worth"] = _worth(found, features, variants)
        found.document["answer"] = answer_of(found.document["worth"])
        found.document["warnings"] += needed(found.document["worth"])

    return answer(variants, objects, terms, finish)


def _names(of: str | Sequence[str]) -> list[str]:
    """Split lists at commas. A part such as `policy=priority` that is not a setting is joined to the part before it."""
    names: list[str] = []
    for text in [of] if isinstance(of, str) else of:
        for i, part in enumerate(listed("of", text)):
            head, equals, _ = part.partition("=")
            if i and equals and full_name(head).partition(".")[0] not in Scenario.model_fields:
                names[-1] += f",{part}"
            else:
                names.append(part)
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"of: {twice[0]} is specified twice")
    if not names:
        raise UserError(f"of: specify the change to evaluate ({', '.join(NAMES)}, or a setting such as tp=4)")
    return names


def feature(name: str, settings: Settings) -> Feature:
    """Return the feature of a scenario that a name refers to. Raise UserError if there is none."""
    if "=" in name:
        key = full_name(assigned(name)[0])
        check_key(key)
        return Feature(name, (name,), ())
    known = Scenario.of(settings)
    if name in SWITCHES:
        on, off = SWITCHES[name]
        return Feature(name, (on,), (off,))
    if name == "prefix-caching":
        shares = kv_allocators.configured(known.kv)[0].shares
        return Feature(name, () if shares else ("kv=prefix-hash",), ("kv=paged",))
    if name == "speculation":
        if known.speculation["name"] == "none":
            raise UserError("of: the scenario has no speculation. Add it, for example with --speculation eagle3.")
        return Feature(name, (), ("speculation=none", "acceptance=null"))
    if name == "offload":
        if not any(each.get("offload") for each in (known.model_dump(), *known.pools)):
            raise UserError("of: the scenario has no offload. Add it, for example with --offload cpu=64GiB.")
        if any(pool.get("offload") for pool in Scenario.of(override(settings, ["offload=none"])).pools):
            raise UserError("of: offload is set in single pools. Compare two scenarios instead (servesim compare).")
        return Feature(name, (), ("offload=none",))
    if name == "disaggregation":
        return Feature(name, (), _together(settings))
    if name == "tp":
        return Feature(name, () if known.tp > 1 else ("tp=2",), ("tp=1",))
    raise UserError(
        f"of: {shown(name)} is unknown{suggest(name, NAMES)}; specify a setting with its value, such as tp=4"
    )


def _together(settings: Settings) -> tuple[str, ...]:
    """Return the assignments that replace `pd` with the same number of GPUs in replicas that do both prefill and
    decode. Raise UserError if there is no `pd`, or if the GPUs do not divide evenly."""
    if not settings.get("pd"):
        raise UserError(
            "of: the scenario runs prefill and decode together. Define separate pools, for example with --pd 1x1:1x1."
        )
    sides = spelled_out(settings)["pools"]
    gpus, tp = sum(pool["replicas"] * pool["tp"] for pool in sides), int(settings.get("tp") or 1)
    if gpus % tp:
        raise UserError(f"of: the {gpus} GPUs of pd={settings['pd']} do not divide into whole replicas with tp={tp}")
    return "pd=null", *(["handoff=null"] if settings.get("handoff") else []), f"replicas={gpus // tp}"


def _variants(features: Sequence[Feature], settings: Settings) -> list[Variant]:
    """Return the deployment with none of the features, with each separately, and with all of them if there are
    several."""
    bare = override(settings, [text for each in features for text in each.off])
    found = [Variant(WITHOUT, {}, bare)]
    for one in features:
        off = [text for other in features if other is not one for text in other.off]
        found.append(Variant(one.name, {"of": one.name}, override(settings, [*off, *one.on])))
    if len(features) > 1:
        names = " + ".join(one.name for one in features)
        found.append(Variant(names, {"of": names}, override(settings, [text for each in features for text in each.on])))
    plain = [Scenario.of(v.settings).model_dump() for v in found]
    for variant, settled in zip(found[1:], plain[1:], strict=True):
        if settled == plain[0]:
            raise UserError(f"of: {variant.label} has no effect: the scenario already has it")
    return found


def _check_told(features: Sequence[Feature], variants: Sequence[Variant], objects: Objects) -> None:
    """Raise UserError for features that depend on shared prompt content if the trace does not record it."""
    known, *others = [Scenario.of(v.settings) for v in variants]
    asked = [
        one.name
        for one, other in zip(features, others, strict=False)
        if one.name in BY_CONTENT
        or (one.name.startswith("kv=") and known.kv["name"] != "contiguous"
            and kv_allocators.configured(other.kv)[0].shares)
    ]  # fmt: skip
    if not asked or known.stream:
        return
    trace = open_scenario(known, objects.get(known.trace))
    if trace.content is None and trace.samples is None:
        raise UserError(
            f"of: {asked[0]} cannot be evaluated: its value depends on the content that prompts share, which trace "
            f"{trace.name} does not record. Use a trace that records content, or define shared prefixes, for example "
            "with --shape share:tokens=500,groups=20"
        )


def _worth(found: Found, features: Sequence[Feature], variants: Sequence[Variant]) -> list[dict[str, Any]]:
    scenarios = {variant.label: Scenario.of(variant.settings) for variant in variants}
    rows = {row["label"]: row for row in found.rows}
    without, carried = rows[WITHOUT], [row for row in found.rows if row["verdict"] == "carries"]
    pairs = [(row, without) for row in carried if row is not without] if without in carried else []
    by_model = dict.fromkeys(rows, None)
    if found.error is not None:
        bars = found.error.price_ratios(pairs)
        by_model |= {row["label"]: _gains(each) for (row, _), each in zip(pairs, bars, strict=True)}
    told = []
    for label, row in list(rows.items())[1:]:
        asked = [one for one in features if one.name == label] or features  # or all of them together
        ratio = price_of_row(row) / price_of_row(without) if (row, without) in pairs else None
        told.append(
            {
                "of": label,
                "with": [text for one in asked for text in one.on],
                "without": [text for one in asked for text in one.off],
                "price_ratio": ratio,
                "gain": None if ratio is None else 1 - ratio,
                **_paired(found.study, row, without, ratio),
                "model_error": by_model[label],
                "verdicts": [row["verdict"], without["verdict"]],
                **{key: [row[key], without[key]] for key in ("usd_per_hour", "rate")},
                "usd_range": [usd_range(rows[name], scenarios[name]) for name in (label, WITHOUT)],
                "needs": [*needs(scenarios[label], scenarios[WITHOUT])],
            }
        )
    return [one | {"says_worth": sentence(one), "says_error": error_words(one)} for one in told]


def _gains(bars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error bars of a price ratio, converted to those of a gain."""
    low, high = bars["high"], bars["low"]
    return {**bars, "low": low and 1 - low, "high": high and 1 - high}


def _paired(study: Study, row: Mapping[str, Any], without: Mapping[str, Any], ratio: float | None) -> dict[str, Any]:
    """Return the interval of a gain over replicates, or the reason there is none."""
    none: dict[str, Any] = {"low": None, "high": None}
    if ratio is None:
        return none | {"says": "one of the two deployments sustains no rate"}
    if row["by"] == "replicas":
        why = "the number of replicas is a whole number, so the gain has no interval"
        return none | {"says": f"{why}. Give no rate to get an interval"}
    ours, theirs = limits(study, row["label"]), limits(study, without["label"])
    known = [math.log(a / b) for a, b in zip(ours, theirs, strict=True) if a and b]
    if len(known) < 3 or len(known) < len(ours):
        return none | {"says": "too few replicates have their highest rate within the range of the loads tried"}
    ends, times = interval(np.array(known), "t"), float(np.mean(known))
    low, high = (1 - ratio * math.exp(times - end) for end in (ends.low, ends.high))
    return {"low": low, "high": high, "says": f"95 % t interval over {len(known)} pairs of replicates"}


def limits(study: Study, label: str) -> list[float | None]:
    """Return the highest rate of each replicate separately, interpolated logarithmically between the loads tried, or
    None if those loads do not bracket it."""
    tried = sorted((load, outcomes) for (name, load), outcomes in study.outcomes.items() if name == label)
    goals = np.array([goal.share for goal in study.measuring.goals])

    def margins(outcomes: Sequence[Outcome]) -> list[float]:
        shares = outcomes[0].parts or [outcome.shares for outcome in outcomes]
        return [float((np.array(each) - goals).min()) for each in shares]

    loads = [load for load, _ in tried]
    columns = list(zip(*(margins(outcomes) for _, outcomes in tried), strict=True)) if tried else []
    return [_crossing(loads, column) for column in columns]


def _crossing(loads: Sequence[float], margins: Sequence[float]) -> float | None:
    for i, margin in enumerate(margins):
        if margin < 0:
            if i == 0:
                return None
            share = margins[i - 1] / (margins[i - 1] - margin)
            return float(loads[i - 1] * (loads[i] / loads[i - 1]) ** share)
    return None
