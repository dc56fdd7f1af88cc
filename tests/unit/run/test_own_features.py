"""A feature of a user's own, in one file: options, help, result, page, and errors of one line."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import servesim
from servesim.cli import app as cli
from servesim.contracts.part import RUN_VERBS, Part
from servesim.errors import PolicyError, UserError
from servesim.experiments.store import address_of
from servesim.run.shown import all_rows
from tests.support import energy

ENERGY = Path(energy.__file__)
SHARED: dict[str, Any] = {
    "trace": "synth:rate=20,prompt=200,output=20",
    "requests": 20,
    "model": "llama-3.1-8b",
    "gpu": "h200",
}
TYPED = " ".join(f"--{key} {value}" for key, value in SHARED.items())
Call = Callable[..., tuple[int, str, str]]

ODD = """
from pydantic import Field
from servesim.contracts.feature import Feature
from servesim.contracts.part import Part
from servesim.contracts.section import Section


class Does(Part):
    def __init__(self, does):
        self.does = does

    def sent(self, request, output_len, index):
        self.does.get("sent", int)()

    def takes(self, request, output_len, decision):
        return self.does.get("takes", bool)()

    def reaches(self, request, index):
        return self.does.get("reaches", lambda: True)()

    def gives_up(self, request, deadline):
        return self.does.get("gives_up", bool)()

    def held(self):
        return self.does.get("held", int)()

    def columns(self, rows):
        return self.does.get("columns", dict)()

    def figures(self, finished):
        return self.does.get("figures", dict)()

    def notes(self, summary):
        return self.does.get("notes", list)()


class Odd(Feature):
    does = {}

    def build(self, setup):
        return Does(self.does)
"""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in a folder that has energy.py; return exit code, output and errors."""
    shutil.copy(ENERGY, tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["servesim", *line.split()])
        code = cli._guarded()
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def simulate(**settings: Any) -> servesim.Result:
    return servesim.simulate({**SHARED, "features": [f"{ENERGY}:Energy"]}, **settings)


def odd(tmp_path: Path, does: str = "{}", more: str = "") -> str:
    """Write a feature that is odd in one thing, and return its name."""
    file = tmp_path / "odd.py"
    file.write_text(ODD.replace("does = {}", f"does = {does}") + more)
    return f"{file}:Odd"


def test_its_options_stand_in_help_under_a_heading_of_their_own(call: Call) -> None:
    code, said, _ = call("run --features energy.py:Energy --help-all")
    assert code == 0
    section = said[said.index("Energy:") :]
    assert "--energy.busy-w <float>" in section
    assert "Watts of a GPU while it computes. [default: 700.0]" in section
    assert "--energy" not in call("run --help-all")[1]


def test_its_figures_are_in_json_in_the_terminal_and_on_the_page_and_the_run_can_be_repeated(call: Call) -> None:
    run = f"run {TYPED} --features energy.py:Energy"
    code, said, _ = call(f"{run} --energy.busy-w 500 --out first")
    assert code == 0
    row = next(line for line in said.splitlines() if line.startswith("energy "))
    summary = json.loads(Path("first/summary.json").read_text())
    joules = summary["energy"]["joules_per_request"]
    assert row.split()[-5:] == ["joules", "per", "request", f"{joules:.2f}", "J"]
    assert f"joules per request {joules:.2f} J" in Path("first/report.html").read_text()
    assert json.loads(call(f"{run} --energy.busy_w=500 --json")[1])["energy"] == summary["energy"]
    assert "feature Energy" in summary["provenance"]["policy_files"]

    written = yaml.safe_load(Path("first/scenario.yaml").read_text())
    assert written["features"] == ["energy.py:Energy"]
    assert written["energy"] == {"busy_w": 500, "idle_w": 100}
    assert call("run first/scenario.yaml --trust --out second -q")[0] == 0
    for name in ("summary.json", "scenario.yaml", "requests.parquet", "report.html"):
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes()
    changed = json.loads(call("run first/scenario.yaml --trust --energy.busy-w 501 --json")[1])
    assert changed["energy"]["joules"] > summary["energy"]["joules"]


def test_energy_is_busy_and_idle_seconds_at_their_power() -> None:
    def joules(busy_w: float, idle_w: float) -> float:
        found: float = simulate(**{"energy.busy_w": busy_w, "energy.idle_w": idle_w}).summary["energy"]["joules"]
        return found

    seconds = simulate().summary["duration_s"]
    assert joules(1, 1) == pytest.approx(seconds)
    assert joules(3, 2) == pytest.approx(3 * joules(1, 0) + 2 * joules(0, 1))
    assert joules(1, 0) > 0 < joules(0, 1)


@pytest.mark.parametrize("more", [{"tp": 2}, {"replicas": 3}, {"pp": 2}, {"pools": ["a:replicas=1", "b:replicas=2"]}])
def test_energy_counts_all_gpus(more: dict[str, Any]) -> None:
    summary = simulate(**more, **{"energy.busy_w": 1, "energy.idle_w": 1}).summary
    gpus = {"tp": 2, "replicas": 3, "pp": 2, "pools": 3}[next(iter(more))]
    assert summary["energy"]["joules"] == pytest.approx(gpus * summary["duration_s"])


def test_it_changes_nothing_else() -> None:
    with_it, without = simulate(), servesim.simulate(SHARED)
    assert with_it.requests.equals(without.requests)
    assert with_it.steps.equals(without.steps)
    own = ("scenario", "provenance", "energy")
    left = ({k: v for k, v in each.summary.items() if k not in own} for each in (with_it, without))
    assert next(left) == next(left)


def test_its_settings_are_keywords_and_a_section() -> None:
    by_keyword = simulate(**{"energy.busy_w": 500})
    by_section = simulate(energy={"busy_w": 500})
    assert by_keyword.summary == by_section.summary
    assert by_keyword.summary["energy"] != simulate().summary["energy"]
    again = servesim.simulate(by_keyword.scenario)
    assert again.summary == by_keyword.summary


def test_paths_in_a_scenario_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    shutil.copy(ENERGY, tmp_path / "inner")
    scenario = tmp_path / "inner" / "scenario.yaml"
    monkeypatch.chdir(tmp_path)
    for features in (["energy.py:Energy"], "energy.py:Energy"):
        scenario.write_text(yaml.safe_dump({**SHARED, "features": features, "energy": {"busy_w": 500}}))
        found = servesim.simulate("inner/scenario.yaml", trust=True)
        assert found.summary["energy"] == simulate(**{"energy.busy_w": 500}).summary["energy"]
        assert found.summary["scenario"]["features"] == [str(Path("inner/energy.py:Energy"))]


def test_processes_streams_and_pools_have_it_too() -> None:
    two = {"replicas": 2}
    assert simulate(**two, jobs=2).summary == simulate(**two).summary
    streamed = simulate(stream=True).summary["energy"]
    assert streamed["joules"] == pytest.approx(simulate().summary["energy"]["joules"])
    assert simulate(pools=["a:replicas=1", "b:replicas=1"]).summary["energy"]["joules"] > 0


def test_experiments_take_it_and_its_settings_are_axes(call: Call) -> None:
    line = f"{TYPED} --features energy.py:Energy --jobs 1 --replicates 1"
    code, said, errors = call(f"compare {line} --energy.busy-w 500,700 --json")
    assert code == 0, errors
    assert [variant["axes"] for variant in json.loads(said)["variants"]] == [
        {"energy.busy_w": "500"},
        {"energy.busy_w": "700"},
    ]
    code, said, errors = call(f"sweep {line} --energy.busy-w 500 --rate 2,4 --json")
    assert code == 0, errors
    assert [variant["error"] for variant in json.loads(said)["variants"]] == [None, None]
    code, _, errors = call(f"sweep {line} --energy.bsy-w 500,600 --rate 2")
    assert (code, errors) == (2, 'error: no such option: --energy.bsy-w (did you mean "--energy.busy-w"?)\n')


def test_a_stored_result_is_one_of_this_version_of_its_file(tmp_path: Path) -> None:
    file = Path(shutil.copy(ENERGY, tmp_path))
    settings = {**SHARED, "features": [f"{file}:Energy"]}
    before = address_of(settings)
    assert address_of(settings) == before
    file.write_text(file.read_text().replace("100.0", "90.0"))
    assert address_of(settings) != before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--features nowhere.py:Energy", "feature file nowhere.py does not exist"),
        ("--features energy.py:Enrgy", "energy.py has no class 'Enrgy' (did you mean \"Energy\"?)"),
        ("--features energy.py", "specify the class in energy.py as energy.py:ClassName"),
        ("--features energy.py:Energy,b.py:B", "energy.py: specify one class, and repeat the option for others"),
        ("--features energy.py:Power", "energy.py: Power does not derive from Feature (servesim.contracts)"),
        ("--features energy.py:Energy --energy.bsy-w 3", 'no such option: --energy.bsy-w (did you mean "--energy.bus'),
        ("--features energy.py:Energy --energy.busy-w -3", "energy.busy_w is -3.0: input should be greater than or eq"),
        ("--features energy.py:Energy --energy.busy-w x", "Invalid value for '--energy.busy-w': Input should be a val"),
        ("--features energy.py:Energy --set energy.bsy_w=3", "unknown key 'energy.bsy_w' (did you mean \"busy_w\"?)"),
        ("--features energy.py:Energy --set energy=3", "energy is 3 but must be a mapping of settings"),
        ("--energy.busy-w 3", "no such option: --energy.busy-w"),
        ("--set energy.busy_w=3", "unknown key 'energy'"),
        pytest.param(
            "--features bars",
            "features: 'bars' must have the form path/to/file.py:Class (bars is part of every run, and is turned on "
            "by its",
            marks=pytest.mark.feature("bars"),
        ),
        ("--features energy.py:Energy --features energy.py:Energy", "features: Energy appears twice"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(call: Call, options: str, told: str) -> None:
    code, _, errors = call(f"run {TYPED} {options}")
    assert code == 2
    assert errors.startswith(f"error: {told}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ('"router"', "feature Odd: settings named router already exist"),
        ('""', "feature Odd: its settings must have their own section"),
    ],
)
def test_settings_need_a_place_of_their_own(tmp_path: Path, section: str, told: str) -> None:
    keys = f"\n    section = {section}\n    class Settings(Section):\n        many: int = 3\n"
    name = odd(tmp_path, more=keys)
    with pytest.raises(UserError, match=told):
        servesim.simulate(SHARED, features=[name])


def test_two_features_share_no_section(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(ENERGY.read_text().replace("class Energy(", "class Other(") + '\n    section = "energy"\n')
    with pytest.raises(UserError, match="feature Other: settings named energy already exist"):
        simulate(features=[f"{ENERGY}:Energy", f"{other}:Other"])


@pytest.mark.parametrize("verb", ["sent", "takes", "reaches", "held", "columns", "figures", "notes"])
def test_a_part_that_raises_is_blamed_with_its_line(tmp_path: Path, verb: str) -> None:
    name = odd(tmp_path, f'{{"{verb}": lambda: 1 / 0}}')
    line = next(i for i, text in enumerate(Path(tmp_path / "odd.py").read_text().splitlines(), 1) if "1 / 0" in text)
    with pytest.raises(PolicyError, match=rf"^Does.*: .* raises ZeroDivisionError.* \(odd.py line {line}\)$"):
        servesim.simulate(SHARED, features=[name])


@pytest.mark.parametrize(
    ("verb", "returned", "told"),
    [
        ("takes", "'yes'", "takes returns 'yes', not True or False"),
        ("takes", "None", "takes returns None, not True or False"),
        ("reaches", "None", "reaches returns None, not True or False"),
        ("gives_up", "1", "gives_up returns 1, not True or False"),
        ("held", "1.5", "held returns 1.5, not an int"),
        ("columns", "3", "columns returns 3, not a dict"),
        ("figures", "None", "figures returns None, not a dict"),
        ("columns", "{'row': [0] * 20}", "columns has 'row', but requests already have a column of this name"),
        ("columns", "{'watts': [0] * 19}", "columns: 'watts' must be one integer for each of 20 requests"),
        ("columns", "{'watts': [0.5] * 20}", "columns: 'watts' must be one integer for each of 20 requests"),
        ("notes", "[3]", r"notes returns \[3\], not a list of str"),
    ],
)
def test_a_verb_that_returns_something_else_is_told(tmp_path: Path, verb: str, returned: str, told: str) -> None:
    name = odd(tmp_path, f'{{"{verb}": lambda: {returned}}}')
    with pytest.raises(PolicyError, match=f"^Does: {told}$"):
        servesim.simulate(SHARED, features=[name], clients={"timeout_s": 1e-3})


def test_numbers_of_numpy_are_as_good(tmp_path: Path) -> None:
    name = odd(
        tmp_path, '{"held": lambda: __import__("numpy").int64(0), "takes": lambda: __import__("numpy").bool_(0)}'
    )
    assert servesim.simulate(SHARED, features=[name]).summary["requests"]["completed"] == 20


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("build(self, setup): return 7", "Odd: build returns 7, not a Part or None"),
        ("build(self, setup): return 1 / 0", "Odd: build raises ZeroDivisionError"),
        ("is_on(self, scenario): return 1 / 0", "Odd: is_on raises ZeroDivisionError"),
        ("refuses(self, scenario): return ['jobs']", r"Odd: refuses returns \['jobs'\], not a dict"),
        ("spell_out(self, settings): settings['x'] = 1", "Odd: spell_out returns None, not a dict"),
        ("complete(self, settings): return None", "Odd: complete returns None, not a dict"),
    ],
)
def test_a_feature_that_breaks_its_contract_is_told(tmp_path: Path, method: str, told: str) -> None:
    name = odd(tmp_path, more=f"\n    def {method}\n")
    with pytest.raises(PolicyError, match=f"^{told}"):
        servesim.simulate(SHARED, features=[name])


FIGURES = """
from servesim.contracts.figures import Figure, Group


def broken(summary):
    return 1 / 0


GROUP = Group("odd", "odd", (Figure("one", "one", lambda m: m),), rows=(("odd", ROWS),))
"""


def with_figures(tmp_path: Path, value: str, rows: str = "''") -> str:
    """Write a feature with a figure of this value, and return its name."""
    more = "\n    def groups(self): return (GROUP,)\n" + FIGURES.replace("ROWS", rows)
    return odd(tmp_path, f'{{"figures": lambda: {{"odd": {value}}}}}', more)


@pytest.mark.parametrize(
    ("rows", "code", "told"),
    [
        ("broken", 1, "Odd: broken raises ZeroDivisionError: division by zero (odd.py line "),
        (
            "3",
            2,
            "feature file odd.py cannot be loaded: UserError: figures of 'odd': rows must be pairs of label and words",
        ),
        ("'{two} J'", 2, "figures of 'odd': the group's text refers to 'two', which is not one of its figures"),
        (
            "'{engine.stepz}'",
            2,
            "figures of 'odd': the group's text refers to 'engine.stepz', which is not one of its figures",
        ),
    ],
)
def test_rows_that_fail_are_told(tmp_path: Path, call: Call, rows: str, code: int, told: str) -> None:
    with_figures(tmp_path, '{"one": 1}', rows)
    found, _, errors = call(f"run {TYPED} --features odd.py:Odd")
    assert (found, errors.count("\n")) == (code, 1)
    assert errors.startswith(f"error: {told}")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("{'one': float('nan')}", "figure odd.one is nan, not a finite number"),
        ("{'one': float('-inf')}", "figure odd.one is -inf, not a finite number"),
        ("{'one': '12.5'}", "figure odd.one is '12.5', not a finite number"),
        ("{'one': True}", "figure odd.one is True, not a finite number"),
        ("{'one': [1]}", r"figure odd.one is \[1\], not a finite number"),
        ("{'one': 10**400}", "figure odd.one is 1000"),
        ("{}", "figure odd.one is declared but missing"),
        ("[1]", "figure odd.one is declared but missing"),
        ("{'one': object()}", "figure odd.one is "),
        ("{'one': 1j}", "figure odd.one is 1j, not a finite number"),
        ("{'one': 1, 'more': {'a': [1, float('nan')]}}", r"figure odd.more.a\[1\] is nan, not a finite number"),
    ],
)
def test_a_value_that_is_no_number_is_told(tmp_path: Path, value: str, told: str) -> None:
    name = with_figures(tmp_path, value)
    with pytest.raises(PolicyError, match=told):
        servesim.simulate(SHARED, features=[name])


def test_numbers_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    value = "{'one': __import__('numpy').int64(3), 'two': (__import__('numpy').float32(0.5),)}"
    result = servesim.simulate(SHARED, features=[with_figures(tmp_path, value)], out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["odd"] == {"one": 3, "two": [0.5]}
    assert type(result.summary["odd"]["one"]) is int


@pytest.mark.parametrize("value", ["{'one': None}", "{'one': 0}", "{'one': 1e300}", "None"])
def test_numbers_and_nothing_are_values(tmp_path: Path, value: str) -> None:
    assert "odd" in servesim.simulate(SHARED, features=[with_figures(tmp_path, value)]).summary


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ("[3]", r"Odd: groups returns \[3\], not a tuple of Groups"),
        ("(Group('odd', 'odd', Figure('one', 'one', int)),)", "figures of 'odd': must be a tuple of Figures"),
        (
            "(Group('odd', 'odd', (Figure('a b', '', int),)),)",
            "figures of 'odd': 'a b' is not a valid name, or appears twice",
        ),
        (
            "(Group('engine', 'odd', (Figure('one', '', int),)),)",
            "feature Odd: figures 'engine': the summary already contains this",
        ),
    ],
)
def test_groups_that_are_none_are_told(tmp_path: Path, groups: str, told: str) -> None:
    name = odd(tmp_path, more=f"\n    def groups(self): return {groups}\n" + FIGURES.replace("ROWS", "''"))
    with pytest.raises((PolicyError, UserError), match=f"^{told}"):
        all_rows(servesim.simulate(SHARED, features=[name]).summary)


def test_a_figure_that_servesim_has_as_a_metric_is_told(tmp_path: Path) -> None:
    figure = "Figure('ttft_p99', 'one', int, better='lower')"
    more = f"\n    def groups(self): return (Group('odd', 'odd', ({figure},)),)\n"
    name = odd(tmp_path, more=more + FIGURES.replace("ROWS", "''"))
    with pytest.raises(UserError, match="feature Odd: figure ttft_p99: a metric of this name already exists"):
        servesim.compare(SHARED, features=[name], kv=["paged", "prefix-hash"], replicates=1, jobs=1)


def test_a_part_that_follows_the_run_keeps_it_in_one_process(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Does observes the whole run \(sent, takes, reaches, gives_up, held\)"):
        servesim.simulate(SHARED, features=[odd(tmp_path)], replicas=2, jobs=2)


@pytest.mark.parametrize("stream", [False, True])
def test_columns_of_its_own_are_in_the_table_of_a_streamed_run_too(tmp_path: Path, stream: bool) -> None:
    name = odd(tmp_path, '{"columns": lambda: {"watts": range(20)}}')
    result = servesim.simulate(SHARED, features=[name], stream=stream, out=tmp_path / "out")
    assert result.requests["watts"].tolist() == [*range(20)]


def test_the_verbs_of_a_run_are_those_of_the_contract() -> None:
    after = {"columns", "served", "settled", "figures", "conclusions", "notes", "wants"}
    verbs = {name for name, value in vars(Part).items() if callable(value) and not name.startswith("_")}
    assert {*RUN_VERBS} == verbs - after


@pytest.mark.feature("failures")
def test_what_it_refuses_is_refused_whatever_its_settings(tmp_path: Path) -> None:
    name = odd(tmp_path, more="\n    def refuses(self, scenario): return {'failures': 'odd: never with failures'}\n")
    assert servesim.simulate(SHARED, features=[name]).summary["requests"]["completed"] == 20
    with pytest.raises(UserError, match=r"^odd: never with failures$"):
        servesim.simulate(SHARED, features=[name], replicas=2, cluster={"failures": ["crash:replica=0,at=1"]})


def test_settings_have_defaults(tmp_path: Path) -> None:
    name = odd(tmp_path, more="\n    class Settings(Section):\n        many: int\n")
    with pytest.raises(UserError, match=r"^feature Odd: setting many has no default$"):
        servesim.simulate(SHARED, features=[name])


def test_help_is_that_of_the_file_as_it_is_now(call: Call) -> None:
    Path("energy.py").write_text(Path("energy.py").read_text().replace("while it waits", "at rest"))
    assert "Watts of a GPU at rest." in call("run --features energy.py:Energy --help-all")[1]
    assert "Watts of a GPU while it computes." in call("run --features energy.py:Energy --help-all")[1]
