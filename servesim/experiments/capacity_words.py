"""Words on the model's error in the answer to a capacity question: intervals in brackets, and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from servesim.experiments.capacity_error import SOUGHT, UNKNOWN
from servesim.experiments.named import grouped, several
from servesim.run.stretched import SAYS

Row = Mapping[str, Any]


def brackets(row: Row) -> tuple[str, str]:
    """Return the intervals of a row's number of GPUs and of its highest rate as suffixes, " (1-3)" and " (6.1-9.8)";
    empty strings for what has none."""
    bars = row.get("model_error")
    if bars is None or bars["says"] != SAYS:
        return "", ""
    low, high = bars["low"], bars["high"]
    if row["by"] == "replicas":
        return f" ({low})" if low == high and low is not None else f" ({_span(low, high, 'fewer')})", ""
    low, high = (None if end is None else f"{end:.2g}" for end in (low, high))
    return "", f" ({_span(low, high, 'less')})"


def _span(low: object, high: object, under: str) -> str:
    """Return an interval in words; an end that is None was not found."""
    if low is None:
        return "not known" if high is None else f"{high} or {under}"
    return f"{low} or more" if high is None else f"{low}-{high}"


def bracket_words(document: Mapping[str, Any]) -> str:
    """Return what the brackets in the table mean, or an empty string if there are none."""
    error = document.get("model_error")
    if error is None or SAYS not in _says(document).values():
        return ""
    return f"in brackets: {100 * error['level']:.0f} % interval from the model's error ({SAYS})"


def _says(document: Mapping[str, Any]) -> dict[str, str]:
    """Return what each row says of its intervals, by label."""
    rows = document["rows"]
    return {row["label"]: row["model_error"]["says"] for row in rows if row.get("model_error") is not None}


def error_sentences(document: Mapping[str, Any]) -> list[str]:
    """Return notes on the model's error: whether decisions hold, which rows have no intervals, and what is not known,
    once for each reason."""
    error = document.get("model_error")
    if error is None:
        return []
    says, worth = _says(document), [one["says_error"] for one in document.get("worth", ())]
    decisions = [one["says"] for one in sorted(error["decisions"], key=lambda one: one["holds"] is not False)]
    found = [said for said in (*worth, *decisions) if said and UNKNOWN not in said]
    unknown = (said.split(UNKNOWN) for said in (worth or decisions) if UNKNOWN in said)
    found += [f"{names}{UNKNOWN}{why}" for why, names in _alike(unknown)]
    missing = ((label or "this", why) for label, why in says.items() if why.startswith("none"))
    found += [f"{names}: no error bars: {why.removeprefix('none: ')}" for why, names in _alike(missing)]
    later = sum(why.startswith("not computed") for why in says.values())
    if later:
        found.append(
            f"only the {SOUGHT} cheapest deployments have intervals in brackets, and the other {later} do not. The "
            "Pareto front ignores the model's error"
        )
    if says:
        found.append("TTFT p99 and $/M tokens are simulated at the rate shown and change with it")
    return found


def _alike(said: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Return each reason with the names that have it, given names and reasons."""
    return [(why, several(names, ", ")) for why, names in grouped((why, name) for name, why in said).items()]
