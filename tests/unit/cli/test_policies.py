"""`servesim policies` says what each policy is; packages add theirs by entry point."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from servesim.cli.app import app
from servesim.contracts import REGISTRIES, Registry, Router, Scheduler

runner = CliRunner()


def shown(*args: str) -> str:
    result = runner.invoke(app, ["policies", *args])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_policy_is_listed_with_its_idea() -> None:
    text = shown()
    for registry in REGISTRIES:
        section = f"\n{text}".partition(f"\n{registry.kind}\n")[2].split("\n\n")[0]
        for name in registry.names():
            (line,) = (line for line in section.splitlines() if line.startswith(f"  {name} "))
            assert len(line.split(name, 1)[1].strip()) > 20, f"{name} does not say what it is"
            assert line.endswith((".", ".)")), f"{name} breaks off: {line}"


@pytest.mark.medium
@pytest.mark.parametrize("name", [name for registry in REGISTRIES for name in registry.names()])
def test_each_policy_shows_idea_parameters_and_needs(name: str) -> None:
    text = shown(name)
    assert "parameters:" in text
    assert len(text.splitlines()) >= 3


def test_parameters_come_with_defaults_and_what_they_mean() -> None:
    text = shown("sarathi")
    assert "chunk_size = 512\n      Token budget per iteration, which prefills fill up" in text
    assert "\npaper: Agrawal" in text
    assert "\npaper: Kwon" in shown("vllm")
    assert "needs: predicted_output_len" in shown("srpt")
    assert "needs: output_len" in shown("srpt-oracle")


@pytest.mark.feature("scaling")
def test_autoscalers_are_listed_and_described_and_checked() -> None:
    assert "\nscaler\n  dynamo-planner " in shown()
    assert "target = 3.0\n      Target value of the metric" in shown("hpa")
    checked = runner.invoke(app, ["policies", "check", "hpa", "--worlds", "2"])
    assert checked.exit_code == 0
    assert "no failure" in checked.output


@pytest.mark.feature("*")  # imports all of tests.support
def test_a_package_adds_policies_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("theirs", "tests.unit.cli.test_policies:Theirs", "servesim.router")
    real = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda **kw: [entry] if kw == {"group": "servesim.router"} else real(**kw)
    )
    fresh: Registry[Router] = Registry("router", Router, "servesim.policies.routing")
    monkeypatch.setattr(fresh, "_package", "tests.support")  # built-ins register elsewhere
    assert "theirs" in fresh.names()
    assert fresh.resolve("theirs")[0] is Theirs


class Theirs(Router):
    """A router of another package."""

    def route(self, request, views):  # type: ignore[no-untyped-def]
        return 0


def test_unknown_policies_are_refused_with_a_suggestion() -> None:
    from servesim.errors import UserError

    result = runner.invoke(app, ["policies", "saratti"])
    assert isinstance(result.exception, UserError)
    assert 'did you mean "sarathi"' in str(result.exception)
    assert Scheduler.paper == ""


def test_the_paper_of_a_policy_is_not_that_of_one_derived_from_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        'from servesim.policies.scheduling.sarathi import Sarathi\nclass Mine(Sarathi):\n    """Another idea."""\n'
    )
    assert "\npaper:" not in shown(f"{file}:Mine")
    assert "\npaper:" not in shown("priority")
