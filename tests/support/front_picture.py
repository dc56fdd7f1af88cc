"""The picture at the top of README.md, simulated and drawn: `python -m tests.support.front_picture`.

Two files, for a wide screen and for a phone, and the text that stands in README.md for readers who see neither.
"""

from __future__ import annotations

import re
from html import escape
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import servesim
from servesim.reports.ink import INK
from servesim.reports.svg import Drawing, wide
from tests.support.documents import ROOT

README = ROOT / "README.md"
FILES = {ROOT / "docs" / "capacity.svg": 7.0, ROOT / "docs" / "capacity-phone.svg": 3.1}
"""Width of each file's layout in inches."""
WORKLOAD: dict[str, Any] = {
    "trace": "preset:azure-conv-2023", "requests": 1000, "model": "llama-3.1-8b", "gpu": "h100", "tp": [1, 2],
    "replicates": 3, "intervals": False,
}  # fmt: skip
SLO = {"ttft": 500, "tpot": 50}
RATES = (4, 8, 12, 16, 18, 20, 24, 28, 32, 36)
ALT = re.compile(r'(<img alt=")[^"]*(")')


class Curve(NamedTuple):
    """One deployment: TPOT p99 in ms and SLO attainment by rate and seed, and the rate that it carries."""

    label: str
    colour: str
    tpot: Any
    attainment: Any
    carries: float
    low: float
    high: float


def simulated() -> list[Curve]:
    """Run the sweep over rates and the capacity question of one and of two GPUs."""
    with TemporaryDirectory() as folder:
        rows = servesim.sweep(**WORKLOAD, slo=SLO, rate=list(RATES), out=f"{folder}/sweep")
        found = servesim.capacity(**WORKLOAD, slo=SLO, out=f"{folder}/capacity")
    curves = []
    for tp, colour, label in ((1, "blue", "1 x H100"), (2, "amber", "2 x H100, TP 2")):
        of = rows[rows["tp"].astype(int) == tp]
        by_rate = [of[of["rate"].astype(float) == rate] for rate in RATES]
        tpot, attainment = (np.array([one[name] for one in by_rate]) for name in ("tpot_p99", "slo_attainment"))
        row = found[found["gpus"] == tp].iloc[0]
        curves.append(Curve(label, colour, tpot, attainment, row["rate"], row["rate_low"], row["rate_high"]))
    return curves


def drawing(curves: list[Curve]) -> Drawing:
    """Draw TPOT p99 and SLO attainment against the rate, with the range over the seeds."""

    def paint(figure: Any, narrow: bool) -> None:
        left, right = figure.subplots(*((2, 1) if narrow else (1, 2))).ravel()
        for curve in curves:
            ink = INK[curve.colour]
            for axes, values in ((left, curve.tpot), (right, 100 * curve.attainment)):
                axes.fill_between(RATES, values.min(axis=1), values.max(axis=1), color=ink, alpha=0.22, linewidth=0)
                axes.plot(RATES, values.mean(axis=1), color=ink, linewidth=1.8)
            right.axvspan(curve.low, curve.high, color=ink, alpha=0.1, linewidth=0)
            right.axvline(curve.carries, color=ink, linewidth=1.3, linestyle=(0, (2, 2)))
            right.annotate(
                f"{curve.carries:.1f}/s", (curve.carries, 4), (-4, 0), textcoords="offset points", ha="right",
                color=ink, weight="bold",
            )  # fmt: skip
        left.axhline(SLO["tpot"], color=INK["rose"], linestyle=(0, (4, 3)), linewidth=1.3)
        left.annotate("SLO: 50 ms", (0.5, SLO["tpot"]), (0, 4), textcoords="offset points", color=INK["rose"])
        left.set(ylim=(0, 150), title="Time per output token, p99 (ms)")
        right.set(ylim=(0, 104), title="Requests within the SLO (%)")
        for axes in (left, right):
            axes.set(xlim=(0, RATES[-1] + 1), xlabel="arrival rate (requests/s)")
        figure.subplots_adjust(
            left=0.1 if narrow else 0.05, right=0.985, top=0.94 if narrow else 0.88, bottom=0.09 if narrow else 0.17,
            wspace=0.13, hspace=0.42,
        )  # fmt: skip

    legend = tuple((curve.colour, curve.label) for curve in curves)
    return wide("front", "What one and two H100 carry", alt(curves), paint, (270, 480), legend=legend)


def alt(curves: list[Curve]) -> str:
    """Return the figure in words."""
    carried = "; ".join(
        f"{curve.label} sustains {curve.carries:.1f} requests/s (95 % interval {curve.low:.1f} to {curve.high:.1f})"
        for curve in curves
    )
    return (
        "Time per output token (p99) and share of requests within the SLO against the arrival rate, for Llama-3.1-8B. "
        f"With 99 % of requests within TTFT {SLO['ttft']} ms and TPOT {SLO['tpot']} ms, {carried}."
    )


def with_alt(page: str, words: str) -> str:
    """Return README.md with these words in place of its picture."""
    return ALT.sub(lambda found: f"{found[1]}{escape(words)}{found[2]}", page)


def write() -> None:
    """Write both files and the words in README.md."""
    picture = drawing(simulated())
    for path, width in FILES.items():
        picture.save(path, width=width)
    README.write_text(with_alt(README.read_text(encoding="utf-8"), picture.alt), encoding="utf-8")


if __name__ == "__main__":  # make docs
    write()
