"""Figures as papers need them (width, fonts, grey), and their data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from pypdf import PdfReader

import servesim
from servesim import UserError
from servesim.reports.paper import _move
from servesim.run.result import Result
from tests.unit.reports.test_drawings import WORKLOAD, sweep

pytestmark = pytest.mark.medium
ABSENT = {"replicas", "fleet", "router_view", "queue_class", "queue_tenant"}
"""Figures that one replica and a trace without labels do not have."""


@pytest.fixture(scope="module")
def result() -> Result:
    return servesim.simulate(**WORKLOAD, speculation="eagle3", slo="ttft:50,tpot:10")


def test_a_column_of_a_paper_is_filled_and_its_fonts_are_type_42(result: Result, tmp_path: Path) -> None:
    result.figure("latency_cdf").save(tmp_path / "figure.pdf", width=3.3)
    written = (tmp_path / "figure.pdf").read_bytes()
    assert b"/Type3" not in written
    assert b"/CIDFontType2" in written
    (page,) = PdfReader(tmp_path / "figure.pdf").pages
    assert float(page.mediabox.width) == pytest.approx(72 * 3.3, abs=0.1)


@pytest.mark.slow
def test_a_figure_for_a_paper_is_as_wide_as_its_column_and_nothing_of_it_is_cut_off(
    result: Result, tmp_path: Path
) -> None:
    for name in sorted(set(servesim.figures(result)) - ABSENT):
        for width in (3.3, 7.0):
            drawing = result.figure(name)
            drawing.save(tmp_path / "figure.pdf", width=width)
            written = (tmp_path / "figure.pdf").read_bytes()
            assert b"/Type3" not in written
            (page,) = PdfReader(tmp_path / "figure.pdf").pages
            assert float(page.mediabox.width) == pytest.approx(72 * width, abs=0.1)
            figure = drawing.to_matplotlib(width)
            whole = figure.bbox
            for axes in figure.axes:
                box = axes.get_tightbbox()
                assert box.x0 >= whole.x0 - 1, (name, width)
                assert box.x1 <= whole.x1 + 1, (name, width)
                assert box.y0 >= whole.y0 - 1, (name, width)
                assert box.y1 <= whole.y1 + 1, (name, width)
            drawing.save(tmp_path / "again.pdf", width=width)
            assert (tmp_path / "again.pdf").read_bytes() == written


def test_text_in_a_paper_is_legible_at_any_width(result: Result) -> None:
    for width in (3.3, 7.0):
        figure = result.figure("timeline").to_matplotlib(width)
        sizes = {text.get_fontsize() for text in figure.findobj(Text) if text.get_text()}
        assert min(sizes) > 6.9
        assert max(sizes) < 9


def test_series_that_meet_in_a_panel_are_told_apart_without_colour() -> None:
    figure = servesim.figure(sweep(), "latency_load").to_matplotlib(3.3)
    for axes in figure.axes:
        drawn = [line for line in axes.lines if line.get_linestyle() != "None" and len(line.get_xdata()) > 2]
        colours = {to_hex(line.get_color()) for line in drawn}
        grey = {(line.get_marker(), str(line.get_linestyle()), str(line._dash_pattern)) for line in drawn}  # type: ignore[attr-defined]
        points = [line for line in axes.lines if len(line.get_xdata()) == 1 and line.get_markersize() < 8]
        by_colour = {to_hex(line.get_markeredgecolor()): line.get_marker() for line in points}
        assert len(colours) == 2
        assert len({str(one) for one in grey}) == 2
        assert len(set(by_colour.values())) == 2
    (legend,) = figure.legends
    assert len({line.get_marker() for line in legend.get_lines()}) == 2


def test_bars_and_areas_that_meet_are_hatched(result: Result) -> None:
    for name in ("gantt", "drafts"):
        (axes,) = result.figure(name).to_matplotlib(3.3).axes
        by_hatch: dict[str | None, set[str]] = {}
        for one in (*axes.patches, *axes.collections):
            by_hatch.setdefault(one.get_hatch(), set()).add(to_hex(np.atleast_2d(one.get_facecolor())[0]))
        assert len(by_hatch) > 1
        assert all(len(colours) == 1 for colours in by_hatch.values()), name


def test_a_width_that_holds_no_figure_and_a_format_that_is_none_are_said(result: Result, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="width 85: must be from 2 to 20 inches"):
        result.figure("timeline").save(tmp_path / "figure.pdf", width=85)
    with pytest.raises(UserError, match=r"figure\.pdf: cannot be written: No such file"):
        result.figure("timeline").save(tmp_path / "nowhere" / "figure.pdf")
    with pytest.raises(UserError, match=r"the name must end in one of .*\.pdf"):
        result.figure("timeline").save(tmp_path / "figure.docx")


def test_the_data_of_a_figure_is_what_it_draws(result: Result) -> None:
    cdf = result.figure("latency_cdf").data
    assert list(cdf.columns) == ["panel", "series", "mark", "row", "x", "y", "x_end", "x_label"]
    first = cdf[(cdf.panel == "Time to first token") & (cdf.mark == "line")]
    ttft = result.requests.ttft_ns.dropna() / 1e6
    assert first.x_label.unique() == ["ms"]
    assert (first.x.min(), first.x.max()) == pytest.approx((ttft.min(), ttft.max()))
    assert first.y.is_monotonic_increasing
    memory = result.figure("kv_memory").data
    assert set(memory.series) == {"used", "reserved or wasted inside blocks", "wasted between blocks"}
    used = memory[memory.series == "used"]
    assert len(used) == 300
    steps, capacity = result.steps, result.summary["kv"]["capacity_tokens"]
    whole = (steps.kv_used_ns + steps.kv_internal_ns).sum() / capacity
    width = memory.x.drop_duplicates().sort_values().diff().median() * 1e9
    assert memory.y.sum() * width == pytest.approx(whole, rel=1e-6)
    gantt = result.figure("gantt").data
    one = gantt[gantt.row == gantt.row.iloc[0]]
    request = result.requests[result.requests.row == int(one.row.iloc[0])].iloc[0]
    begin = result.requests.arrival_ns.min()
    ends = [(request[key] - begin) / 1e9 for key in ("scheduled_ns", "first_token_ns", "last_token_ns")]
    assert one.x_end.tolist() == pytest.approx(ends)
    assert one.series.tolist() == ["waiting", "prompt", "output tokens"]
    operators = result.figure("operators").data
    by_bar = operators.assign(share=operators.x_end - operators.x).groupby("row").share.sum()
    assert by_bar.to_numpy() == pytest.approx(1.0)


def test_the_data_of_changes_is_relative_as_the_table_has_it(tmp_path: Path) -> None:
    compared = servesim.compare(**WORKLOAD, scheduler=["vllm", "vllm:max_num_seqs=4"], replicates=3, jobs=1)
    points = servesim.figure(compared, "changes").data.query("mark == 'point'")
    throughput = compared.query("metric == 'output_throughput' and variant == 'vllm:max_num_seqs=4'")
    drawn = points[points.panel == "output throughput"]
    assert drawn.x.tolist() == throughput.change.tolist()
    assert drawn.row.tolist() == ["vllm:max_num_seqs=4"]


def test_the_line_of_maxima_reaches_the_peak_that_the_tile_tells(result: Result) -> None:
    from servesim.reports.run import Run

    run = Run(result)
    assert run.memory_peaks is not None
    assert run.memory_peaks.max() == pytest.approx(result.summary["kv"]["peak_share"])
    assert (run.memory_peaks >= sum(run.memory.values()) - 1e-12).all()


def test_an_edge_of_a_box_is_moved_alone() -> None:
    for key, points in (
        ("x0", [[9, 2], [3, 4]]),
        ("y0", [[1, 9], [3, 4]]),
        ("x1", [[1, 2], [9, 4]]),
        ("y1", [[1, 2], [3, 9]]),
    ):
        box = Bbox([[1, 2], [3, 4]])
        _move(box, key, 9)
        assert box.get_points().tolist() == points
