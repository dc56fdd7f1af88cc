"""A run that names no version of its engine says what the known ones would give."""

from __future__ import annotations

from typing import Any

import pytest

import servesim
from servesim.features.engine_versions.figures import details, eras, spread
from servesim.features.engine_versions.part import others
from servesim.versions import engine_facts, turning_points

SETTINGS: dict[str, Any] = {
    "trace": "synth:rate=4,prompt=500,output=50",
    "requests": 60,
    "model": "llama-3.1-8b",
    "gpu": "h100",
}


def mean(summary: dict[str, Any], name: str) -> float:
    value: float = summary["latency_ms"][name]["mean"]
    return value


def test_the_ratios_are_those_of_runs_that_name_the_version() -> None:
    found = servesim.simulate(SETTINGS, versions=True).summary["engine_versions"]
    assert (found["engine"], found["assumed"], found["requests"]) == ("vllm", turning_points("vllm")[-1], 60)
    assumed, old = (
        servesim.simulate(SETTINGS, engine={"version": version}).summary for version in (found["assumed"], "0.12.0")
    )
    row = next(one for one in found["since"] if one["version"] == "0.12.0")
    for name in ("ttft", "tpot", "e2el"):
        assert row[name] == pytest.approx(mean(old, name) / mean(assumed, name), rel=1e-9)
    assert row["tpot"] > 1.1, "a synchronous engine"


def test_what_the_newest_version_implies_is_not_held_against_an_older_one() -> None:
    """vLLM before 0.14 does not schedule ahead by default; the scenario resolved for the newest one does."""
    summary = servesim.simulate(SETTINGS, versions=True).summary
    assert summary["scenario"]["engine"]["async_scheduling"]
    rows = {one["version"]: one["tpot"] for one in summary["engine_versions"]["since"]}
    assert rows["0.13"] > rows["0.14"]


def test_one_warning_asks_for_the_version_and_gives_both_ends() -> None:
    summary = servesim.simulate(SETTINGS, versions=True).summary
    asks = [text for text in summary["warnings"] if text.startswith("engine.version is not set")]
    assert len(asks) == 1
    assert "vllm>=0.8,<0.14" in asks[0]


@pytest.mark.parametrize("more", [{"engine": {"version": "0.12.0"}}, {"preset": "orca"}])
def test_a_run_that_names_its_version_or_has_none_says_nothing(more: dict[str, Any]) -> None:
    assert "engine_versions" not in servesim.simulate({**SETTINGS, **more}, versions=True).summary


def test_without_the_option_no_run_is_added() -> None:
    assert "engine_versions" not in servesim.simulate(SETTINGS).summary


def test_other_versions_have_host_terms_or_facts_of_their_own() -> None:
    known = others(engine_facts("tensorrt-llm"), "tensorrt-llm")
    assert known == ["1.0.0rc3", "1.1.0rc2"], "both have host terms; the newest is the assumed one"
    assert others(engine_facts("vllm"), "orca") == []


def test_versions_that_differ_by_little_are_one_period() -> None:
    found = {
        "engine": "vllm",
        "assumed": "3",
        "since": [
            {"version": "1", "ttft": 1.0, "tpot": 1.5, "e2el": 1.4},
            {"version": "1.5", "ttft": 1.01, "tpot": 1.5, "e2el": 1.4},
            {"version": "2", "ttft": 1.0, "tpot": 1.0, "e2el": 1.0},
            {"version": "3", "ttft": 1.0, "tpot": 1.0, "e2el": 1.0},
        ],
    }
    assert [versions for versions, _ in eras(found)] == [">=1,<2", ">=2"]
    assert (spread(found, "tpot"), spread(found, "e2el")) == (1.5, 1.4)
    assert details(found).endswith(">=1,<2: TTFT +0 %, TPOT +50 %, E2E +40 %; >=2: TTFT +0 %, TPOT +0 %, E2E +0 %")
