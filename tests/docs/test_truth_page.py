"""docs/how-true.md and docs/intervals.md say of each laboratory what the shipped statistics say."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from servesim.intervals.case import CROWDS
from servesim.intervals.fitted import shipped
from tests.support.documents import ROOT
from tests.support.truth_page import TABLES, errors_table, left_out_table, page, widening_table

PAGE = ROOT / "docs" / "how-true.md"
FOUND: dict[str, Any] = {
    "wider": {
        crowd: {
            "ttft": {"low": 1.0, "high": 1.0, "of": {"low": "", "high": ""}},
            "tpot": {"low": 1.0, "high": high, "of": {"low": "", "high": "ours"}},
            "e2e": {"low": 1.2, "high": 2.0, "of": {"low": "theirs", "high": "ours"}},
        }
        for crowd, high in zip(CROWDS, (1.5, 2.5), strict=True)
    },
    "coverage": {metric: {"value": 0.9, "low": 0.801, "high": 1.0} for metric in ("ttft", "tpot", "e2e")},
    "left_out": [
        {
            "laboratory": "ours",
            "what": "one server",
            "load": "a burst",
            "fitted": "nothing",
            "kept": 1350,
            "answered": 1110,
            "with_bars": 55,
            "errors": {metric: {"mape": 0.304, "log_median": math.log(0.82)} for metric in ("ttft", "tpot", "e2e")},
            **{key: {"not_widened": 0.25, "inside": 0.81, "unseen": 0.5} for key in ("ttft", "tpot", "e2e")},
        }
    ],
}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_tables_are_those_of_the_shipped_statistics(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == page(path), "`make docs` makes the tables"


def test_a_row_has_answered_runs_mean_errors_and_the_median_sign() -> None:
    row = errors_table(FOUND).splitlines()[-1]
    assert row == ("| ours | one server | a burst | 1,110 of 1,350 | 30 % (-18) | 30 % (-18) | 30 % (-18) | nothing |")


def test_a_laboratory_left_out_has_its_three_shares_and_the_mean_has_its_interval() -> None:
    *_, ours, mean = left_out_table(FOUND).splitlines()
    shares = "25 % / 81 % / 50 %"
    assert ours == f"| ours | 55 of 1,110 | {shares} | {shares} | {shares} | -18 % |"
    assert mean.count("90 % [80, 100]") == 3


def test_an_end_that_moves_says_whose_results_need_it() -> None:
    tpot, ttft, e2e = widening_table(FOUND).splitlines()[-3:]
    assert tpot == "| TPOT | 1.00 | 1.50 (ours) | 1.00 | 2.50 (ours) |"
    assert ttft == "| TTFT | 1.00 | 1.00 | 1.00 | 1.00 |"
    assert e2e == "| E2E | 1.20 (theirs) | 2.00 (ours) | 1.20 (theirs) | 2.00 (ours) |"


def test_ordinary_servers_come_first_and_the_page_stays_short() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", text, re.M)
    assert rows.index("gpustack") < rows.index("Qwen3-14B recordings") < rows.index("InferenceX") < rows.index("NVIDIA")
    assert len(text.splitlines()) <= 120
    assert text.index("servers nobody tuned") < text.index("Qwen3-14B") < text.index("InferenceX")


@pytest.mark.parametrize("name", ["README.md", "docs/how-true.md"])
def test_prose_has_the_median_of_servers_that_nobody_tuned(name: str) -> None:
    row = next(one for one in shipped().document["laboratories"]["left_out"] if one["laboratory"] == "gpustack")
    text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
    fast = -100 * math.expm1(row["errors"]["e2e"]["log_median"])
    assert re.search(rf"(E2E was simulated|simulated E2E is) {fast:.0f} % too fast in the median", text)
    assert f"{100 * row['errors']['e2e']['mape']:.0f} %" in text


def test_prose_has_what_a_laboratory_unlike_all_others_would_have_had() -> None:
    row = next(one for one in shipped().document["laboratories"]["left_out"] if one["laboratory"] == "gpustack")
    text = " ".join((ROOT / "docs" / "intervals.md").read_text(encoding="utf-8").split())
    tpot, e2e = (f"{100 * row[metric]['unseen']:.0f} %" for metric in ("tpot", "e2e"))
    assert f"its bars would have held {tpot} of TPOT and {e2e} of E2E" in text
