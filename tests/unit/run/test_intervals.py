"""Error bars of a run: near what was measured a number, else words."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import servesim
from servesim.cli.app import app
from servesim.cost.host import HostTerms
from servesim.features.bars.figures import INTERVALS
from servesim.intervals.fitted import Fitted, shipped
from servesim.run.error_bars import case_of, intervals

pytestmark = pytest.mark.feature("bars")

SERVED = {"model": "gpt-oss-120b", "gpu": "h200", "tp": 2, "requests": 20, "engine": {"version": "0.18.0"}}
TRACE = "synth:arrivals=poisson,rate=4,prompt=1000,output=20"


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return servesim.simulate(trace=TRACE, **SERVED).summary


def test_a_run_like_measured_servers_has_bars_by_the_fold_that_is_named(summary: dict[str, Any]) -> None:
    found = summary["intervals"]
    assert found["level"] == 0.8
    assert found["kind"] in ("server", "deployment")
    for key in ("ttft", "tpot", "e2el"):
        assert found[key]["mean"] == summary["latency_ms"][key]["mean"]
        assert 0 < found[key]["low"] < found[key]["high"]
        assert found[key]["coverage"]["low"] < found[key]["coverage"]["value"] < found[key]["coverage"]["high"]


def test_an_end_is_the_mean_times_the_factor_of_its_case(summary: dict[str, Any]) -> None:
    case, fitted = case_of(summary), shipped()
    assert case is not None
    kind, _ = fitted.kind_of(case)
    assert kind is not None
    factor = fitted.factors(case, kind, "tpot").at(0.9)
    assert summary["intervals"]["tpot"]["high"] == pytest.approx(case.tpot_ms * factor)


def test_the_case_of_a_run_is_what_one_replica_serves(summary: dict[str, Any]) -> None:
    case = case_of(summary)
    assert case is not None
    assert (case.engine, case.version, case.model, case.gpu, case.tp, case.ep) == (
        *("vllm", "0.18.0", "gpt-oss-120b", "h200"),
        *(2, 1),
    )
    assert case.prompt == pytest.approx(1000.0)
    littles = summary["throughput"]["request_throughput"] * summary["latency_ms"]["e2el"]["mean"] / 1e3
    assert case.in_flight == pytest.approx(littles)
    two = copy.deepcopy(summary)
    two["scenario"]["replicas"] = 2
    assert case_of(two).in_flight == pytest.approx(littles / 2)  # type: ignore[union-attr]
    closed = copy.deepcopy(summary)
    closed["scenario"] |= {"rate": "inf", "clients": {"max_concurrency": 16}}
    assert case_of(closed).in_flight == 16  # type: ignore[union-attr]


OWN_HOST = {"engine": "vllm 0.18.0", "provenance": {"model": "gpt-oss-120b", "gpu": "h200", "steps": 900}}


def with_host(summary: dict[str, Any], name: str, terms: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(summary)
    changed["scenario"]["host"] = name
    changed["provenance"]["host_terms"] = terms
    return changed


def test_bars_are_those_of_an_unseen_laboratory_until_the_server_was_measured(summary: dict[str, Any]) -> None:
    assert summary["intervals"]["laboratory"] == "unseen"
    assert "your server was not measured" in summary["intervals"]["says"]
    measured = intervals(with_host(summary, "my-terms.yaml", OWN_HOST))
    assert measured["laboratory"] == "own"
    assert "your host terms were fitted to this server" in measured["says"]
    for key in ("ttft", "tpot", "e2el"):
        wide, narrow = summary["intervals"][key], measured[key]
        assert narrow["coverage"]["low"] > 0.7
        assert narrow["coverage"]["high"] > 0.8
        assert wide["low"] <= narrow["low"] < narrow["high"] <= wide["high"]
    assert summary["intervals"]["e2el"]["high"] > measured["e2el"]["high"]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("vllm-0.23-h100", {}),  # shipped: of a server that is not the user's
        ("copy.yaml", {"provenance": HostTerms.load("vllm-0.23-h100").provenance}),  # the same under another name
        ("my-terms.yaml", {"engine": ""}),  # written by hand on the base of shipped terms
        ("my-terms.yaml", {"provenance": {"model": "qwen3-14b", "gpu": "h200"}}),
        ("my-terms.yaml", {"provenance": {"model": "gpt-oss-120b", "gpu": "h100"}}),
        ("my-terms.yaml", {"provenance": {}}),
    ],
)
def test_host_terms_of_another_server_do_not_make_a_laboratory_known(
    summary: dict[str, Any], name: str, changed: dict[str, Any]
) -> None:
    assert intervals(with_host(summary, name, OWN_HOST | changed))["laboratory"] == "unseen"


def test_host_terms_fitted_by_calibrate_host_make_a_run_one_of_a_measured_server(tmp_path: Path) -> None:
    terms = HostTerms.load("vllm-0.23-h100").to_dict() | OWN_HOST
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(terms))
    found = servesim.simulate(trace=TRACE, **SERVED, host=str(tmp_path / "mine.yaml")).summary["intervals"]
    assert found["laboratory"] == "own"


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("stability", {"unstable": True}, "grows without bound"),
        ("scenario", {"pp": 2}, "pipeline"),
        ("scenario", {"speculation": {"name": "ngram"}}, "speculative"),
        ("scenario", {"kernel_tables": "roofline"}, "kernel tables"),
        ("scenario", {"host": "none"}, "host terms"),
        ("scenario", {"scheduler": {"name": "srpt"}}, "scheduler srpt"),
        ("scenario", {"dtype": "int4"}, "int4 weights"),
        ("scenario", {"gpu": "a100", "model": "opt-13b"}, "model opt-13b and GPU a100"),
        ("latency_ms", {"tpot": None}, "no request with two or more tokens completed"),
    ],
)
def test_what_nothing_was_measured_of_gets_words(
    summary: dict[str, Any], part: str, change: dict[str, Any], words: str
) -> None:
    changed = copy.deepcopy(summary)
    changed[part] |= change
    found = intervals(changed)
    assert words in found["says"]
    assert found["kind"] is found["ttft"] is found["tpot"] is None


def test_bars_are_off_by_a_flag_and_python_has_them_all_the_same(tmp_path: Path) -> None:
    settings = ["--model", "gpt-oss-120b", "--gpu", "h200", "--tp", "2", "--engine.version", "0.18.0"]
    run = ["run", "--trace", TRACE, "--requests", "20", *settings]
    with_bars = CliRunner().invoke(app, run)
    assert "error bars" in with_bars.output
    out = str(tmp_path / "r")
    without = CliRunner().invoke(app, [*run, "--no-intervals", "--no-report", "--out", out])
    assert "error bars" not in without.output
    assert "intervals" not in json.loads((tmp_path / "r" / "summary.json").read_text())
    assert servesim.Result.load(out).intervals["tpot"]["low"] > 0


@pytest.mark.parametrize("version", ["0.12", "v0.12.0", "0.12.0"])
def test_a_measured_version_is_known_however_it_is_written(version: str) -> None:
    case = case_of(servesim.simulate(trace=TRACE, **SERVED | {"engine": {"version": version}}).summary)
    assert case is not None
    assert case.version == "0.12.0"
    kind, _ = shipped().kind_of(case)
    assert kind is not None
    assert kind.name in ("server", "deployment")


def test_a_run_of_the_least_certain_servers_says_what_to_do_until_the_server_was_measured(
    summary: dict[str, Any],
) -> None:
    always = Fitted({**shipped().document, "doubts": {**shipped().document["doubts"], "above": 0.0}})
    never = Fitted({**shipped().document, "doubts": {**shipped().document["doubts"], "above": 9.0}})
    assert intervals(summary, always)["doubt"].endswith("Measure your server (servesim measure)")
    assert intervals(summary, never)["doubt"] == ""
    assert intervals(summary, always, own=True)["doubt"] == "", "it was measured"


def test_a_result_saved_without_a_doubt_is_shown_as_before(summary: dict[str, Any]) -> None:
    old = copy.deepcopy(summary)
    del old["intervals"]["doubt"]
    assert INTERVALS.rows is not None
    assert callable(INTERVALS.rows)
    assert INTERVALS.rows(old)[0] == INTERVALS.rows(summary)[0]
