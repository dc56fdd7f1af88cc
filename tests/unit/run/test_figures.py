"""A figure that is declared is everywhere: in the summary, its schema, the terminal, the page, docs and metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.cli.figures import every
from servesim.cli.schema import schema_of
from servesim.cli.summary import print_summary
from servesim.contracts.figures import Figure, Group, Tile, literal
from servesim.errors import UserError
from servesim.experiments.metrics import METRICS
from servesim.experiments.run_metrics import Run, measure
from servesim.metrics.figures import rows_of, said, text_of, with_unit
from servesim.run.shown import all_rows, groups_of
from servesim.schemas import a_list
from tests.support import energy, figure_page
from tests.support.figure_runs import ADDED, SHARED, run_with

STATED = {"scenario", "provenance", "warnings", "notes", "custom_metrics"}
"""What is no figure."""
ELSEWHERE = {
    "duration": "in the rows of requests",
    "latency": "a table of its own",
    "uncertainty": "in the row of kernel costs",
    "replicas": "a table of the page",
    "classes": "a table of its own",
    "tenants": "a table of its own",
    "bursts": "notes",
}
"""Groups without rows, and where the terminal or the page has them."""
PLAIN: dict[str, Any] = {"slo": "ttft:500,tpot:50", "speculation": "eagle3", "replicas": 2}


@pytest.fixture(scope="module", params=["plain", "nothing served", *ADDED])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> servesim.Result:
    if request.param == "plain":
        return servesim.simulate(SHARED, **PLAIN)
    if request.param == "nothing served":
        return servesim.simulate({**SHARED, "trace": "synth:rate=40,prompt=200000,output=20"}, requests=3)
    return run_with(request.param, tmp_path_factory.mktemp("run"))


def sections(summary: dict[str, Any]) -> Iterator[tuple[Group, dict[str, Any]]]:
    """Yield each object of figures in a summary, with the group that declares it."""
    for group in groups_of():
        found = group.within(summary)
        each = found if isinstance(found, list) else list(found.values()) if group.many and found else [found]
        for one in each:
            if one is not None:
                yield group, one


def test_a_summary_has_the_figures_that_are_declared_and_no_others(result: servesim.Result) -> None:
    at_top = {figure.name for group in groups_of() if not group.section for figure in group.figures}
    known = {group.section for group in groups_of() if group.section}
    assert set(result.summary) <= known | at_top | STATED
    for group, found in sections(result.summary):
        names = {figure.name for figure in group.figures}
        must = {figure.name for figure in group.figures if not figure.optional}
        assert must <= set(found), group.section
        assert not group.section or set(found) <= names, group.section


def test_every_figure_of_a_run_is_on_its_page_with_its_definition(result: servesim.Result) -> None:
    from servesim.reports.report import report

    page = re.sub(r"(?s)<(script|style).*?</\1>", "", report(result))
    page = unescape(re.sub(r"<[^>]+>", "\n", page))
    lines = {line.strip() for line in page.splitlines()}
    for group, found in sections(result.summary):
        for figure in group.figures:
            if figure.name in found:
                path = f"{group.section}.{figure.name}" if group.section else figure.name
                assert path in lines
                assert figure.doc.replace("`", "") in lines
    assert not re.search(r"{[\w.]+}", "\n".join(lines))


def test_rows_have_no_figure_left_open(result: servesim.Result, capsys: pytest.CaptureFixture[str]) -> None:
    rows = all_rows(result.summary)
    assert rows
    assert not [text for _, text in rows if re.search(r"{[\w.]+}", text)]
    print_summary(result, None)
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert all(label in printed and re.sub(r"\s+", " ", text) in printed for label, text in rows)


@pytest.mark.feature("*")
def test_every_group_has_rows_or_a_place_of_its_own() -> None:
    without = {group.words for group in groups_of() if group.rows == ()}
    assert without == set(ELSEWHERE)


def test_every_figure_is_in_the_schema_with_its_definition() -> None:
    schema = schema_of("run")["properties"]
    for group in groups_of():
        found = schema[group.section] if group.section else {"properties": schema}
        found = found.get("anyOf", [found])[0]
        found = found.get("items", found) if "items" in found else found
        extra = found.get("additionalProperties")
        found = extra if isinstance(extra, dict) and "properties" in extra else found
        for figure in group.figures:
            assert found["properties"][figure.name]["description"].startswith(figure.doc)


@pytest.mark.feature("*")
def test_the_docs_have_every_figure_as_it_is_declared() -> None:
    page = figure_page.PAGE.read_text()
    assert page == figure_page.page(), "run python -m tests.support.figure_page"
    declared = {name for group in groups_of() for figure in group.figures for name in figure.metrics}
    assert {name for name in METRICS if name not in declared and f"`{name}`" in page} == {"preemptions_per_request"}


def test_every_figure_with_a_better_side_is_a_metric() -> None:
    declared = [name for group in groups_of() for figure in group.figures for name in figure.metrics]
    assert len(declared) == len(set(declared))
    latencies = {f"{name}_{of}" for name in ("ttft", "tpot", "e2el", "ntpot", "queue_time")
                 for of in ("mean", "p50", "p90", "p95", "p99")}  # fmt: skip
    others = {"request_throughput", "output_throughput", "total_token_throughput", "request_goodput", "slo_attainment",
              "hit_rate", "acceptance_rate", "acceptance_length", "usd_per_million_tokens",
              "usd_per_million_output_tokens", "stalled_s"}  # fmt: skip
    assert set(declared) - {"stalled_s"} == (latencies | others) - {"stalled_s"}
    assert set(declared) <= set(METRICS)
    listed = [name for one in every(groups_of()) for name in one["metrics"]]
    assert sorted(listed) == sorted(declared)


def test_metrics_of_a_whole_run_are_the_figures_of_its_summary(tmp_path: Path) -> None:
    servesim.simulate(SHARED, **PLAIN, out=tmp_path / "r")
    run = Run.load(tmp_path / "r")
    found = measure(run, list(METRICS.values()), 0, 0)
    whole = {name: metric.whole(run.summary) for name, metric in METRICS.items()}
    known = {name: value for name, value in whole.items() if value is not None}
    assert {"acceptance_length", "slo_attainment", "ttft_p99", "usd_per_million_tokens"} <= set(known)
    assert {name: found[name] for name in known} == pytest.approx(known)
    assert {name for name, value in found.items() if value != value} == set(whole) - set(known)


def test_a_metric_that_has_no_value_of_a_part_of_a_run_has_none_there(tmp_path: Path) -> None:
    servesim.simulate(SHARED, **PLAIN, out=tmp_path / "r")
    run, metrics = Run.load(tmp_path / "r"), [METRICS["acceptance_length"], METRICS["ttft_mean"]]
    found = measure(run, metrics, 0, 0, part=(0, 30))
    assert found["acceptance_length"] != found["acceptance_length"]
    assert found["ttft_mean"] > 0


def test_figures_of_a_feature_of_ones_own_are_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from servesim.cli.figures import figures

    own = f"{energy.__file__}:Energy"
    result = servesim.simulate(SHARED, features=[own])
    joules = result.summary["energy"]["joules_per_request"]
    row = dict(all_rows(result.summary))["energy"]
    assert row.endswith(f"joules per request {joules:.2f} J")
    from servesim.reports.report import report

    assert "energy.joules_per_request" in (page := report(result))
    assert f"{joules:.2f} J" in page
    assert "joules_per_request" in schema_of("run", [own])["properties"]["energy"]["required"]
    figures(["joules"], [own])
    assert "energy.joules_per_request (J)  [metric joules_per_request; lower is better]" in capsys.readouterr().out
    figures(None, [own], False, True)
    assert "| `joules_per_request` | J | lower | that over completed requests |" in capsys.readouterr().out
    rows = servesim.compare(
        SHARED, features=[own], gpu=["h100", "h200"], replicates=2, metrics="joules_per_request", jobs=1
    )
    assert list(rows[rows["metric"] == "joules_per_request"]["unit"]) == ["J", "J"]
    assert rows.attrs["document"]["metrics"][0]["better"] == "lower"


def test_metrics_of_features_are_known_whichever_variant_has_them(tmp_path: Path) -> None:
    own = f"{energy.__file__}:Energy"
    rows = servesim.compare(SHARED, {**SHARED, "features": [own]}, replicates=1, metrics="joules_per_request", jobs=1)
    assert set(rows["metric"]) >= {"joules_per_request"}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Figure("one", "", int, better="Lower"), "better is 'Lower' but must be one of lower, higher"),
        (lambda: Figure("one", "", int, scale="log"), "scale is 'log' but must be one of ratio, difference"),
        (
            lambda: Group("a", "a", (Figure("x", "", int),), rows=("a", "{x} J")),
            "figures of 'a': rows must be pairs of",
        ),
        (lambda: Group("a", "", (Figure("x", "", int),)), "figures of 'a': the group must have 'words'"),
        (
            lambda: Group("a", "a", (Figure("x", "", int, better="lower"),), many=a_list),
            "figures of 'a': a group with several entries cannot have metrics",
        ),
    ],
)
def test_a_declaration_that_makes_no_sense_is_told(wrong: Callable[[], Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        wrong()


def test_a_section_that_is_null_has_the_row_it_asks_for_or_none() -> None:
    figures = (Figure("x", "", int),)
    null = {"fuel": None}
    assert rows_of((Group("fuel", "fuel", figures, rows=(("fuel", "{x} l"),), null=True),), null) == []
    assert rows_of((Group("fuel", "fuel", figures, null=True, if_null="off"),), null) == [("fuel", "off")]
    assert rows_of((Group("fuel", "fuel", figures, null=True, if_null="off"),), {}) == []


def test_names_of_the_users_are_said_whatever_braces_they_have() -> None:
    summary = {"fuel": {"litres": 1.0}}
    assert said(lambda of: f"{literal('{litres} {{x}')}: {{litres}}", GROUP, summary) == "{litres} {{x}: 1.00"


GROUP = Group(
    "fuel",
    "fuel",
    (
        Figure("litres", "fuel burnt", lambda m: m["litres"], "l"),
        Figure("share", "of the tank", lambda m: m["share"], "share"),
        Figure("stops", "stops", lambda m: m.get("stops"), optional=True),
    ),
    rows=(("fuel", "{litres} l, {share} of the tank; {engine.steps} steps, {nothing} {engine.nothing}"),),
    tiles=(Tile("Fuel", "{fuel.litres}", "{duration_s}"),),
)


def test_words_name_figures_of_their_group_of_others_and_at_the_top() -> None:
    summary = {"fuel": GROUP.of({"litres": 12.345, "share": 0.5}), "engine": {"steps": 1234}, "duration_s": 2.5}
    assert summary["fuel"] == {"litres": 12.345, "share": 0.5}
    groups = (*groups_of(), GROUP)
    text = said(GROUP.rows[0][1], GROUP, summary, groups)  # type: ignore[index]
    assert text == "12.35 l, 50.0 % of the tank; 1,234 steps, {nothing} {engine.nothing}"
    assert said(GROUP.tiles[0].value, GROUP, summary, groups) == "12.35"
    assert said(GROUP.tiles[0].note, GROUP, summary, groups) == "2.50"
    assert said(lambda of: None, GROUP, summary, groups) is None


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("", None, "-"),
        ("ms", 12.0, "12.00 ms"),
        ("ms", None, "-"),
        ("share", 0.25, "25.0 %"),
        ("$", 1.5, "$1.50"),
        ("", True, "yes"),
        ("", [], "-"),
        ("share", {"a": 0.5, "b": None}, "a 50.0 %, b -"),
    ],
)
def test_values_in_words(unit: str, value: Any, text: str) -> None:
    figure = Figure("one", "a figure", lambda m: m, unit)
    assert with_unit(figure, value) == text
    assert text_of(None, None) == "-"
