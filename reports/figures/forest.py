"""Changes against a baseline with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servesim.experiments.metrics import metric_label
from servesim.reports.experiment import change
from servesim.reports.figures.axes import gap_of, name_above, name_ticks, pitch_of
from servesim.reports.ink import INK
from servesim.reports.svg import Drawing, wide
from servesim.reports.variants import absent, states

VERDICT_COLOURS = {"better": "teal", "worse": "rose", "equivalent": "slate", "identical": "slate", "undecided": "amber"}
VERDICT_COLOURS |= {"too fast": "rose", "too slow": "rose"}
SHOWN = 4
STEPS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0, 9.0, 99.0)
"""Changes that a tick may mark."""
_CHANGE = "relative change from the baseline (absolute for shares)"
PREFERRED = ("ttft_p99", "tpot_p99", "e2el_p99", "output_throughput", "slo_attainment", "usd_per_million_tokens")


def forest(document: Mapping[str, Any]) -> Drawing | None:
    """Draw a panel for each metric, with one line for each variant: its change from the baseline, and the interval of
    the change."""
    chosen = _metrics(document)
    rows = {(r["variant"], r["metric"]): r for r in document["rows"]}
    labels = [v["label"] for v in document["variants"][1:]]
    labels = [label for label in labels if any(_drawn(rows.get((label, m["name"]))) for m in chosen)]
    if not labels or not chosen:
        return None
    margin, each = document["settings"]["margin"], pitch_of(labels, 46)

    def paint(figure: Any, narrow: bool) -> None:
        shape = (len(chosen), 1) if narrow else (1, len(chosen))
        grid = figure.subplots(*shape, squeeze=False, sharey=True).ravel()
        for axes, metric in zip(grid, chosen, strict=True):
            _panel(axes, metric, [rows.get((label, metric["name"])) for label in labels], margin)
            axes.set_ylim(len(labels) - 0.45, -0.75)
            name_ticks(axes.yaxis, range(len(labels)), ["" for _ in labels] if narrow else labels)
            axes.tick_params(axis="y", labelcolor=INK["ink"])
            axes.set_title(metric_label(metric["name"]), pad=8)
            if narrow:
                for y, label in enumerate(labels):
                    box = {"facecolor": INK["surface"], "alpha": 0.8, "pad": 1, "linewidth": 0}
                    name_above(axes, y, label, each, bbox=box)
        figure.subplots_adjust(
            left=0.02 if narrow else 0.17, right=0.98, top=1 - 38 / (figure.get_figheight() * 72), wspace=0.12,
            hspace=gap_of(figure, len(chosen), 38 + 50, 76) if narrow else 0.0,
            bottom=50 / (figure.get_figheight() * 72),
        )  # fmt: skip

    heights = (each * len(labels) + 94, (each * len(labels) + 90) * len(chosen))
    alt = f"Changes from {document['baseline']} with {100 * document['settings']['level']:g} % intervals: " + "; ".join(
        f"{label}, {metric_label(m['name'])} {_words(rows[label, m['name']])}"
        for m in chosen
        for label in labels
        if _drawn(rows.get((label, m["name"])))
    )
    caption = (
        f"Change from {document['baseline']}, with {100 * document['settings']['level']:g} % intervals of the "
        f"paired replicates. Changes within the gray band ({100 * margin:g} %) do not matter."
    )
    found = {r["verdict"] for r in document["rows"]}
    legend = tuple((c, name) for name, c in VERDICT_COLOURS.items() if name in found and name != "identical")
    whole = [label for label in labels if all(_drawn(rows.get((label, m["name"]))) for m in chosen)]
    known = {label: why for label, why in states(document).items() if label not in labels or why == "unstable"}
    legend += absent(document, [document["baseline"], *whole], known)

    def tidy() -> list[tuple[Any, ...]]:
        found = []
        for metric in chosen:
            for y, label in enumerate(labels):
                row = rows.get((label, metric["name"]))
                if row is not None and _drawn(row):
                    what = (metric_label(metric["name"]), row["verdict"])
                    found.append((*what, "point", label, row["change"], y, None, _CHANGE))
                    if row["change_low"] is not None:
                        found.append((*what, "bar", label, row["change_low"], y, row["change_high"], _CHANGE))
        return found

    title = "How much better or worse"
    return wide("changes", title, alt + ".", paint, heights, caption, legend=legend, tidy=tidy)


def _metrics(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    known = {m["name"]: m for m in document["metrics"]}
    wanted = dict.fromkeys([document["settings"]["rank_by"], *PREFERRED, *known])
    return [known[name] for name in wanted if name in known][:SHOWN]


def _drawn(row: Mapping[str, Any] | None) -> bool:
    return row is not None and row["change"] is not None and row["verdict"] != "baseline"


def _words(row: Mapping[str, Any]) -> str:
    said = change(row["change"], row["scale"], row["unit"])
    if row["change_low"] is None:
        return f"{said}, {row['verdict']}"
    ends = [change(row[key], row["scale"], row["unit"]) for key in ("change_low", "change_high")]
    return f"{said} ({ends[0]} to {ends[1]}), {row['verdict']}"


def _panel(axes: Any, metric: Mapping[str, Any], rows: Sequence[Mapping[str, Any] | None], margin: float) -> None:
    """Draw relative changes on a logarithmic axis: half and twice as much are equally far from no change."""
    ratio = metric["scale"] == "ratio"

    def place(value: float) -> float:
        return float(np.log(max(1 + value, 1e-3))) if ratio else value

    reach = place(margin) * 2 if ratio or metric["unit"] == "share" else 0.0
    for y, row in enumerate(rows):
        if row is None or not _drawn(row):
            continue
        colour = INK[VERDICT_COLOURS.get(row["verdict"], "slate")]
        x = place(row["change"])
        low, high = (place(row[k]) if row[k] is not None else x for k in ("change_low", "change_high"))
        axes.plot([low, high], [y, y], color=colour, linewidth=5, alpha=0.45, solid_capstyle="butt")
        axes.plot([x], [y], "o", color=colour, markersize=8, markeredgecolor=INK["surface"], markeredgewidth=1.2)
        reach = max(reach, abs(low), abs(high))
    reach = reach * 1.12 or 1.0
    if ratio:
        reach = max(reach, float(np.log1p(STEPS[0])) / 0.7)
    axes.set_xlim(-reach, reach)
    if ratio or metric["unit"] == "share":
        axes.axvspan(place(-margin), place(margin), color=INK["slate"], alpha=0.18, linewidth=0)
    axes.axvline(0, color=INK["muted"], linewidth=1)
    axes.grid(axis="y", visible=False)
    _ticks(axes, reach, ratio, metric["unit"])
    axes.set_xlabel("change" if ratio or metric["unit"] in ("share", "") else f"change, {metric['unit']}")


def _ticks(axes: Any, reach: float, ratio: bool, unit: str) -> None:
    if not ratio:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(4))
        scale, sign = (100, " pt") if unit == "share" else (1, "")
        axes.xaxis.set_major_formatter(lambda v, _: f"{scale * v:+g}{sign}".replace("-", "−") if v else "0")
        return
    fitting = [step for step in STEPS if np.log1p(step) <= 0.7 * reach]
    step = fitting[-1] if fitting else STEPS[0]
    ticks = [-step if step < 0.5 else -step / (1 + step), 0.0, step]
    names = [f"{100 * t:+.0f} %".replace("-", "−") if t else "0" for t in ticks]
    name_ticks(axes.xaxis, [float(np.log1p(t)) for t in ticks], names)
