"""The frame that claims are run in: verdicts, scenarios, the command, the page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import servesim
from servesim.cli.app import app
from servesim.errors import Interrupted, UserError
from servesim.plugins.trust import trusting
from servesim.reports.figures.kinds import from_dict, to_dict
from servesim_lab import claims
from servesim_lab import reproduce as cli_reproduce
from servesim_lab.claims import (
    GROUPS,
    Bars,
    Curve,
    Experiment,
    Given,
    Lines,
    Outcome,
    Row,
    Spans,
    experiments,
    find,
    worker,
)
from servesim_lab.claims.assumptions import check_folder, load
from servesim_lab.claims_page import write

LINES = Lines("curve", "A curve", "It rises.", "x", "y", [Curve("a", [1, 2], [1, None]), Curve("b", [1, 2], [2, 3])])
BARS = Bars("bars", "Bars", "Two bars.", "seconds", {"second": [1.0, None], "first": [20.0, 3.0]}, ("x", "y"))
SPANS = Spans("spans", "Spans", "One span.", "step", {"slot": [(0, 10, "A")]}, ("A",))


def test_amounts_have_three_digits_or_all_whole_ones() -> None:
    assert [claims.amount(v) for v in (0.0039, 3.364, 71.94, 687.2, 16384.0)] == [
        "0.0039", "3.36", "71.9", "687", "16,384",
    ]  # fmt: skip


def test_figures_survive_json() -> None:
    for figure in (LINES, BARS, SPANS):
        again = from_dict(json.loads(json.dumps(to_dict(figure))))
        assert json.dumps(to_dict(again)) == json.dumps(to_dict(figure))


def test_every_experiment_has_a_scenario_with_words_and_a_group() -> None:
    assert experiments()
    for one in experiments().values():
        given, text = load(one.name)
        assert given
        assert text.startswith("# "), f"{one.name}.yaml begins with what it is"
        assert one.group in GROUPS


def test_an_edited_scenario_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "pagedattention.yaml").write_text("requests: 10\n")
    (one,) = find("pagedattention")
    shipped, edited = one.given(), one.given(tmp_path)
    assert edited == {**shipped, "requests": 10}
    (tmp_path / "pagedattention.yaml").write_text("request: 10\n")
    with pytest.raises(UserError, match=r"pagedattention.yaml: unknown key 'request' .did you mean .requests"):
        one.given(tmp_path)
    (tmp_path / "pagedattention.yaml").write_text("a: [\n")
    with pytest.raises(UserError, match=r"pagedattention.yaml: line \d"):
        one.given(tmp_path)


def test_a_folder_of_scenarios_must_have_one_of_an_experiment(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no scenario"):
        check_folder(tmp_path, ["a"])
    (tmp_path / "pagedatention.yaml").touch()
    with pytest.raises(UserError, match='did you mean "pagedattention"'):
        check_folder(tmp_path, ["pagedattention"])


def _good(_: Given) -> Outcome:
    rows = [
        Row("holds", "1", "1", "reproduced"),
        Row("beside", "-", "5", "shown"),
        Row("does not", "1", "2", "differs", "because", "time"),
    ]
    return Outcome(rows, ["a note with <b>"], [LINES, BARS, SPANS])


def _documents() -> list[dict[str, Any]]:
    names = ("speculation-crossover", "pagedattention")
    return [Experiment(name, "memory", "A claim", "A source", _good).document() for name in names]


def test_the_page_has_every_claim_twice_its_figures_in_words_and_no_link_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, _documents(), {"pagedattention": "", "broken": "out of <cheese>"})
    html = (tmp_path / "report.html").read_text()
    assert html.count(">does not<") == 4
    assert html.count(">beside<") == 2, "nothing was claimed: not among the claims"
    assert "<h1>4 claims, 2 experiments</h1>" in html
    assert "2 of 4 published figures come out as published; 2 differs." in html
    assert "It rises." in html
    assert "a note with &lt;b&gt;" in html
    assert "<b>broken failed:</b> out of &lt;cheese&gt;" in html
    assert set(re.findall(r'<a href="([^"]*)"', html)) == {"#speculation-crossover", "#pagedattention"}
    assert 'id="speculation-crossover"' in html
    assert "scenarios/speculation-crossover.yaml" in html
    assert not re.search(r'(src|href)="http', html)
    assert servesim.report(tmp_path) == html


@pytest.mark.medium
def test_the_files_are_the_same_each_time_and_figures_stand_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, _documents(), {})
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert [str(f) for f in files if f.suffix == ".svg"] == [
        f"{name}-{figure}.svg"
        for name in ("pagedattention", "speculation-crossover")
        for figure in ("bars", "curve", "spans")
    ]
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    svg = (tmp_path / "a" / "speculation-crossover-bars.svg").read_text()
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "var(" not in svg
    assert svg.index(">second<") > 0


@pytest.mark.medium
def test_bars_keep_their_order(tmp_path: Path) -> None:
    write(tmp_path, _documents(), {})
    html = (tmp_path / "report.html").read_text()
    assert html.index(">second<") < html.index(">first<")


def _unheard(name: str, row: Any) -> None:
    raise AssertionError(f"{name} has no rows")


def test_rows_come_before_the_experiment_ends_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["first", "second"]
    script = f"""if True:
        import json, sys, time
        name = sys.argv[-1]
        for i in range(2):
            print({worker.ROW!r} + json.dumps(dict(what=f"{{name}} {{i}}")), flush=True)
        time.sleep(600 if name == "first" else 0)
        print({worker.ANSWER!r} + json.dumps(dict(document=None, error="", cpu_s=0.0)))
    """
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", script))
    heard: list[str] = []
    ended: list[str] = []

    def on_row(name: str, row: Any) -> None:
        heard.append(row["what"])
        if len(heard) == 2:
            raise KeyboardInterrupt  # the first would not end for ten minutes

    chosen = [Experiment(name, "memory", "", "", _good) for name in names]
    with pytest.raises(KeyboardInterrupt):
        list(worker.run_all(chosen, None, 2, lambda one: ended.append(one.name), on_row))
    assert heard == ["first 0", "first 1"]
    assert "first" not in ended


def test_a_single_experiment_prints_each_row_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_rows(_: Given) -> Outcome:
        outcome = Outcome()
        outcome.near("first", (2, 3), [0.95, 2.19], "x")
        raise UserError("no second")

    one = Experiment("memory", "memory", "a claim", "", two_rows)
    monkeypatch.setattr(claims, "find", lambda name: [one])
    result = CliRunner().invoke(app, ["reproduce", "memory"])
    assert result.stdout.startswith(
        "memory: a claim\npartly, 19 %  first: 2 to 3 x published, 0.95 to 2.19 x simulated\n"
    )
    assert str(result.exception) == "no second"


def test_a_kept_file_that_was_cut_off_is_computed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    def run(given: Given) -> Outcome:
        ran.append("run")
        return _good(given)

    monkeypatch.setattr(claims, "find", lambda name: [Experiment("memory", "memory", "", "", run)])
    arguments = ["reproduce", "memory", "--out", str(tmp_path / "out")]
    first = CliRunner().invoke(app, arguments)
    assert CliRunner().invoke(app, arguments).stdout == first.stdout
    assert ran == ["run"]
    (kept,) = (tmp_path / "out").glob("runs/cells/*/summary.json")
    kept.write_bytes(kept.read_bytes()[:100])
    for name in ("memory.json", "report.html"):  # killed before they were written
        (tmp_path / "out" / name).unlink()
    again = CliRunner().invoke(app, arguments)
    assert (again.exit_code, again.stdout, ran) == (0, first.stdout, ["run", "run"])
    assert again.stderr.startswith("computed again: ")


def test_one_that_fails_or_dies_does_not_lose_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real = find("speculation-crossover")[0]
    chosen = [Experiment(name, "memory", "", "", _good) for name in ("no-such-experiment", real.name)]
    answer = worker.ANSWER + json.dumps({"document": {"name": real.name}, "error": "", "cpu_s": 1.0})
    script = f"import sys; sys.exit('died') if sys.argv[-1] == {chosen[0].name!r} else print({answer!r})"
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", script))
    heard: list[str] = []
    done = list(worker.run_all(chosen, None, 2, lambda one: heard.append(one.name), _unheard))
    assert [(one.name, one.document, one.error) for one in done] == [
        ("no-such-experiment", None, "died"),
        (real.name, {"name": real.name}, ""),
    ]
    assert sorted(heard) == ["no-such-experiment", real.name]


def test_a_worker_answers_with_a_document_or_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "pagedattention.yaml").write_text("nonsense: 1\n")
    worker.main("pagedattention", str(tmp_path))
    answer = json.loads(capsys.readouterr().out.removeprefix(worker.ANSWER))
    assert answer["document"] is None
    assert "unknown key 'nonsense'" in answer["error"]


def test_the_command_names_what_failed_and_writes_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    document = _documents()[0]
    done = [worker.Done(document["name"], document), worker.Done("pagedattention", None, "too hot")]
    monkeypatch.setattr(cli_reproduce, "_run", lambda *_: (one for one in done))
    result = CliRunner().invoke(app, ["reproduce", "all", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "error: pagedattention: too hot" in result.stderr
    assert "differs       does not: 1 published, 2 simulated\n              because\n" in result.stdout
    assert (tmp_path / "out" / "report.html").is_file()
    assert (tmp_path / "out" / "scenarios" / f"{document['name']}.yaml").is_file()


def test_a_folder_with_other_files_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    document = _documents()[0]
    monkeypatch.setattr(cli_reproduce, "_run", lambda *_: (worker.Done(document["name"], document) for _ in range(1)))
    arguments = ["reproduce", "all", "--out", str(tmp_path / "out")]
    page = tmp_path / "out" / "report.html"
    page.parent.mkdir()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert CliRunner().invoke(app, arguments).exit_code == 0, "claims of before are replaced"
    for path in (page.parent / "reproduced.json", page):
        path.unlink()
    page.write_text("mine")
    said = str(CliRunner().invoke(app, arguments).exception)
    assert "exists and is not a claims result of servesim" in said
    assert page.read_text() == "mine"


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError])
def test_one_that_is_cut_off_leaves_no_folder_that_was_not_there(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claimed: list[list[str]] = []

    def cut_off(*_: object) -> list[worker.Done]:
        claimed.append(sorted(path.name for path in tmp_path.rglob("*")))
        raise error

    monkeypatch.setattr(cli_reproduce, "_run", cut_off)
    (tmp_path / "empty").mkdir()
    for out in ("new/deep/claims", "empty"):
        CliRunner().invoke(app, ["reproduce", "all", "--out", str(tmp_path / out)])
    assert claimed == [["cells", "claims", "deep", "empty", "new", "runs"], ["cells", "empty", "runs"]]
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_an_interrupted_rerun_prints_what_has_ended_in_order_and_continues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = [*experiments()][:3]
    chosen = [Experiment(name, "memory", f"claim of {name}", "", _good) for name in names]
    monkeypatch.setattr(claims, "find", lambda name: chosen)
    ran = tmp_path / "ran"
    ran.mkdir()
    script = f"""if True:
        import json, pathlib, sys, time
        name = sys.argv[-1]
        pathlib.Path({str(ran)!r}, name).touch()
        time.sleep(600 if name == {names[2]!r} and not pathlib.Path({str(ran)!r}, "quick").exists() else 0)
        row = dict(what="w", published="1", simulated="1", verdict="reproduced", note="", group="memory", cause="")
        document = dict(name=name, claim="claim of " + name, source="", group="memory", scenario="a: 1", rows=[row],
                        notes=[], figures=[])
        print({worker.ANSWER!r} + json.dumps(dict(document=document, error="", cpu_s=1.0)))
    """
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", script))
    shown: list[str] = []
    real = cli_reproduce.Printer.rest

    def until_the_second(printer: cli_reproduce.Printer, document: dict[str, Any]) -> None:
        real(printer, document)
        shown.append(document["name"])
        if shown == names[:2]:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_reproduce.Printer, "rest", until_the_second)
    arguments = ["reproduce", "all", "--jobs", "3", "--out", str(tmp_path / "out")]
    stopped = CliRunner().invoke(app, arguments)
    assert isinstance(stopped.exception, Interrupted)
    assert str(stopped.exception) == f"{tmp_path / 'out'} has the claims so far; run it again to continue"
    assert stopped.stdout.index(f"claim of {names[0]}") < stopped.stdout.index(f"claim of {names[1]}")
    for file in ran.iterdir():
        file.unlink()
    (ran / "quick").touch()
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert shown == [*names[:2], *names]
    assert sorted(file.name for file in ran.iterdir()) == sorted([names[2], "quick"])
    assert (tmp_path / "out" / "report.html").is_file()
    assert json.loads((tmp_path / "out" / "reproduced.json").read_text())["experiments"] == names


def test_the_scenario_of_a_claim_is_part_of_what_is_kept(tmp_path: Path) -> None:
    (one,) = find("pagedattention")
    (tmp_path / "pagedattention.yaml").write_text(load(one.name)[1])
    same = cli_reproduce._address(one, None)
    assert same == cli_reproduce._address(one, tmp_path)
    (tmp_path / "pagedattention.yaml").write_text(load(one.name)[1] + "\n# edited\n")
    assert same != cli_reproduce._address(one, tmp_path)


def test_code_that_only_a_scenario_of_claims_names_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "pagedattention.yaml").write_text(f"model: '{tmp_path}/mine.py:Mine'\n")
    with pytest.raises(UserError, match=r"pagedattention\.yaml refers to code"):
        check_folder(tmp_path, [*experiments()])
    with trusting(trust=True):
        check_folder(tmp_path, [*experiments()])


def test_workers_end_with_the_one_who_asked_them(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [Experiment(name, "memory", "", "", _good) for name in ("quick", "endless")]
    answer = worker.ANSWER + json.dumps({"document": {}, "error": "", "cpu_s": 1.0})
    script = f"import sys, time; print({answer!r}) if sys.argv[-1] == 'quick' else time.sleep(600)"
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", script))

    def interrupted(done: worker.Done) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # and not after ten minutes
        list(worker.run_all(chosen, None, 2, interrupted, _unheard))


def test_bad_options_are_one_line(tmp_path: Path) -> None:
    for arguments, said in (
        (["pagedatention"], "unknown experiment 'pagedatention' (did you mean \"pagedattention\"?)"),
        (["all", "--jobs", "0"], "jobs is 0 but must be at least 1"),
        (["all", "--scenarios", str(tmp_path)], "no scenario (NAME.yaml) there"),
    ):
        result = CliRunner().invoke(app, ["reproduce", *arguments])
        assert isinstance(result.exception, UserError)
        assert said in str(result.exception)
