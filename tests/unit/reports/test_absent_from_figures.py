"""Variants that a figure does not show are named in it, and by whoever asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim import UserError
from servesim.reports.variants import ABSENT, absent
from tests.unit.reports.test_drawings import WORKLOAD

pytestmark = pytest.mark.medium
SLOW = "vllm:max_num_seqs=1"
LOAD: dict[str, Any] = {**WORKLOAD, "requests": 200, "jobs": 1}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "ab"
    frame = servesim.compare(**LOAD, scheduler=["vllm", "vllm:max_num_seqs=64", SLOW], replicates=2, out=out)
    assert frame.attrs["document"]["ranking"]["unstable"] == [SLOW]
    return out


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("swept") / "grid"
    servesim.sweep(**LOAD, scheduler=["vllm", "vllm:max_num_seqs=64", SLOW], out=out)
    return out


def test_an_unstable_variant_is_named_where_its_latencies_are_not_drawn(compared: Path, swept: Path) -> None:
    for source, name in ((compared, "latency_cdf"), (swept, "latency_cdf"), (swept, "pareto")):
        with pytest.warns(UserWarning, match=f"^figure {name}: unstable: {SLOW}$"):
            drawing = servesim.figure(source, name)
        assert drawing.legend[-1] == (ABSENT, f"unstable: {SLOW}")
        assert SLOW in drawing.to_svg()
        assert SLOW not in set(drawing.data.series) | set(drawing.data.row)
        (legend,) = drawing.to_matplotlib(3.3).legends
        assert legend.get_texts()[-1].get_text() == f"unstable: {SLOW}"
        assert legend.get_lines()[-1].get_linestyle() == "None", "nothing is drawn beside the words"


def test_an_unstable_variant_whose_latencies_have_no_change_is_named(compared: Path) -> None:
    with pytest.warns(UserWarning, match=f"^figure changes: unstable: {SLOW}$"):
        drawing = servesim.figure(compared, "changes")
    assert drawing.legend[-1] == (ABSENT, f"unstable: {SLOW}")


def test_an_unstable_baseline_is_marked_where_it_is_drawn(tmp_path: Path) -> None:
    servesim.compare(**LOAD, scheduler=[SLOW, "vllm"], baseline=SLOW, replicates=2, out=tmp_path / "ab")
    drawing = servesim.figure(tmp_path / "ab", "latency_cdf")
    assert [words for _, words in drawing.legend] == [f"{SLOW} (unstable)", "vllm"]


def test_a_figure_without_any_variant_says_why(tmp_path: Path) -> None:
    servesim.sweep(**LOAD, scheduler=[SLOW, "vllm:max_num_seqs=2,max_num_batched_tokens=512"], out=tmp_path / "grid")
    with pytest.raises(UserError, match=f"figure latency_cdf: nothing to draw: unstable: {SLOW}, vllm:max_num"):
        servesim.figure(tmp_path / "grid", "latency_cdf")


def test_absent_variants_are_listed_by_reason_and_many_are_counted() -> None:
    variants = [{"label": f"v{i}", "status": "ok" if i else "failed", "stability": "unstable"} for i in range(9)]
    variants += [{"label": f"w{i}", "status": "ok", "stability": "stable"} for i in range(3)]
    document = {"schema": "servesim.sweep/1", "variants": variants}
    assert absent(document, ["w0", "w2"]) == (
        (ABSENT, "unstable: v1, v2, v3, v4, v5, v6 and 2 more"),
        (ABSENT, "failed: v0"),
        (ABSENT, "not shown: w1"),
    )
    rows = [{"label": "a", "verdict": "carries"}, {"label": "b", "verdict": "never"}]
    assert absent({"schema": "servesim.capacity/1", "rows": rows}, ["a"]) == ((ABSENT, "never within the limits: b"),)
