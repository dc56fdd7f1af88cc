"""Calls and instructions of the quick cases may not grow unnoticed, whatever else the machine does."""

from __future__ import annotations

import cProfile
import json
import shutil
import sys
from pathlib import Path

import pytest
import typer

from benchmarks import calls, valgrind
from benchmarks.size import LINES, SURFACE, commands, lines_by_room
from benchmarks.stored import MOST, Kind, judge, read, store, stored

MINE = Kind("calls", "Python 3.99", "benchmarks.calls")
WHOLE = read()


@pytest.mark.parametrize(
    ("count", "said", "fails"),
    [
        (10_000, "10,000 calls, +0.00 % of 10,000", False),
        (10_300, "10,300 calls, +3.00 % of 10,000", False),
        (10_301, "10,301 calls, +3.01 % of 10,000: TOO MANY (at most +3 %)", True),
        (9_700, "9,700 calls, -3.00 % of 10,000", False),
        (9_600, "9,600 calls, -4.00 % of 10,000; the figure may be lowered: python -m benchmarks.calls --store", False),
    ],
)
def test_three_percent_more_than_stored_is_too_many_and_three_less_is_told(count: int, said: str, fails: bool) -> None:
    assert judge(MINE, count, 10_000) == (said, fails)


def test_a_version_of_python_without_figures_decides_nothing_and_says_how_to_store_them(tmp_path: Path) -> None:
    assert stored(MINE, tmp_path / "none.json") == {}
    assert judge(MINE, 7, None) == (
        "7 calls; none are stored for Python 3.99: python -m benchmarks.calls --store does it",
        False,
    )


def test_a_figure_is_raised_only_with_a_reason_which_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    store(MINE, {"a": 100, "b": 50}, path=path)
    before = path.read_bytes()
    for why in ("", "  "):
        with pytest.raises(ValueError, match=r"calls would be raised \(a 100 -> 101\): --why TEXT"):
            store(MINE, {"a": 101, "b": 40}, why, path)
    assert path.read_bytes() == before, "not even what fell"
    store(MINE, {"a": 101, "b": 40}, "ages of views", path)
    assert stored(MINE, path) == {"a": 101, "b": 40}
    store(MINE, {"a": 90}, path=path)
    assert stored(MINE, path) == {"a": 90, "b": 40}
    raised = {"kind": "calls", "by": "Python 3.99", "case": "a", "from": 100, "to": 101, "why": "ages of views"}
    assert read(path)["history"] == [raised]


def test_figures_of_one_interpreter_are_left_alone_by_those_of_another(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    store(MINE, {"a": 1}, path=path)
    store(Kind("calls", "Python 3.98", ""), {"a": 5}, path=path)
    store(Kind("instructions", "Python 3.99", ""), {"a": 9}, path=path)
    assert read(path) == {
        "calls": {"Python 3.99": {"a": 1}, "Python 3.98": {"a": 5}},
        "instructions": {"Python 3.99": {"a": 9}},
        "history": [],
    }


def test_what_is_stored_is_of_every_quick_case_and_every_rise_has_its_reason() -> None:
    assert WHOLE["calls"], "of one version of Python at least"
    assert all(set(figures) == set(calls.QUICK) for figures in WHOLE["calls"].values())
    assert all(set(figures) == {valgrind.CASE} for figures in WHOLE["instructions"].values())
    for rise in WHOLE["history"]:
        assert rise["from"] < rise["to"], rise
        assert rise["why"].strip(), rise
    assert valgrind.MORE >= 1_000
    assert MOST == 3


@pytest.mark.medium
def test_calls_are_the_same_to_the_digit_in_two_processes() -> None:
    counts = {calls.in_own_process("quick-mooncake", requests=30) for _ in range(2)}
    assert len(counts) == 1
    assert counts.pop() > 10_000


def test_builtins_and_python_functions_are_counted_as_setprofile_counts_them() -> None:
    def called() -> list[int]:
        numbers = [len("abc") for _ in range(3)]
        numbers.append(sum(n for n in numbers))
        return numbers

    events: list[str] = []
    sys.setprofile(lambda _, event, __: events.append(event))
    try:
        called()
    finally:
        sys.setprofile(None)
    profile = cProfile.Profile()
    profile.enable()
    called()
    profile.disable()
    assert calls.total(profile) == sum(event in ("call", "c_call") for event in events)


def test_another_build_that_counts_nothing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="/no/such/python: No such file or directory"):
        calls.in_own_process("quick-conv", python="/no/such/python")
    with pytest.raises(ValueError, match="KeyError: 'no case'"):
        calls.in_own_process("no case")


def test_a_build_one_call_a_step_dearer_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = dict.fromkeys(calls.QUICK, 1_000_000)
    monkeypatch.setattr(calls, "stored", lambda _: figures)
    monkeypatch.setattr("servesim.engine.compiled", lambda: False)
    for more, code in ((0, 0), (31_000, 1)):
        monkeypatch.setattr(calls, "in_own_process", lambda name, m=more: 1_000_000 + m * (name == "quick-eagle"))
        assert calls.main([]) == code
        assert capsys.readouterr().out.count("TOO MANY") == code


def test_a_compiled_build_is_sent_to_valgrind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("servesim.engine.compiled", lambda: True)
    assert calls.main([]) == 2
    assert "benchmarks.valgrind" in capsys.readouterr().out


def test_without_valgrind_nothing_is_decided(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert valgrind.main([]) == 0
    assert capsys.readouterr().out == "valgrind: not installed: no instructions are counted\n"


def test_instructions_are_the_difference_of_two_lengths(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "valgrind")
    monkeypatch.setattr(valgrind, "stored", lambda _: {valgrind.CASE: 1000 * valgrind.MORE})
    for each, code in ((1_030, 0), (1_031, 1)):
        monkeypatch.setattr(valgrind, "instructions", lambda requests, e=each: 10**9 + e * requests)
        assert valgrind.main([]) == code
        assert f"+{each / 10 - 100:.2f} %" in capsys.readouterr().out


def test_a_process_of_which_valgrind_counts_nothing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "valgrind")
    monkeypatch.setattr(valgrind, "command", lambda _: [sys.executable, "-c", "raise SystemExit('cannot map')"])
    assert valgrind.main([]) == 2
    assert capsys.readouterr().err == "valgrind: cannot map\n"


def test_nothing_stored_names_a_place() -> None:
    assert "/" not in json.dumps(WHOLE["calls"]) + json.dumps(WHOLE["instructions"])


def test_lines_are_counted_by_room_and_the_laboratory_apart() -> None:
    files = {"servesim/run/a.py": "1\n2\n", "servesim/top.py": "1\n", "policies/kv/b.py": "1\n"}
    files |= {"lab/c.py": "1\n2\n3\n", "tests/unit/d.py": "1\n" * 9, "benchmarks/e.py": "1\n"}
    assert lines_by_room(files) == {"product": 4, "servesim/run": 2, "servesim": 1, "policies": 1, "lab": 3}


def test_a_room_may_grow_by_one_percent_and_settings_by_none(tmp_path: Path) -> None:
    path = tmp_path / "size.json"
    store(LINES, {"product": 1000}, path=path)
    assert [judge(LINES, count, stored(LINES, path)["product"])[1] for count in (1010, 1011)] == [False, True]
    assert [judge(SURFACE, count, 7)[1] for count in (7, 8)] == [False, True]
    with pytest.raises(ValueError, match="product 1,000 -> 1,011"):
        store(LINES, {"product": 1011}, path=path)


def test_commands_of_groups_are_counted() -> None:
    app, inner = typer.Typer(), typer.Typer()
    app.command("one")(lambda: None)
    inner.command("two")(lambda: None)
    inner.command("three")(lambda: None)
    app.add_typer(inner, name="group")
    assert commands(app) == 3
