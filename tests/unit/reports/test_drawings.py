"""Figures one by one, from Python: of runs, comparisons, sweeps and capacity questions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim import UserError
from servesim.reports.drawings import RUN
from servesim.reports.figures.described import draw
from servesim.reports.figures.kinds import Curve, Lines
from servesim.reports.figures.overlay import PANELS, overlay
from servesim.reports.ink import INK
from servesim.run.result import Result

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore:figure ")]

WORKLOAD: dict[str, Any] = {
    "trace": "synth:rate=60,prompt=400,output=lognormal(p50=30,p95=90)",
    "requests": 60,
    "model": "llama-3.1-8b",
    "gpu": "h200",
}


@pytest.fixture(scope="module")
def result() -> Result:
    """A run that has every figure: drafts, replicas that fail, views with an age, classes and tenants that wait."""
    n = 60
    trace = pd.DataFrame(
        {
            "arrival_ns": [i * 1_000_000 for i in range(n)],
            "prompt_len": [400] * n,
            "output_len": [20 + i % 40 for i in range(n)],
            "class": ["gold" if i % 3 else "batch" for i in range(n)],
            "tenant": [f"t{i % 2}" for i in range(n)],
        }
    )
    return servesim.simulate(
        **{**WORKLOAD, "trace": trace},
        speculation="eagle3",
        replicas=2,
        router="least-requests",
        slo="ttft:50,tpot:10",
        cluster={"failures": ["crash:replica=0,at=0.1,restart=0.2"], "report_every_s": 0.05},
    )


def sweep(**more: Any) -> pd.DataFrame:
    return servesim.sweep(**WORKLOAD, scheduler="vllm,vllm:max_num_seqs=4", rate=[20, 40, 80], jobs=1, **more)


@pytest.mark.parametrize("name", RUN)
def test_every_figure_of_a_run_is_svg_and_a_matplotlib_figure(name: str, result: Result, tmp_path: Path) -> None:
    assert servesim.figures(result) == list(RUN)
    drawing = result.figure(name)
    assert drawing.name == name
    root = ElementTree.fromstring(drawing.to_svg())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert drawing.title in drawing.to_svg()
    stand_ins = dict(INK)
    figure = drawing.to_matplotlib()
    assert stand_ins == INK, "the page's own colours are untouched"
    assert figure.axes
    assert figure.get_facecolor()[:3] == (1.0, 1.0, 1.0)
    drawing.save(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    drawing.save(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text() == drawing.to_svg()


def test_a_pdf_embeds_its_fonts_as_type_42(result: Result, tmp_path: Path) -> None:
    result.figure("timeline").save(tmp_path / "figure.pdf")
    written = (tmp_path / "figure.pdf").read_bytes()
    assert b"/Type3" not in written
    assert b"/CIDFontType2" in written


def test_a_figure_is_that_of_the_page(result: Result) -> None:
    html = servesim.report(result)
    for name in servesim.figures(result):
        assert str(result.figure(name).svg) in html


def test_a_sweep_has_its_own_figures_and_those_of_its_runs(tmp_path: Path) -> None:
    frame = sweep(out=tmp_path / "grid")
    names = servesim.figures(frame)
    assert names[:4] == ["latency_load", "combinations", "latency_cdf", "pareto"]
    assert set(RUN) <= set(names)
    assert servesim.figures(tmp_path / "grid") == names
    html = servesim.report(tmp_path / "grid")
    for name in ("latency_load", "latency_cdf", "pareto", "timeline", "operators"):
        drawing = servesim.figure(frame, name)
        assert drawing == servesim.figure(tmp_path / "grid", name)
        assert str(drawing.svg) in html
    best = Result.load(tmp_path / "grid" / "cells" / frame["address"][0])
    label = frame["label"][0]
    assert servesim.figure(frame, "timeline", variant=label) == best.figure("timeline")
    assert servesim.figure(frame, "latency_cdf", variant=label) == best.figure("latency_cdf")


def test_comparisons_and_capacity_questions_have_theirs(tmp_path: Path) -> None:
    compared = servesim.compare(
        **WORKLOAD, scheduler=["vllm", "vllm:max_num_seqs=4"], replicates=2, jobs=1, out=tmp_path / "a"
    )
    assert servesim.figures(compared)[0] == "changes"
    for name in ("changes", "latency_cdf", "gantt"):
        servesim.figure(compared, name).to_matplotlib()
    capable = servesim.capacity(**WORKLOAD, slo="tpot:20", replicates=2, tolerance=0.5, jobs=1, out=tmp_path / "b")
    assert servesim.figures(capable)[:2] == ["attainment", "pareto"]
    assert "requests/s" in servesim.figure(capable, "attainment").to_svg()


def test_what_cannot_be_drawn_is_said_in_one_line(result: Result) -> None:
    with pytest.raises(UserError, match=r"unknown figure 'cdf' .*latency_cdf"):
        result.figure("cdf")
    plain = servesim.simulate(**WORKLOAD)
    with pytest.raises(UserError, match="figure drafts: nothing to draw"):
        plain.figure("drafts")
    frame = sweep()
    assert servesim.figure(frame, "pareto").title == "Price, latency, throughput"
    with pytest.raises(UserError, match="the runs were not kept: run the sweep with --out"):
        servesim.figure(frame, "timeline")
    with pytest.raises(UserError, match="no variant 'static': choose from vllm / rate=20; "):
        servesim.figure(frame, "timeline", variant="static")
    with pytest.raises(UserError, match="figures can be drawn from results"):
        servesim.figures(pd.DataFrame())


def test_a_matplotlib_that_the_environment_breaks_is_one_line() -> None:
    code = "from servesim.reports.svg import half; half('a', 'b', 'c', print)"
    env = {**os.environ, "MPLBACKEND": "nope"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(
        "servesim.errors.UserError: no figure can be drawn: matplotlib: Key backend: 'nope' is not a valid value"
    )


def test_each_panel_of_latencies_has_its_title_and_a_line_for_each_variant() -> None:
    times = {key: np.array([1.0, 2.0, 3.0]) for key, _ in PANELS}
    drawing = overlay({"a": times, "b": times}, {"a": "blue", "b": "amber"}, {}, "")
    assert drawing is not None
    text = drawing.to_svg()
    for _, title in PANELS:
        assert title in text.replace("<desc", "").split("</desc>")[-1]


def test_a_curve_of_a_described_figure_is_drawn_in_its_color_and_without_it_is_not() -> None:
    def svg(*curves: Curve) -> str:
        return str(draw("x", Lines("x", "t", "alt", "a", "b", curves)).svg)

    one, two = Curve("p", [1, 2], [3, None]), Curve("q", [1, 2], [4, 5])
    assert svg(one, two).count("<path") > svg(one).count("<path") > 0
