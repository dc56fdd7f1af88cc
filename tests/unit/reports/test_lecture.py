"""The figures of a lecture say what they are for, and the command writes them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import servesim
from servesim.cli.app import app
from servesim.errors import UserError
from servesim.reports.lecture import SLIDES, batching, load, memory

MACHINE: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100"}


def test_a_request_takes_the_lowest_place_that_is_free_when_it_begins() -> None:
    begin = np.array([0.0, 0.0, 1.0, 2.0, 2.5])
    leave = np.array([3.0, 1.0, 2.0, 4.0, 5.0])
    assert batching._places(begin, leave) == [0, 1, 1, 1, 2]


def test_static_batches_hold_places_in_vain_and_continuous_ones_do_not() -> None:
    figure = batching.slots(MACHINE)
    idle = {
        kind: sum(end - begin for row, spans in figure.rows.items() if row.startswith(kind)
                  for begin, end, what in spans if what == "held, and idle")
        for kind in ("static", "continuous")
    }  # fmt: skip
    assert idle["continuous"] == 0
    assert idle["static"] > 0
    for spans in figure.rows.values():
        inside = sorted((begin, end) for begin, end, _ in spans)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(inside)), "one request at a time"
    ends = {kind: max(end for row, spans in figure.rows.items() if row.startswith(kind) for _, end, _ in spans)
            for kind in ("static", "continuous")}  # fmt: skip
    assert f"{ends['static']:.1f} s" in figure.caption
    assert ends["continuous"] < ends["static"]


def test_larger_chunks_make_longer_gaps_and_earlier_first_tokens() -> None:
    gaps, first = (curve.y for curve in batching.chunks(MACHINE).curves)
    assert gaps[-1] > 2 * gaps[0]  # type: ignore[operator]
    assert first[-1] < first[0]  # type: ignore[operator]


def test_pages_fill_memory_that_reservations_hold_empty() -> None:
    rows = memory.reservation(MACHINE).rows
    filled, empty = ({label: row[i] for label, row in rows.items()} for i in (0, 1))
    assert filled["paged"] == max(filled.values())
    assert empty["longest, reserved"] == max(empty.values())
    assert all(sum(row) <= 100 + 1e-9 for row in rows.values())  # type: ignore[arg-type]


def test_a_prefix_cache_saves_what_is_shared() -> None:
    without, cached = (curve.y for curve in memory.prefixes(MACHINE).curves)
    assert cached[0] == without[0], "nothing is shared"
    assert cached[-1] < 0.8 * without[-1]  # type: ignore[operator]


@pytest.mark.slow
def test_the_knee_lies_between_the_lowest_and_the_highest_rate() -> None:
    figure = load.knee(MACHINE)
    ((at, _),) = figure.marks
    rates, medians = figure.curves[0].x, figure.curves[0].y
    assert rates[0] < at < rates[-1]
    assert medians[-1] > 5 * medians[0]  # type: ignore[operator]


@pytest.mark.slow
def test_the_command_writes_a_page_and_an_svg_for_each_figure_the_same_each_time(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        done = CliRunner().invoke(app, ["lecture", "--model", "llama-3.2-1b", "--out", str(tmp_path / folder)])
        assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted([*(f"{slide.name}.svg" for slide in SLIDES), "canvases.html", "lecture.html"])
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    html = (tmp_path / "one" / "lecture.html").read_text()
    places = [html.index(slide.question.replace("'", "&#39;")) for slide in SLIDES]
    assert places == sorted(places)
    assert len(re.findall(r"<figure ", html)) == len(SLIDES)


@pytest.mark.slow
def test_a_page_named_as_a_file_is_a_file(tmp_path: Path) -> None:
    page = tmp_path / "slides.html"
    done = CliRunner().invoke(app, ["lecture", "--model", "llama-3.2-1b", "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert page.is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["slides.html"]


def test_a_model_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no KV block fits"):
        servesim.lecture("llama-3.1-70b", "l40s")
