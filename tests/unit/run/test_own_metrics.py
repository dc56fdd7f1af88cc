"""Metrics of the user's own, and what Python and notebooks show of a result."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.errors import UserError
from servesim.experiments.metrics import METRICS, metrics_of

RUN: dict[str, Any] = {
    "trace": "synth:arrivals=poisson,rate=20,prompt=300,output=20",
    "requests": 30,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "slo": "ttft:100",
}
MINE = """
def longest(requests, summary):
    return requests["prompt_len"].max() + requests["output_len"].max()

def late(requests, summary):
    return (requests["ttft_ns"] > 12e6).mean()

late.unit, late.better = "share", "lower"

def ttft_p99(requests, summary):
    return 0

def broken(requests, summary):
    return requests["no_such_column"].mean()

def wordy(requests, summary):
    return "fast"

def nothing(requests, summary):
    return None

def sideways(requests, summary):
    return 1

sideways.better = "left"
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_a_run_has_the_values_of_ones_own_metrics(mine: Path, tmp_path: Path) -> None:
    def first(requests: Any, summary: Any) -> float:
        return float(requests["row"].min() + summary["requests"]["arrived"])

    result = servesim.simulate(RUN, metrics=[f"{mine}:longest", first, f"{mine}:nothing"], out=tmp_path / "r")
    assert result.summary["custom_metrics"] == {"longest": 320, "first": 30, "nothing": None}
    assert servesim.Result.load(tmp_path / "r").summary == result.summary
    assert "custom_metrics" not in servesim.simulate(RUN).summary


def test_a_comparison_and_a_sweep_have_them_too(mine: Path) -> None:
    given = {**RUN, "jobs": 1, "metrics": f"ttft_mean,{mine}:late"}
    frame = servesim.compare(**given, scheduler=["vllm", "vllm:max_num_seqs=1"], replicates=2)
    rows = {row["variant"]: row for row in frame.attrs["document"]["rows"] if row["metric"] == "late"}
    assert [rows[name]["unit"] for name in rows] == ["share", "share"]
    assert 0 <= rows["vllm"]["value"] < rows["vllm:max_num_seqs=1"]["value"] <= 1
    swept = servesim.sweep(**given, scheduler=["vllm", "vllm:max_num_seqs=1"], best_by=f"{mine}:late")
    assert swept.attrs["document"]["best"]["metric"] == "late"
    assert swept.attrs["document"]["best"]["label"] == "vllm"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.py:longest", "does not exist"),
        ("mine.py:longer", 'did you mean "longest"'),
        ("mine.py:broken", "metric broken: KeyError: 'no_such_column'"),
        ("mine.py:wordy", "metric wordy: ValueError"),
        ("mine.py:longest,mine.py:longest", "longest is specified twice"),
    ],
)
def test_what_is_no_metric_is_refused_in_a_line(
    mine: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine.parent)
    with pytest.raises(UserError, match=said):
        servesim.simulate(RUN, metrics=name)


def test_names_of_servesim_are_taken_in_experiments(mine: Path) -> None:
    with pytest.raises(UserError, match="a built-in metric has this name"):
        metrics_of([f"{mine}:ttft_p99"], {})
    with pytest.raises(UserError, match="better is 'left'"):
        metrics_of([f"{mine}:sideways"], {})
    assert METRICS["ttft_p99"].unit == "ms"
    with pytest.raises(UserError, match="must be a named function"):
        servesim.simulate(RUN, metrics=lambda requests, summary: 1)


def test_a_streamed_run_has_no_requests_for_them(mine: Path) -> None:
    with pytest.raises(UserError, match="streamed run"):
        servesim.simulate(RUN, stream=True, metrics=f"{mine}:longest")


def test_a_result_says_what_it_is() -> None:
    result = servesim.simulate(RUN)
    text = repr(result)
    assert "30 requests: llama-3.2-1b on 1 x h200, vllm / prefix-hash" in text
    assert f"TTFT: p50 {result.summary['latency_ms']['ttft']['p50']:.3g} ms" in text
    assert "requests: 30 completed of 30" in text
    assert "100.0 % of arrivals within" in text


def test_a_notebook_shows_tables_with_nothing_left_raw() -> None:
    result = servesim.simulate(RUN, metrics=_named("<b>"))
    for key in ("warnings", "notes"):
        result.summary[key].append("<script>alert(1)</script>")
    shown = result._repr_html_()
    assert "<script>" not in shown
    open_tags: list[str] = []

    class Balanced(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Balanced().feed(shown)
    assert open_tags == []
    assert f"<td>{result.summary['latency_ms']['ttft']['p99']:,.4g}</td>" in shown


def _named(text: str) -> Any:
    def marked(requests: Any, summary: Any) -> float:
        """Return the length of a text."""
        return float(len(text))

    return marked
