"""Tables of docs/how-true.md and docs/intervals.md by laboratory, written from the shipped statistics: `python -m
tests.support.truth_page`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from servesim.intervals.case import CROWDS
from servesim.intervals.fitted import shipped
from tests.support.documents import ROOT

BEGIN, END = "<!-- begin: python -m tests.support.truth_page -->\n", "<!-- end -->\n"
SHOWN = ("tpot", "ttft", "e2e")
Found = Mapping[str, Any]


def errors_table(found: Found) -> str:
    """Return by laboratory what was measured, the errors, and what was fitted to it."""
    rows = []
    for one in found["left_out"]:
        errors = [
            f"{percent(one['errors'][name]['mape'])} ({sign(one)})" for name, sign in zip(SHOWN, SIGNS, strict=True)
        ]
        answered = f"{one['answered']:,} of {one['kept']:,}"
        rows.append([one["laboratory"], one["what"], one["load"], answered, *errors, one["fitted"]])
    return table(["who measured", "servers", "load", "runs answered", "TPOT", "TTFT", "E2E", "fitted to it"], rows)


def left_out_table(found: Found) -> str:
    """Return by laboratory how many of its results lay inside bars that were fitted without it."""
    rows = []
    for one in found["left_out"]:
        inside = [
            " / ".join(percent(one[metric][how]) for how in ("not_widened", "inside", "unseen")) for metric in SHOWN
        ]
        answered = f"{one['with_bars']:,} of {one['answered']:,}"
        rows.append([one["laboratory"], answered, *inside, f"{_sign('e2e')(one)} %"])
    means = found["coverage"]
    over = [f"{percent(means[m]['value'])} [{100 * means[m]['low']:.0f}, {100 * means[m]['high']:.0f}]" for m in SHOWN]
    rows.append([f"mean over {len(found['left_out'])}, last of the three", "", *over, ""])
    return table(["left out", "runs with bars", "TPOT", "TTFT", "E2E", "median sign of E2E"], rows)


def widening_table(found: Found) -> str:
    """Return by metric and load how much farther each end lies, and whose results need it."""
    names = {"tpot": "TPOT", "ttft": "TTFT", "e2e": "E2E"}
    rows = [
        [names[metric], *(_end(found["wider"][crowd][metric], end) for crowd in CROWDS for end in ("low", "high"))]
        for metric in SHOWN
    ]
    few, many = f"{CROWDS[0].replace('-', ' to ')} in flight", "more"
    ends = [f"{crowd}: {end} end" for crowd in (few, many) for end in ("lower", "upper")]
    return table(["times as far from the median", *ends], rows)


def _end(ends: Found, end: str) -> str:
    of = ends["of"][end]
    return f"{ends[end]:.2f}{of and f' ({of})'}"


def _sign(metric: str) -> Callable[[Found], str]:
    return lambda one: f"{round(100 * math.expm1(one['errors'][metric]['log_median'])):+d}".replace("+0", "0")


SIGNS = tuple(map(_sign, SHOWN))


def percent(share: float) -> str:
    """Return a share in whole percent."""
    return f"{100 * share:.0f} %"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("|  |", "| |").replace("| --- ", "|---")


TABLES: dict[Path, tuple[Callable[[Found], str], ...]] = {
    ROOT / "docs" / "how-true.md": (errors_table,),
    ROOT / "docs" / "intervals.md": (widening_table, left_out_table),
}
"""Tables of each page, in the order of their marks."""


def page(path: Path) -> str:
    """Return a page with its tables between their marks."""
    text = path.read_text(encoding="utf-8")
    head, *parts = text.split(BEGIN)
    assert len(parts) == len(TABLES[path]), path
    found = shipped().document["laboratories"]
    tables = (
        f"{BEGIN}\n{make(found)}\n{END}{part.partition(END)[2]}" for make, part in zip(TABLES[path], parts, strict=True)
    )
    return head + "".join(tables)


if __name__ == "__main__":
    for path in TABLES:
        path.write_text(page(path), encoding="utf-8")
