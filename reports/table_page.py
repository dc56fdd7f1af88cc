"""Page of a kernel table: coverage, repeats, held-out points, anomalies, other tables of the same GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from servesim.calibrate.quality import Against, Operator, Quality, quality
from servesim.reports.ink import INK
from servesim.reports.page import Alert, Page, Table
from servesim.reports.svg import Drawing, half, wide

_MOST = 1200
"""Maximum number of dots in a figure."""
_COLOURS = ("blue", "teal", "amber", "rose", "violet", "sky", "lime", "slate")


def table_html(folder: Path, gpu: str | None = None, against: list[str] | None = None) -> str:
    """Return the quality report of the tables in a folder."""
    html: str = page(quality(folder, gpu, against)).html()
    return html


def page(found: Quality) -> Page:
    """Return the page of a quality report."""
    first: dict[str, Any] = next(iter(found.provenance.values()), {})
    rows = sum(len(o.rows["time_us"]) for o in found.operators)
    chips = [(k, str(first[v])) for k, v in _CHIPS if first.get(v)]
    drawings = [_coverage(o) for o in found.operators if o.op in ("gemm", *_GRIDS)]
    figures = {"coverage": [d for d in drawings if d], "errors": [], "against": [_ratios(a) for a in found.against]}
    if found.repeats or found.held_out:
        figures["errors"] = [d for d in (_repeats(found), _held(found)) if d]
    return Page(
        "table",
        "kernel table",
        f"Kernel timings of {first.get('device', found.gpu.name)}",
        f"{rows:,} rows in {len(found.provenance)} files of {found.name}",
        chips,
        _alerts(found),
        {
            "tiles": _tiles(found, rows),
            "operators": _operators(found),
            "anomalies": Table("Anomalies", ("operator", "what"), [*found.anomalies], (False, False)),
            "comparison": [_comparison(a) for a in found.against],
            "figures": figures,
            "held_out": _held_table(found),
            "provenance": _provenance(found),
        },
    )


_CHIPS = (("device", "device"), ("kernels", "kernels"), ("source", "project"), ("driver", "driver"), ("torch", "torch"))
_GRIDS = {
    "attention_decode": ("past_tokens", "context", "batch", "sequences"),
    "attention_prefill": ("new_tokens", "new tokens", "past_tokens", "cached tokens"),
    "attention_mixed": ("past_tokens", "context of the decodes", "batch", "sequences that decode"),
}


def _alerts(found: Quality) -> list[Alert]:
    worst = max((abs(d) for d in found.drift), default=0.0)
    alerts = []
    if worst > 0.05:
        text = f"The reference GEMM changed by up to {worst:.1%} while the table was measured."
        alerts.append(Alert("The clock drifted.", text, "warn"))
    if not any(p.get("relative_error") is not None for p in found.provenance.values()):
        alerts.append(Alert("Repeat error unknown.", "The source does not repeat its measurements.", "warn"))
    return alerts


def _tiles(found: Quality, rows: int) -> list[dict[str, Any]]:
    def tile(name: str, value: str, note: str, unit: str = "", bad: bool = False) -> dict[str, Any]:
        return {"name": name, "value": value, "note": note, "unit": unit, "bad": bad}

    band = _band(found.repeats)
    held = np.abs(np.concatenate([h.errors for h in found.held_out])) if found.held_out else np.zeros(0)
    tiles = [tile("Rows", f"{rows:,}", f"{len(found.operators)} operators and formats")]
    tiles.append(
        tile("Repeat band", f"±{100 * band:.1f}", f"90 % of {len(found.repeats)} repeats", "%", band > 0.05)
        if found.repeats
        else tile("Repeat band", "–", "nothing was measured twice")
    )
    tiles.append(
        tile("Held-out points", f"{100 * held.mean():.1f}", f"mean error of {len(held)}", "%", held.mean() > 0.05)
        if len(held)
        else tile("Held-out points", "–", "none were measured")
    )
    tiles.append(tile("Anomalies", str(len(found.anomalies)), "listed below", bad=bool(found.anomalies)))
    return tiles


def _band(repeats: list[float]) -> float:
    return float(np.percentile(np.abs(repeats), 90)) if repeats else 0.0


def _operators(found: Quality) -> Table:
    def line(o: Operator) -> tuple[str, ...]:
        sizes, times = o.rows[o.size], o.rows["time_us"]
        spread = "" if o.spread is None else f"{100 * o.spread:.1f} %"
        reach = f"{sizes.min():,} to {sizes.max():,} {o.unit}"
        span = f"{times.min():,.1f} to {times.max():,.0f} µs"
        return f"{o.op} {o.dtype}", f"{len(times):,}", f"{o.shapes:,}", reach, span, spread, ", ".join(o.kernels[:3])

    columns = ("operator", "rows", "curves", "sizes", "times", "p10 to p90", "kernels")
    numeric = (False, True, True, True, True, True, False)
    return Table("Operators", columns, [line(o) for o in found.operators], numeric)


def _coverage(o: Operator) -> Drawing | None:
    """Draw the positions of the table's points."""
    if o.op == "gemm":
        x, y = o.rows["m"], o.rows["n"].astype(float) * o.rows["k"]
        labels = ("tokens", "weights (n x k)")
    else:
        xs, x_name, ys, y_name = _GRIDS[o.op]
        if ys not in o.rows or xs not in o.rows:
            return None
        x, y, labels = o.rows[xs], o.rows[ys], (x_name, y_name)
    from matplotlib.ticker import FuncFormatter

    places = np.unique(np.stack([x, y], axis=1), axis=0)
    shown = places[np.unique(np.linspace(0, len(places) - 1, min(_MOST, len(places))).astype(int))]

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        axes.scatter(*np.maximum(shown.T, 0.5), s=14, color=INK["blue"], alpha=0.75, linewidths=0)
        for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
            scale("log", base=2)
            axis.set_major_formatter(FuncFormatter(lambda v, _: "0" if v < 0.75 else _short(v)))
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        figure.subplots_adjust(left=0.14, right=0.98, top=0.97, bottom=0.15)

    spans = (f"{name} from {v.min():,.0f} to {v.max():,.0f}" for name, v in zip(labels, (x, y), strict=True))
    alt = f"{len(x):,} rows at {len(places):,} sizes, {', '.join(spans)}."
    if len(shown) < len(places):
        alt += f" Every {len(places) / len(shown):.0f}th size is drawn."
    return half(f"cover-{o.op}-{o.dtype}".replace("_", "-"), f"{o.op} {o.dtype}", alt, paint, caption=alt)


def _short(value: float) -> str:
    for size, unit in ((2**30, "G"), (2**20, "M"), (2**10, "k")):
        if value >= 4 * size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _repeats(found: Quality) -> Drawing | None:
    if not found.repeats:
        return None
    values = 100 * np.array(found.repeats)

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        axes.hist(values, bins=min(40, max(8, len(values) // 3)), color=INK["teal"])
        axes.set_xlabel("change from the first to the second measurement (%)")
        axes.set_ylabel("points")
        figure.subplots_adjust(left=0.1, right=0.98, top=0.96, bottom=0.16)

    alt = (
        f"Repeats differ by a median of {np.median(np.abs(values)):.1f} % and by at most {np.abs(values).max():.1f} %."
    )
    return half("repeats", "Points measured again", alt, paint, caption=alt)


def _held(found: Quality) -> Drawing | None:
    if not found.held_out:
        return None
    groups = found.held_out

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        for i, group in enumerate(groups):
            spread = np.linspace(-0.28, 0.28, len(group.errors)) if len(group.errors) > 1 else np.zeros(1)
            axes.scatter(100 * group.errors, i + spread, s=13, color=INK[_COLOURS[i % 8]], linewidths=0, alpha=0.8)
        axes.axvline(0.0, color=INK["muted"], lw=1.0)
        axes.set_yticks([])
        axes.set_xlabel("error of the looked-up time relative to the measured time (%)")
        axes.grid(axis="x")
        figure.subplots_adjust(left=0.03, right=0.98, top=0.96, bottom=0.16)

    alt = "; ".join(f"{g.what}: mean error {100 * np.abs(g.errors).mean():.1f} %" for g in groups) + "."
    legend = tuple((_COLOURS[i % 8], g.what) for i, g in enumerate(groups))
    return half("held-out", "Points that are not in the table", alt, paint, legend=legend)


def _held_table(found: Quality) -> Table | None:
    if not found.held_out:
        return None

    def line(what: str, errors: Any) -> tuple[str, ...]:
        sizes = 100 * np.abs(errors)
        figures = (sizes.mean(), np.median(sizes), np.percentile(sizes, 95), 100 * errors.mean())
        return what, str(len(errors)), *(f"{v:.1f} %" for v in figures[:3]), f"{figures[3]:+.1f} %"

    columns = ("held out", "points", "mean error", "median", "p95", "bias")
    return Table("Held-out points", columns, [line(h.what, h.errors) for h in found.held_out])


def _comparison(against: Against) -> Table:
    def line(name: tuple[str, str], ratios: Any) -> tuple[str, ...]:
        figures = (np.median(ratios), *np.percentile(ratios, (10, 90)))
        away = 100 * np.abs(ratios - 1.0)
        return " ".join(name), str(len(ratios)), *(f"{v:.2f}" for v in figures), f"{np.median(away):.1f} %"

    columns = ("operator", "points", "median ratio", "p10", "p90", "median difference")
    return Table(f"Against {against.other}", columns, [line(k, v) for k, v in against.ratios.items()])


def _ratios(against: Against) -> Drawing:
    names = list(against.ratios)

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        for i, name in enumerate(names):
            values = against.ratios[name]
            spread = np.linspace(-0.3, 0.3, len(values)) if len(values) > 1 else np.zeros(1)
            axes.scatter(values, i + spread, s=9, color=INK[_COLOURS[i % 8]], alpha=0.6, linewidths=0)
            axes.text(0.01, i - 0.42, " ".join(name), transform=axes.get_yaxis_transform(), va="center")
        axes.axvline(1.0, color=INK["muted"], lw=1.0)
        axes.set_xscale("log")
        axes.set_yticks([])
        axes.set_ylim(len(names) - 0.4, -0.7)
        axes.set_xlabel("time in this table relative to the other table")
        axes.grid(axis="x")
        figure.subplots_adjust(left=0.02, right=0.98, top=0.98, bottom=0.18 if narrow else 0.12)

    alt = "Median ratios: " + ", ".join(f"{' '.join(n)} {np.median(v):.2f}" for n, v in against.ratios.items()) + "."
    height = 90 + 46 * max(len(names), 1)
    name = "".join(c for c in against.other.lower() if c.isalnum())
    return wide(f"against-{name}", f"Against {against.other}", alt, paint, (height, height))


def _provenance(found: Quality) -> list[str]:
    """Return one line per key, with the files to which it belongs if they differ."""
    said: dict[str, dict[str, list[str]]] = {}
    for file, entry in found.provenance.items():
        for key, value in entry.items():
            if value is not None:
                said.setdefault(key.replace("_", " "), {}).setdefault(str(value), []).append(file)
    lines = []
    for key in sorted(said):
        for value, files in said[key].items():
            lines.append(f"{key}: {value}" if len(said[key]) == 1 else f"{key} of {', '.join(files)}: {value}")
    return lines
