"""Error bars as figures of a run, and in words."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from servesim.contracts.figures import Figure, Group, Rows, Summary
from servesim.metrics.request_figures import LATENCY_LABELS
from servesim.metrics.slo import SLO_METRICS
from servesim.metrics.words import number, percent
from servesim.schemas import COUNT, FIGURE, NUMBER, SHARE, TEXT, TEXT_OR_NULL, a_map, an_object, or_null


def bars_text(bars: Mapping[str, Any]) -> str:
    """Return the intervals of means, or the reason there are none."""
    if bars["kind"] is None:
        return f"none: {bars['says']}"
    keys = {key: LATENCY_LABELS[key] for key in SLO_METRICS}
    spans = [f"{name} {number(bars[key]['low'])} to {number(bars[key]['high'])}" for key, name in keys.items()]
    return f"mean {', '.join(spans)} ms, {100 * bars['level']:.0f} % interval"


def propagated_text(found: Mapping[str, Any]) -> str:
    """Return the intervals of figures without measured counterparts, in words. An end at which the queue grows without
    bound is shown as unstable."""
    names = {f"{key}_p99": f"{LATENCY_LABELS[key]} p99" for key in SLO_METRICS}
    names |= {"slo_attainment": "SLO attainment", "usd_per_million_output_tokens": "price per M output tokens"}
    spans = []
    for key, name in names.items():
        if key in found:
            form = percent if key == "slo_attainment" else number
            low, high = (
                form(found[key][end]) if found[key][end] is not None else "unstable" for end in ("low", "high")
            )
            spans.append(f"{name} {low} to {high}")
    return f"{', '.join(spans)}: {found['says']}" if spans else found["says"]


def _rows(summary: Summary) -> Rows:
    bars = summary["intervals"]
    wider = bars.get("propagated")
    known = [("error bars", bars_text(bars))]
    if wider is not None and wider["runs"]:
        known.append(("", propagated_text(wider)))
    elif bars["kind"] is not None:
        more = "" if wider is None else f"; {wider['says']}".replace("; none: ", "; p99 and price have none: ")
        known.append(("", (bars["says"].rpartition("; ")[0] or bars["says"]) + more))
    if bars.get("doubt"):  # results of older versions have none
        known.append(("", bars["doubt"]))
    return known


BAR = or_null(an_object(mean=NUMBER, low=NUMBER, high=NUMBER, coverage=or_null(a_map(FIGURE))))


def _bar(metric: str) -> Figure:
    doc = (
        "`mean` is the simulated mean in ms. `low` and `high` are the ends of the range that contains the fraction "
        "`level` of measured servers like this one. `coverage` contains the `value` of this share on held-out cells "
        "and its 95 % interval"
    )
    return Figure(metric, doc, itemgetter(metric), "ms", BAR)


INTERVALS = Group(
    "intervals",
    "error bars",
    (
        *map(_bar, ("ttft", "tpot", "e2el")),
        Figure("level", "share of measured servers within the error bars", itemgetter("level"), "share", SHARE),
        Figure("kind", "aspects of the run that the measurements do not cover. `null` if there are no error bars",
               itemgetter("kind"), schema=TEXT_OR_NULL),
        Figure("laboratory",
               "`own` if the host terms were fitted to this server (`servesim calibrate host`), and `unseen` "
               "otherwise. "
               "`null` if there are no error bars", itemgetter("laboratory"), schema=TEXT_OR_NULL),
        Figure("says", "the same aspects in words, or the reason why there are no error bars", itemgetter("says"),
               schema=TEXT),
        Figure("farthest",
               "description of the largest error for a laboratory that was excluded from the fit. Empty if there is "
               "none",
               itemgetter("farthest"), schema=TEXT),
        Figure("doubt",
               "warning that measured servers like this one were simulated far off more often than others. Empty if "
               "they were not",
               itemgetter("doubt"), schema=TEXT),
        Figure("fitted", "`date` of the fit, and the numbers of measured `cells` and `deployments` that it used",
               itemgetter("fitted"), schema=an_object(date=TEXT, cells=COUNT, deployments=COUNT)),
        Figure("propagated",
               "`value`, `low` and `high` for p99, goodput, throughput and price, computed from `runs` additional "
               "runs (`--propagate`). `says` states that these intervals are not validated, or explains why there "
               "are none",
               lambda bars: bars.get("propagated"), schema=an_object(says=TEXT, runs=COUNT), optional=True),
    ),
    doc="Error bars for means ([intervals.md](intervals.md)).",
    rows=_rows,
    after=("goodput", "throughput"),
)  # fmt: skip
