"""Laws of every kind of figure at the widths of a paper: what is written stands on the canvas and apart, axes are
labeled, and no variant is missing without a word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.reports import capacity_page, compare_page, sweep_page
from servesim.reports.drawings import RUN
from servesim.reports.figures.described import draw
from servesim.reports.figures.forest import forest
from servesim.reports.figures.kinds import Bars, Curve, Lines, Spans
from servesim.reports.figures.load import Curve as LoadCurve
from servesim.reports.figures.load import Dot, against_load, attainment, pareto
from servesim.reports.figures.overlay import PANELS, overlay
from servesim.reports.figures.ratios import ratio_strips
from servesim.reports.figures.strip import strip
from servesim.reports.figures.together import together
from servesim.reports.ink import SERIES
from servesim.reports.panels import one_panel
from servesim.reports.run import Run
from servesim.reports.svg import Drawing

pytestmark = pytest.mark.medium

METRICS = [
    {"name": "ttft_p99", "unit": "ms", "latency": True, "scale": "ratio"},
    {"name": "output_throughput", "unit": "tokens/s", "latency": False, "scale": "ratio"},
    {"name": "slo_attainment", "unit": "share", "latency": False, "scale": "difference"},
]
LENGTHS = (5, 22, 41, 60)
WORDS = ("vllm:max_num_seqs=128,long_prefill_token_threshold=4096 / kv=x", "an_identifier_" * 5, "Longname" * 8)


def names(length: int, n: int = 4) -> list[str]:
    """Distinct names of one length, with places to break and without."""
    return [f"{WORDS[i % len(WORDS)][: length - 1]}{i}" for i in range(n)]


@pytest.fixture(scope="module")
def run() -> Run:
    """A run that has every figure, with labels of classes and tenants as long as they get."""
    n = 60
    labels = {
        "class": [names(60, 3)[i % 3] for i in range(n)],
        "tenant": [names(41, 9)[i % 9] for i in range(n)],
        "arrival_ns": [i * 1_000_000 for i in range(n)],
        "prompt_len": [400] * n,
        "output_len": [20 + i % 40 for i in range(n)],
    }
    result = servesim.simulate(
        trace=pd.DataFrame(labels),
        model="llama-3.1-8b",
        gpu="h200",
        speculation="eagle3",
        replicas=2,
        router="least-requests",
        slo="ttft:50,tpot:10",
        cluster={"failures": ["crash:replica=0,at=0.1,restart=0.2"], "report_every_s": 0.05},
    )
    return Run(result)


def comparison(labels: list[str]) -> Drawing | None:
    rows = [
        {**metric, "variant": label, "metric": metric["name"], "change": 0.1 * i - 0.2, "verdict": "better",
         "change_low": 0.1 * i - 0.3, "change_high": 0.1 * i - 0.1}
        for i, label in enumerate(labels[1:]) for metric in METRICS
    ]  # fmt: skip
    settings = {"rank_by": "ttft_p99", "margin": 0.01, "level": 0.95}
    variants = [{"label": label} for label in labels]
    ranking = {"order": labels, "unstable": [], "failed": []}
    document = {"schema": "servesim.comparison/1", "rows": rows, "variants": variants, "metrics": METRICS}
    return forest({**document, "settings": settings, "ranking": ranking, "baseline": labels[0]})


def load(labels: list[str]) -> Drawing:
    return against_load(
        [
            LoadCurve(label, SERIES[i], [1.0, 2.0, 3.0], {
                "ttft_p99": [40.0, 60.0, 500.0 + i], "output_throughput": [90.0, 180.0, 200.0],
                "slo_attainment": [1.0, 0.99, 0.4],
            }, [True, True, False])
            for i, label in enumerate(labels)
        ],
        METRICS,
    )  # fmt: skip


def dots(labels: list[str]) -> Drawing:
    rows = enumerate(labels)
    return pareto([Dot(label, SERIES[i], 1.1 + 9 * i, 900.0 - 280 * i, 100.0 * i, True) for i, label in rows])


def strips(labels: list[str]) -> Drawing:
    values = {"ttft_p99": 40.0, "output_throughput": 90.0, "slo_attainment": 0.9}
    return strip([{"label": label, "points": [("", True, values)]} for label in labels], [""], METRICS)


def ratios(labels: list[str]) -> Drawing | None:
    given = {"engine": "vllm", "gpu": "h100_sxm", "screened": "", "tpot_ratio": "1.1", "ttft_ratio": "0.8"}
    return ratio_strips([{**given, "model": f"a/{label[21:]}" if label[21:] else "a/m"} for label in labels])


def latencies(labels: list[str], spread: float = 3.0) -> Drawing | None:
    values = {label: {key: np.geomspace(15, 15 * spread, 50) for key, _ in PANELS} for label in labels}
    palette = {label: SERIES[i] for i, label in enumerate(labels)}
    return overlay(values, palette, {"ttft": 20.0}, "")


def tried(labels: list[str]) -> Drawing:
    points = {label: [(8.0, 0.99), (9.0, 1.0)] for label in labels}
    return attainment(points, {label: SERIES[i] for i, label in enumerate(labels)}, 0.99, "replicas")


def described(kind: str) -> Callable[[list[str]], Drawing]:
    def drawn(labels: list[str]) -> Drawing:
        if kind == "lines":
            curves = [Curve(label, [11.0, 60.0, 80.0], [2.0, 3.0 + i, 4.0]) for i, label in enumerate(labels)]
            return draw("x", Lines("x", "t", "alt", "requests/s", "TTFT, s", curves, "xy", caption="c"))
        if kind == "bars":
            return draw("x", Bars("x", "t", "alt", "$ per hour", {label: [2.0, 3.0] for label in labels}, labels[:2]))
        spans = {label: [(0.0, 1.0, labels[0]), (1.0, 3.0, labels[1])] for label in labels}
        return draw("x", Spans("x", "t", "alt", "seconds", spans, labels[:2]))

    return drawn


NAMED: dict[str, Callable[[list[str]], Drawing | None]] = {
    "changes": comparison,
    "latency_load": load,
    "combinations": strips,
    "pareto": dots,
    "attainment": tried,
    "latency_cdf of several": latencies,
    "latency_cdf over decades": lambda labels: latencies(labels, 300.0),
    "latency_cdf in a decade": lambda labels: latencies(labels, 5.9),
    "ratios": ratios,
    "lines": described("lines"),
    "bars": described("bars"),
    "spans": described("spans"),
}


def ticks(axis: Any) -> list[Any]:
    """Labels of an axis that are drawn."""
    found = [tick.label1 for tick in axis._update_ticks() if tick.label1.get_visible()]
    return [text for text in found if text.get_text()]


def texts(figure: Any) -> Iterator[Any]:
    for axes in figure.axes:
        if axes.axison:
            for axis in (axes.xaxis, axes.yaxis):
                yield from (*ticks(axis), axis.label, axis.offsetText)
        yield from (axes._left_title, axes.title, *axes.texts)
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()


def assert_apart(figure: Any, what: object) -> None:
    figure.set_dpi(300)  # as a file is written: hinted text is narrower on fewer pixels
    figure.draw_without_rendering()
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts(figure) if t.get_text().strip() and t.get_visible()]
    assert boxes
    for text, box in boxes:
        assert box.x0 >= -2, (what, text, "leaves the left edge")
        assert box.y0 >= -2, (what, text, "leaves the lower edge")
        assert box.x1 <= figure.bbox.x1 + 2, (what, text, "leaves the right edge")
        assert box.y1 <= figure.bbox.y1 + 2, (what, text, "leaves the upper edge")
    for (a, one), (b, other) in combinations(boxes, 2):
        across = min(one.x1, other.x1) - max(one.x0, other.x0)
        up = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert across < 2 or up < 2, (what, a, b)
    for axes in figure.axes:
        for text in axes.texts:
            box = text.get_window_extent()
            others = [other.bbox for other in figure.axes if other is not axes]
            assert not any(box.overlaps(other) for other in others), (what, text.get_text(), "reaches another panel")


NUMBER = re.compile(r"[+−$]?\d")
UNIT = re.compile(
    r"(ms|µs|seconds|minutes|hours|\bs\b|%|\$|share|pt|tokens?|requests?|sequences|preemptions|replicas?|FLOP|"
    r"FLOP/s|times|users|over)"
)


def assert_labeled(figure: Any, what: object) -> None:
    for axes in (one for one in figure.axes if one.axison):
        for of in "xy":
            shared = getattr(axes, f"get_shared_{of}_axes")().get_siblings(axes)
            marks = [[text.get_text() for text in ticks(getattr(one, f"{of}axis"))] for one in shared]
            title = " ".join(getattr(one, f"get_{of}label")() for one in shared).strip()
            most = max(marks, key=len)
            if not any(NUMBER.match(mark) for mark in most):
                continue  # names
            place = (what, axes.get_title("left"), of)
            assert len(set(most)) >= 2, (*place, most)
            assert title, (*place, "no title")
            assert UNIT.search(title) or all(UNIT.search(mark) for mark in most if mark != "0"), (*place, title, most)


@pytest.mark.parametrize("width", [3.3, 7.0])
@pytest.mark.parametrize("kind", NAMED)
def test_names_of_any_length_stand_on_the_canvas_and_apart_and_axes_are_labeled(kind: str, width: float) -> None:
    for length in LENGTHS:
        drawing = NAMED[kind](names(length))
        assert drawing is not None
        figure = drawing.to_matplotlib(width)
        assert_apart(figure, (kind, length))
        assert_labeled(figure, (kind, length))


@pytest.mark.parametrize("width", [3.3, 7.0])
@pytest.mark.parametrize("kind", [*RUN, "together"])
def test_figures_of_runs_stand_on_the_canvas_and_apart_and_axes_are_labeled(kind: str, width: float, run: Run) -> None:
    if kind == "together":
        drawing = together(dict.fromkeys(names(60), run), dict(zip(names(60), SERIES, strict=False)))
    else:
        drawing = RUN[kind](run, None)
    assert drawing is not None
    figure = drawing.to_matplotlib(width)
    assert_apart(figure, kind)
    assert_labeled(figure, kind)


def test_every_kind_of_figure_is_held_to_the_laws() -> None:
    kinds = {name for page in (compare_page, sweep_page, capacity_page) for name in page.FIGURES}
    assert kinds <= {*NAMED, *RUN}


def test_the_whole_of_a_name_is_in_the_data_of_a_figure() -> None:
    labels = names(60)
    for kind in ("changes", "combinations", "bars"):
        drawing = NAMED[kind](labels)
        assert drawing is not None
        rows = labels[1:] if kind == "changes" else labels  # the first is the baseline
        assert set(drawing.data.row) == set(rows), kind


@pytest.mark.parametrize("kind", ["changes", "combinations", "latency_load", "latency_cdf of several"])
def test_a_panel_alone_stands_on_the_canvas_with_its_names(kind: str) -> None:
    drawing = NAMED[kind](names(60))
    assert drawing is not None
    for panel in dict.fromkeys(drawing.data.panel):
        for width in (3.3, 7.0):
            figure = one_panel(drawing, panel).to_matplotlib(width)
            assert_apart(figure, (kind, panel))
            assert_labeled(figure, (kind, panel))
            assert {words for _, words in drawing.legend} == {words for _, words in one_panel(drawing, panel).legend}


@pytest.mark.slow
def test_figures_of_the_lecture_stand_on_the_canvas_and_apart_and_axes_are_labeled() -> None:
    for name, drawing in servesim.lecture("llama-3.2-1b", "h100").items():
        for width in (3.3, 7.0):
            figure = drawing.to_matplotlib(width)
            assert_apart(figure, (name, width))
            assert_labeled(figure, (name, width))
