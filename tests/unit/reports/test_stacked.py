"""On a phone panels stand one below the other, and none writes into the next one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from servesim.reports.figures.ratios import ratio_strips
from servesim.reports.figures.strip import strip
from servesim.reports.ink import NARROW, painted
from servesim.reports.svg import Drawing

METRICS = [{"name": name, "unit": "ms"} for name in ("ttft_p99", "tpot_p99")]


def _strip(n: int) -> Drawing:
    rows: list[dict[str, Any]] = [
        {"label": f"gpu=h100 / rate={i}", "points": [("", True, {"ttft_p99": 40.0 + i, "tpot_p99": 9.0})]}
        for i in range(n)
    ]
    return strip(rows, [""], METRICS)


def _ratios(n: int) -> Drawing:
    given = {"engine": "vllm", "gpu": "h100_sxm", "screened": "", "tpot_ratio": "1.1", "ttft_ratio": "0.8"}
    found = ratio_strips([{**given, "model": f"a/model-{i}"} for i in range(n)])
    assert found is not None
    return found


@pytest.mark.parametrize("n", [1, 3, 24])
@pytest.mark.parametrize("drawn", [_strip, _ratios])
def test_no_panel_reaches_into_the_next_one(drawn: Any, n: int) -> None:
    drawing = drawn(n)
    figure = painted(drawing, NARROW, drawing.narrow_height, narrow=True)
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert len(boxes) == 2
    for upper, lower in pairwise(boxes):
        assert upper.y0 >= lower.y1 - 1
    assert boxes[-1].y0 >= -1
