"""A run that names no version of its engine says what the known ones would give."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import servesim
from servesim.cli import app as cli
from servesim.run.under_versions import Versions, means_of, under_versions
from servesim.versions import turning_points

Call = Callable[[str], tuple[int, str]]
RUN = "run --trace synth:rate=4,prompt=500,output=50 --requests 60 --model llama-3.1-8b --gpu h100"
SETTINGS: dict[str, Any] = {
    "trace": "synth:rate=4,prompt=500,output=50",
    "requests": 60,
    "model": "llama-3.1-8b",
    "gpu": "h100",
}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command; return exit code and output."""

    def run(line: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["servesim", *line.split()])
        code = cli._guarded()
        return code, capsys.readouterr().out

    return run


def test_means_are_those_of_runs_that_name_the_version() -> None:
    found = under_versions(SETTINGS, 60)
    assert found is not None
    assert (found.engine, found.assumed) == ("vllm", turning_points("vllm")[-1])
    assumed, old = (
        means_of(servesim.simulate(SETTINGS, requests=20, engine={"version": version}))
        for version in (found.assumed, "0.12.0")
    )
    assert dict(found.since)["0.12.0"] == old
    assert found.since[-1] == (found.assumed, assumed)
    assert (found.requests, old["tpot"] > 1.1 * assumed["tpot"]) == (20, True), "a synchronous engine"


def test_what_the_newest_version_implies_is_not_held_against_an_older_one() -> None:
    """vLLM before 0.14 does not schedule ahead by default; the scenario as the newest one completes it does."""
    found = under_versions(SETTINGS, 60)
    assert found is not None
    rows = dict(found.since)
    assert rows["0.13"]["tpot"] > rows["0.14"]["tpot"]


@pytest.mark.parametrize("more", [{}, {"model": "qwen3-30b-a3b", "dtype": "fp8"}, {"preset": "sglang"}], ids=repr)
def test_a_run_stands_for_all_versions_that_agree_on_what_it_asked_for(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, ran = {**SETTINGS, **more}, []

    def counted(scenario: Any, **options: Any) -> Any:
        ran.append(scenario.engine.version)
        return servesim.simulate(scenario, **options)

    monkeypatch.setattr("servesim.run.under_versions.simulate", counted)
    found = under_versions(settings, 60)
    assert found is not None
    assert len(ran) < len(found.since)
    for version, means in found.since:
        assert means == means_of(servesim.simulate(settings, requests=20, engine={"version": version}))


@pytest.mark.parametrize(
    "more",
    [
        {"engine": {"version": "0.12.0"}},
        {"preset": "orca"},
        {"pools": [{"name": "a", "engine": {"version": "0.12.0"}}, {"name": "b"}], "router": "random"},
    ],
)
def test_a_run_that_names_its_version_or_has_none_says_nothing(more: dict[str, Any]) -> None:
    assert under_versions({**SETTINGS, **more}, 60) is None


@pytest.mark.feature("handoff")
@pytest.mark.parametrize("more", [{"pd": "1x1:1x1"}, {"stream": True}])
def test_pools_without_engines_of_their_own_and_streamed_runs_say_it_too(more: dict[str, Any]) -> None:
    found = under_versions({**SETTINGS, **more}, 60)
    assert found is not None
    assert found.matters


def test_versions_of_tensorrt_llm_are_those_with_facts_or_host_terms_of_their_own() -> None:
    found = under_versions({**SETTINGS, "preset": "tensorrt-llm"}, 60)
    assert found is not None
    assert [version for version, _ in found.since] == ["1.0.0rc3", "1.1.0rc0", "1.1.0rc2", "1.4.0rc1"]


def test_versions_that_differ_by_little_are_one_period() -> None:
    def row(version: str, ttft: float, tpot: float, e2el: float) -> tuple[str, dict[str, float]]:
        return version, {"ttft": ttft, "tpot": tpot, "e2el": e2el}

    rows = (row("1", 1.0, 1.5, 1.4), row("1.5", 1.01, 1.5, 1.4), row("2", 1.0, 1.0, 1.0), row("3", 1.0, 1.0, 1.0))
    found = Versions("vllm", "3", 100, rows)
    assert [name for name, _ in found.periods] == [">=1,<2", ">=2"]
    assert (found.spread("tpot"), found.spread("e2el"), found.matters) == (1.5, 1.4, True)
    assert found.details.endswith(">=1,<2: TTFT +0 %, TPOT +50 %, E2E +40 %; >=2: TTFT +0 %, TPOT +0 %, E2E +0 %")
    assert "TPOT in a run of the first 100 requests is 1.00 ms for vllm>=2 and 1.50 ms for vllm>=1,<2;" in found.warning
    assert not Versions("vllm", "3", 100, rows[2:]).matters
    drift = tuple(row(str(i), 1.0, 1.06 - 0.015 * i, 1.0) for i in range(5))
    assert [name for name, _ in Versions("vllm", "4", 100, drift).periods] == [">=0,<2", ">=2,<4", ">=4"]
    late = (row("1", 2.0, 1.0, 1.0), row("2", 1.0, 1.0, 1.0))
    assert "Mean TTFT in a run of the first 9 requests is 1.00 ms for vllm>=2" in Versions("vllm", "2", 9, late).warning


def test_the_command_says_it_once_and_leaves_the_result_alone(call: Call) -> None:
    said = call(RUN)[1]
    assert said.count("engine.version is not set") == 1
    assert "vllm>=0.8,<0.14" in said
    assert "engine.version is not set" not in call(f"{RUN} --no-versions")[1]
    assert "engine.version is not set" not in call(f"{RUN} --engine.version 0.12.0")[1]
    assert call(f"{RUN} --json")[1] == call(f"{RUN} --json --no-versions")[1]
