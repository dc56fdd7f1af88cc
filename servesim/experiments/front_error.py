"""Error of the model on a Pareto front: which members can be distinguished from possible rivals, and with what
confidence.

It follows from the spread of ratios of measured pairs (servesim.run.stretched), without further runs. If all times of a
variant are f times as long as simulated, while another's are as simulated, the variant's p99 end-to-end latency is
multiplied by f. In a closed loop, so are its price and the inverse of its throughput. In an open loop, these are set by
the arrival rate, and differences no larger than the share of time that the last requests take are ignored. A variant is
as good as another in all three metrics up to some f; the confidence in the order is the share of measured pairs whose
ratio is off by less than that f.

The error is propagated, not validated, because no measured pair has a p99. The queue near a knee amplifies errors
beyond f. For pairs without comparable measurements, the reason is given instead.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from servesim.experiments.metrics import METRICS, metric_label
from servesim.experiments.named import grouped, several
from servesim.experiments.ranking import PARETO
from servesim.intervals.case import Case
from servesim.intervals.fitted import LEVEL, Fitted, shipped
from servesim.intervals.pairs import Spread
from servesim.run.sections import rate_words
from servesim.run.stretched import PAIRED, SAYS, latency_of, ratio_spread

TOLD = (1 + LEVEL) / 2
"""Confidence at or above which two variants are distinguished: the interval of their ratio then excludes the point at
which their order reverses."""
SURELY = 0.97
"""Confidence above which no figure is given, because there are too few pairs to support one."""
TOGETHER = 0.5
"""Share of a run taken up by its last requests above which the arrival rate no longer determines the throughput."""


@dataclass(frozen=True)
class Candidate:
    """Variant that may be on a front."""

    label: str
    values: Mapping[str, float | None]
    """Values by metric."""
    side: Case | str
    """Simulated case, or the reason that it is not comparable to any measured pair."""
    tail: float | None
    """Share of the run's duration that the last requests of an open loop take, or None for a closed loop. Throughput
    differences smaller than this are ignored."""


def tail_of(summary: Mapping[str, Any], open_loop: bool) -> float | None:
    """Return the share of an open loop's duration that its last requests take, estimated by the p99 latency. Return
    None for a closed loop, or if so few requests were sent that all are served together."""
    last = (summary["latency_ms"]["e2el"] or {}).get("p99")
    share = float(last) / 1e3 / float(summary["duration_s"]) if last else 1.0
    return share if open_loop and share < TOGETHER else None


def reach(one: Candidate, other: Candidate, metrics: Sequence[str] = PARETO) -> float:
    """Return the largest factor by which the times of `one` can be multiplied while it stays as good as `other` in all
    metrics, or 0 if there is none."""
    return max(min(_reach(one, other, name) for name in metrics), 0.0)


def _reach(one: Candidate, other: Candidate, metric: str) -> float:
    mine, its = one.values[metric], other.values[metric]
    assert mine is not None  # guaranteed for candidates
    assert its is not None
    if METRICS[metric].latency:
        return its / mine if mine else math.inf
    over = mine / its if METRICS[metric].becomes == "rarer" else its / mine
    if one.tail is None:
        return over
    return math.inf if over >= 1 - one.tail else 0.0


def front_errors(
    candidates: Sequence[Candidate],
    front: Collection[str],
    same: Mapping[str, str],
    fitted: Fitted | None = None,
) -> list[dict[str, Any]]:
    """Return an entry for each member of a front, and for each other variant that may belong there or for which this is
    not known. `told` is whether it is distinguished (null if not known). `sure` is the share of measured pairs for
    which it stays on the front (or off it) and `against` the variant for which this is least certain. `low` and `high`
    are its p99 end-to-end latency in ms, based on the ratio to that variant; `says` gives the basis. `same` maps the
    labels of variants without an entry to the label of an identical variant."""
    fitted = shipped() if fitted is None else fitted
    found = []
    firsts = [one for one in candidates if one.label not in same]
    for one in firsts:
        on = one.label in front
        others = [other for other in firsts if other.label != one.label]
        beat = others if on else [o for o in others if o.label in front and reach(o, one) >= 1]
        entry = _judged(fitted, one, beat, on)
        if on or entry["told"] is not True:
            found.append({"label": one.label, "on": on, **entry})
    return found


class Rival(NamedTuple):
    """Variant that may be as good as another one if its times differ from the simulated ones."""

    share: float
    """Share of measured pairs for which it is as good."""
    label: str
    spread: Spread


def _rivals(
    fitted: Fitted,
    one: Candidate,
    others: Sequence[Candidate],
    metrics: Sequence[str] = PARETO,
    pair: str = "e2e",
) -> tuple[list[Rival], list[tuple[str, str]]]:
    """Return the variants that may be as good as `one` in all metrics, and the labels of variants for which this is not
    known, each with the reason. `pair` is the latency whose measured ratios determine the possible error of the
    times."""
    known, unknown = [], []
    for other in others:
        factor = reach(other, one, metrics)
        if factor <= 0:
            continue  # costs more or carries less, whatever its times are
        what = ratio_spread(fitted, other.side, one.side, pair)
        if isinstance(what, Spread):
            known.append(Rival(_within(what, factor), other.label, what))
        else:
            unknown.append((other.label, what))
    return known, unknown


def _judged(fitted: Fitted, one: Candidate, others: Sequence[Candidate], on: bool) -> dict[str, Any]:
    """Judge a member of a front by the variants that would beat it if they were faster than simulated, or a variant off
    it by the members that beat it."""
    known, unknown = _rivals(fitted, one, others)
    rival = max(known, key=lambda rival: rival.share, default=None)
    if rival is not None:
        sure = 1 - rival.share if on else rival.share
        if not on or sure < TOLD or not unknown:
            return _against(one, rival, sure)
    if unknown:
        return _entry(None, "against {}: {}".format(*unknown[0]))
    return _entry(True, "no other is as good in price and throughput, whatever its latency" if on else "")


def _within(what: Spread, factor: float) -> float:
    """Return the share of measured pairs whose ratio is at most the simulated one times a factor."""
    if factor == math.inf:
        return 1.0
    return 1 - what.beyond(factor) if factor >= 1 else what.beyond(1 / factor)


def _entry(told: bool | None, says: str) -> dict[str, Any]:
    return {"told": told, "sure": None, "against": None, "low": None, "high": None, "says": says}


def _against(one: Candidate, rival: Rival, sure: float) -> dict[str, Any]:
    ms, factor = one.values["e2el_p99"], rival.spread.factor
    assert ms is not None
    ends = {"low": ms / factor, "high": ms * factor}
    # Tolerance: TOLD equals the share only up to rounding if a tenth of the pairs lies beyond either end.
    return _entry(sure > TOLD - 1e-9, rival.spread.says) | {"sure": sure, "against": rival.label, **ends}


def best_error(
    best: Candidate, others: Sequence[Candidate], metric: str, fitted: Fitted | None = None
) -> dict[str, Any]:
    """Return the confidence that a variant is the best by a metric: `sure`, `against` (the variant for which it is
    least certain) and `says`. Values are null if not known."""
    fitted = shipped() if fitted is None else fitted
    if not _has_ratios(metric):
        return {"sure": None, "against": None, "says": f"none: {metric_label(metric)} has no error bars for ratios"}
    known, unknown = _rivals(fitted, best, others, (metric,), PAIRED.get(latency_of(metric), "e2e"))
    if unknown:
        label, why = unknown[0]
        return {"sure": None, "against": label, "says": f"none: {why}"}
    if not known:
        return {"sure": None, "against": None, "says": "no other is as good, whatever its latency"}
    sure, against, says = min((1 - rival.share, rival.label, rival.spread.says) for rival in known)
    return {"sure": sure, "against": against, "says": says if metric.endswith("_mean") else f"{says}; {SAYS}"}


def _has_ratios(metric: str) -> bool:
    """Return whether the ratio of a metric between two variants is a ratio of times for which pairs were measured."""
    what = METRICS[metric]
    if what.latency:
        return latency_of(metric) in PAIRED
    return what.becomes in ("longer", "rarer") and what.scale == "ratio"


def sure_text(sure: float) -> str:
    """Return a confidence in words."""
    return f"over {100 * SURELY:.0f} % sure" if sure > SURELY else f"{100 * sure:.0f} % sure"


def best_text(entry: Mapping[str, Any]) -> str:
    """Return the confidence in a sweep's best variant as a suffix, or an empty string if error bars were left out."""
    if "sure" not in entry:
        return ""
    if entry["sure"] is None:
        says = entry["says"]
        return f"; no error bars: {says.removeprefix('none: ')}" if says.startswith("none") else f"; {says}"
    return f"; better than {entry['against'] or 'the run'}: {sure_text(entry['sure'])} ({entry['says']})"


def front_word(entry: Mapping[str, Any] | None, pareto: bool) -> str:
    """Return the word shown for a variant in a table, with a question mark if a rival may be the better one."""
    if entry is None or entry["told"] is not False:
        return "Pareto" if pareto else ""
    return "Pareto?" if entry["on"] else "may be Pareto"


def entries_of(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a sweep's `model_error` by label."""
    error = document.get("model_error")
    return {} if error is None else {entry["label"]: entry for entry in error["front"]}


def front_sentences(error: Mapping[str, Any] | None) -> list[str]:
    """Return a sentence on the Pareto fronts in a sweep's document, based on its `model_error`; rates of which the same
    is known share one."""
    if error is None:
        return []
    rates = list(dict.fromkeys(entry["rate"] for entry in error["front"]))
    found: dict[str, list[Any]] = {}
    for rate in rates:
        entries = [entry for entry in error["front"] if entry["rate"] == rate]
        parts = [*_told(entries), *_untold(entries), *_unknown(entries)]
        found.setdefault(without_rate("; ".join(parts), rate), []).append(rate)
    return [
        f"Pareto front{' at every rate' if len(these) == len(rates) > 1 else at_rates(these)} given the model's error "
        f"({error['says']}): {text}"
        for text, these in found.items()
    ]


def without_rate(text: str, rate: Any) -> str:
    """Return a text without the rate that labels in it repeat."""
    return text if rate is None else text.replace(f" / rate={rate}", "").replace(f"rate={rate} / ", "")


def at_rates(rates: Sequence[Any]) -> str:
    """Return the rates at which something holds as a suffix, " at 2 and 4 requests/s"; empty if `rate` is not an
    axis."""
    if rates[0] is None:
        return ""
    *others, last = map(rate_words, rates)
    before = ", ".join(each.removesuffix(" requests/s") for each in others)
    return f" at {before} and {last}" if others else f" at {last}"


def _told(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [entry["label"] or "the run" for entry in entries if entry["told"]]
    return [f"distinguishable from all others: {several(names, ', ')}"] if names else []


def _untold(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    said = [
        f"{e['label']} is not beaten by {e['against']}: {sure_text(e['sure'])}"
        if e["on"]
        else f"{e['label']} may be on it ({e['against']} beats it: {sure_text(e['sure'])})"
        for e in entries
        if e["told"] is False
    ]
    return [several(said, room=300)] if said else []


def _unknown(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    said = grouped((e["says"].partition(": ")[2], e["label"]) for e in entries if e["told"] is None)
    return [f"not known for {several(labels, ', ')}: {why}" for why, labels in said.items()]
