"""What a run says in the terminal: the answer in a sentence, and only the notes that could change the decision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.cli import tables
from servesim.cli.console import MOST, open_console, print_notes
from servesim.cli.summary import print_summary
from servesim.contracts.warn import Warn, split_notes
from servesim.experiments import sweep_words
from servesim.reports.export import export
from servesim.run.pools import of_each
from servesim.run.shown import answer
from servesim.run.simulate import simulate

PRESET: dict[str, Any] = {"trace": "preset:azure-conv-2023", "requests": 60, "model": "llama-3.2-1b", "gpu": "h200"}
HINT = "-v shows"
WIDE = "100000"
"""Columns in which no sentence is wrapped, so that lines are sentences."""


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", WIDE)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Result of a run with more warnings than are printed, with its page."""
    folder = tmp_path_factory.mktemp("several") / "r"
    settings = {**PRESET, "router": "least-requests", "sort": True, "engine": {"swap_space_gib": 9.0}}
    simulate({**settings, "slo": {"ttft": 500.0, "tpot": 50.0}, "clients": {"retries": 2}}, out=folder)
    return folder


def said(capsys: pytest.CaptureFixture[str], print_it: Any, *given: Any) -> list[str]:
    """Lines that a function prints."""
    capsys.readouterr()
    print_it(*given)
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_a_run_prints_an_answer_and_at_most_three_warnings(several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = servesim.Result.load(several)
    assert len(result.summary["warnings"]) > MOST
    lines = said(capsys, print_summary, result, None, False)
    assert lines.count(answer(result.summary)) == 1
    after = lines[lines.index(answer(result.summary)) + 1 :]
    assert after[:-1] == [f"warning: {warning}" for warning in result.summary["warnings"][:MOST]]
    assert HINT in after[-1]


def test_v_prints_every_warning_and_note_of_a_run(several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = servesim.Result.load(several)
    lines = said(capsys, print_summary, result, several, True)
    summary = result.summary
    wanted = [f"warning: {one}" for one in summary["warnings"]] + [f"note: {one}" for one in summary["notes"]]
    assert [line for line in wanted if line not in lines] == []
    bars = summary["intervals"]
    assert f"note: error bars: {bars['says']}: {bars['farthest']}" in lines
    assert [line for line in lines if "kernel measurements: " in line] != []
    assert not any(HINT in line for line in lines)
    assert lines[-1] == f"written to {several}"


def test_every_warning_and_note_of_a_run_is_on_its_page(several: Path, tmp_path: Path) -> None:
    export(several, "markdown", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text().replace("\\", "")
    summary = json.loads((several / "summary.json").read_text())
    assert [one for one in (*summary["warnings"], *summary["notes"]) if one not in page] == []


def test_a_setting_without_effect_is_a_warning_and_a_source_is_a_note(several: Path) -> None:
    summary = json.loads((several / "summary.json").read_text())
    assert any("has no effect with one replica. Add --replicas." in one for one in summary["warnings"])
    assert any(one.startswith("fitted twin of") for one in summary["notes"])
    assert not set(summary["warnings"]) & set(summary["notes"])


def test_another_model_than_the_one_asked_for_is_the_first_warning(tmp_path: Path) -> None:
    rows = ['{"servesim_trace": 1, "name": "two"}']
    rows += [f'{{"arrival_ns": {i}, "prompt_len": 9, "output_len": 2, "model": "m{i % 2}"}}' for i in range(4)]
    (tmp_path / "two.jsonl").write_text("\n".join(rows))
    settings = {"trace": str(tmp_path / "two.jsonl"), "model": "llama-3.2-1b", "gpu": "h200"}
    summary = simulate({**settings, "router": "least-requests", "seed": 3}).summary
    assert "the trace requests 2 models" in summary["warnings"][0]
    assert len(summary["warnings"]) > 1


def test_the_error_bars_of_a_run_take_two_lines(several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, print_summary, servesim.Result.load(several), None, False)
    at = next(i for i, line in enumerate(lines) if line.startswith("error bars"))
    assert lines[at].endswith("80 % interval")
    assert lines[at + 1].endswith("measured; add --propagate for p99 and price")
    assert lines[at + 2].startswith("steps")
    assert max(map(len, lines[at : at + 2])) <= 120


def test_an_unstable_run_says_so_and_what_to_do(several: Path) -> None:
    summary = json.loads((several / "summary.json").read_text())
    summary["stability"] |= {"unstable": True}
    assert answer(summary).startswith("UNSTABLE: ")
    assert "add servers" in answer(summary)
    summary["requests"] |= {"completed": 0}
    assert answer(summary) == "None of 60 requests was served."


def test_the_answer_of_a_run_says_its_limits_price_and_queue(several: Path) -> None:
    summary = json.loads((several / "summary.json").read_text())
    summary["goodput"]["slo_attainment"], summary["stability"]["decided"] = 0.9, True
    summary["price"]["usd_per_million_tokens"], summary["throughput"]["request_throughput"] = 0.25, 4.0
    assert answer(summary) == (
        "This deployment meets the SLO for 90.0 % of requests (ttft <= 500 ms, tpot <= 50 ms) at 4.00 completed "
        "requests/s and $0.25 per million tokens; the queue is stable."
    )


def test_the_answer_holds_each_limit_with_a_percentile_against_its_own_share(several: Path) -> None:
    """The joint share, which no such limit asks for, is not in it."""
    summary = json.loads((several / "summary.json").read_text())
    summary["goodput"] |= {"slo_attainment": 0.5, "attainment_by_metric": {"ttft": 0.995, "tpot": 0.6}}
    summary["scenario"]["slo_percentiles"] = {"ttft": 99.0, "tpot": 50.0}
    assert answer(summary).startswith(
        "This deployment meets the SLO: of all requests, 99.5 % within ttft <= 500 ms (99 % asked), 60.0 % within tpot "
        "<= 50 ms (50 % asked), at "
    )
    summary["goodput"]["attainment_by_metric"]["tpot"] = 0.49
    assert answer(summary).startswith(
        "This deployment misses the SLO: of all requests, 99.5 % within ttft <= 500 ms (99 % "
    )
    assert ", 49.0 % within tpot <= 50 ms (50 % asked), at " in answer(summary)
    summary["scenario"]["slo_percentiles"] = {"ttft": 99.0}
    assert (
        "meets the SLO: of all requests, 99.5 % within ttft <= 500 ms (99 % asked), 49.0 % within tpot <= 50 ms, at "
        in (answer(summary))
    )


def test_a_short_run_warns_with_the_number_of_requests_that_would_tell() -> None:
    summary = simulate({**PRESET, "requests": 20, "rate": 50.0}).summary
    assert not summary["stability"]["decided"]
    enough = summary["stability"]["enough_requests"]
    assert [one for one in summary["warnings"] if one.endswith(f"--requests {enough} would be enough")] != []


def test_warnings_keep_their_kind_when_a_pool_is_named() -> None:
    found = split_notes(of_each(["a", "b"], [[Warn("x"), "y"], ["y"]]))
    assert found == {"warnings": ["a: x"], "notes": ["y"]}
    assert [type(one) for one in found["warnings"]] == [str]


def test_what_is_left_out_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, print_notes, open_console(), ["a", "b"], ["c", "d"], ["e"], None, False)
    assert lines == ["warning: a", "warning: b", "c", "2 more notes: -v shows them"]
    lines = said(capsys, print_notes, open_console(), ["a"], [], [], Path("r"), False)
    assert lines == ["warning: a", "written to r"]


SMALL = {"model": "llama-3.2-1b", "jobs": 1, "trace": "preset:azure-conv-2023"}
ASKED: dict[str, Any] = {
    "compare": {"kv": ["paged", "prefix-hash", "contiguous"], "requests": 60, "replicates": 2, "gpu": "h200"},
    "sweep": {"gpu": ["h100", "h200"], "rate": [2.0, 4.0, 8.0], "requests": 60},
    "capacity": {"gpu": ["h100", "h200", "a100"], "slo": "ttft:500", "requests": 60, "replicates": 2},
    "worth": {"of": "fp8,fp8-kv", "gpu": "h200", "slo": "ttft:500", "requests": 60, "replicates": 2},
}


@pytest.fixture(scope="module", params=ASKED)
def document(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Command, and the document of an experiment of its kind."""
    frame = getattr(servesim, request.param)(**SMALL, **ASKED[request.param])
    return request.param, frame.attrs["document"]


def at(rate: float, stability: str, meets: bool | None = None, status: str = "ok") -> dict[str, Any]:
    """Variant of a sweep over rates."""
    return {"status": status, "stability": stability, "meets_slo": meets, "axes": {"rate": rate}}


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ([at(5, "stable", True), at(20, "undecided", True), at(40, "unstable", False)],
         "The queue is stable up to 5 requests/s and the SLO is met up to 20 requests/s."),
        ([at(5, "stable"), at(20, "stable"), at(40, "unstable")], "The queue is stable up to 20 requests/s."),
        ([at(5, "undecided")], "The runs are too short to tell which rates are sustainable."),
        ([at(5, "unstable", True)], "No combination is stable, so none is the best."),
        ([at(5, "stable", status="failed")], "All combinations failed."),
        ([at(5, "stable") | {"axes": {}}], "No combination has a value for this metric, so none is the best."),
    ],
)  # fmt: skip
def test_a_sweep_of_rates_alone_says_which_are_carried(variants: list[dict[str, Any]], said: str) -> None:
    assert sweep_words.answer({"best_by_rate": [], "best": None, "variants": variants, "metrics": []}) == said


def test_a_sweep_of_more_than_rates_names_the_combination_that_is_carried() -> None:
    ok = {"status": "ok", "meets_slo": True}
    variants = [
        ok | {"label": f"rate={rate} / tp={tp}", "axes": {"rate": rate, "tp": tp}, "stability": stability}
        for rate in (2, 8)
        for tp, stability in ((1, "unstable"), (2, "stable"))
    ]
    said = sweep_words.answer({"best_by_rate": [], "best": None, "variants": variants, "metrics": []})
    assert said == ("The queue is stable up to 8 requests/s with tp=2 and the SLO is met up to 8 requests/s with tp=2.")


def printed(capsys: pytest.CaptureFixture[str], document: tuple[str, dict[str, Any]], verbose: bool) -> list[str]:
    command, found = document
    return said(capsys, getattr(tables, f"print_{command}"), found, Path("r"), verbose)


@pytest.mark.medium
def test_an_experiment_prints_its_answer_a_table_and_at_most_five_lines(
    document: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, document, False)
    assert lines[1] == document[1]["answer"]
    assert lines.count(document[1]["answer"]) == 1
    labels = [row["label"] for row in document[1].get("variants", document[1].get("rows"))]
    last = max(i for i, line in enumerate(lines) if line.split("  ")[0] in labels or line[:4] in ("h100", "h200"))
    assert 0 < len(lines[last + 1 :]) <= 5
    assert lines[-1] == "written to r"


@pytest.mark.medium
def test_v_prints_every_warning_and_note_of_an_experiment(
    document: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join(printed(capsys, document, True))
    assert [one for one in (*document[1]["warnings"], *document[1]["notes"]) if one not in text] == []
    assert [one["says_worth"] for one in document[1].get("worth", ()) if one["says_worth"] not in text] == []
    assert HINT not in text


@pytest.mark.medium
def test_what_is_not_known_of_every_row_is_said_once(
    document: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    command, _ = document
    why = {
        "sweep": "no measured pairs have different models or GPUs",
        "capacity": "no measured pairs have different models or GPUs",
        "worth": "no two measured servers differ only in this",
        "compare": "no two measured servers differ only in this",
    }
    assert "\n".join(printed(capsys, document, True)).count(why[command]) == 1
