"""Every combination of features runs or is refused in one line, and docs/combinations.md says which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import combinations
from benchmarks.combinations import BASE, OPTIONS, PAGE, Outcome, all_of, ask, outcome, page, settings_of

pytestmark = pytest.mark.feature("*")


def test_all_combinations_are_asked_once_and_have_one_router() -> None:
    found = [*all_of(len(OPTIONS))]
    assert len(found) == len({*found}) == 2**9 * 4
    assert [len(names) for names in found] == sorted(map(len, found))
    assert [len([*all_of(most)]) for most in range(3)] == [1, 13, 13 + 12 * 11 // 2 - 3]


def test_options_add_up_in_one_scenario() -> None:
    found = settings_of(("apart", "failures", "reported views"))
    assert {*found["cluster"]} == {"failures", "report_every_s"}
    assert "replicas" not in found
    assert "cluster" not in BASE, "what one combination has does not stay"


def test_a_pair_runs_in_both_modes_or_is_refused_with_a_line() -> None:
    assert outcome(("ranks", "drafts")) == Outcome()
    assert outcome(("apart", "samples")).refused.startswith("pools: several samples")


def test_what_is_not_a_line_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **settings: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(combinations.servesim, "simulate", fails)
    assert outcome(()) == Outcome(broken="KeyError: 'x'")


def test_modes_that_differ_and_requests_that_are_lost_are_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"arrived": 30, "completed": 29, "rejected": 0, "aborted": 0, "unsent": 0, "retries": 0}

    def result(mode: str, same: bool) -> Any:
        summary = {"requests": counts, "scenario": mode, "kv": "" if same else mode}
        requests = SimpleNamespace(equals=lambda other: True)
        return SimpleNamespace(summary=summary, requests=requests, scenario=SimpleNamespace(stream=False))

    monkeypatch.setattr(combinations.servesim, "simulate", lambda settings, mode, conclude: result(mode, False))
    assert outcome(()).broken == "modes differ: kv"
    monkeypatch.setattr(combinations.servesim, "simulate", lambda settings, mode, conclude: result(mode, True))
    assert outcome(()).broken.startswith("requests do not add up")


def test_the_page_says_which_pairs_run_and_what_only_more_than_two_refuse() -> None:
    found = {names: Outcome() for names in all_of(3)}
    found["scaler", "samples"] = Outcome(refused="no")
    found["apart", "offload", "drafts"] = Outcome(refused="never")
    text = page(found)
    assert "| 2 scaler | + | + | + | + | + | + | + | + | + | + | 1 | + |" in text
    assert "Refused although all of its pairs run: apart + offload + drafts." in text
    assert "1. `no`\n2. `never`" in text


@pytest.mark.slow
def test_no_combination_ends_otherwise_than_run_or_refused_in_one_line_and_the_page_says_so() -> None:
    found = ask(len(OPTIONS))
    assert {names: end.broken for names, end in found.items() if end.broken} == {}
    assert page(found) == PAGE.read_text(encoding="utf-8")
