"""`servesim policies check` of autoscalers, connectors and features: what is right passes, the rest is a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from servesim.checking import attempt as attempts
from servesim.checking.attempt import attempt
from servesim.checking.check import CHANGES, Report, check
from servesim.checking.placed import Watched, world_of
from servesim.checking.subject import Subject
from servesim.contracts import REGISTRIES, scalers
from servesim.contracts.feature import features, installed
from servesim.errors import UserError
from tests.support import energy

pytestmark = pytest.mark.medium
WORLDS = range(2, 6)
ENERGY = f"{energy.__file__}:Energy"

SCALER = """
import time

from servesim.contracts import Scaler


class Mine(Scaler):
    every_s = 30.0

    def wanted(self, load):
        return max(1, len(load.ready) + (1 if load.num_held or load.arrived > 1 else -1))
"""
CONNECTOR = """
from servesim.contracts.connector import LATER, Connector


class Mine(Connector):
    def __init__(self, params, place):
        super().__init__(params, place)
        self.seen = set()

    def available(self, request, num_tokens):
        if request.content is None or request.prompt_len < 32 or num_tokens >= 32:
            return 0
        return 32 - num_tokens if request.content.prefix_key(32) in self.seen else 0

    def load(self, request, start, stop, now):
        self.counts.loaded(request, stop - start, "far")
        return now + 300

    def ran(self, requests, begin_ns, end_ns):
        for request in requests:
            if request.content is not None and request.num_computed_tokens >= 32 <= request.prompt_len:
                self.seen.add(request.content.prefix_key(32))
        return end_ns
"""
HALF = """
from servesim.contracts.connector import Connector


class Mine(Connector):
    def available(self, request, num_tokens):
        return max(request.prompt_len // 2 - num_tokens, 0)

    def load(self, request, start, stop, now):
        self.counts.loaded(request, stop - start, "far")
        return now + 1_000_000
"""
FEATURE = '''
from servesim.contracts.feature import Feature
from servesim.contracts.figures import Figure, Group
from servesim.contracts.part import Part
from servesim.contracts.section import Section


class Part1(Part):
    count = 0

    def __init__(self, mode):
        self.mode = mode

    def sent(self, request, output_len, index):
        self.count += 1

    def figures(self, finished):
        return {"mine": {"sent": self.count}}


class Settings1(Section):
    factor: int = 1
    """How many times."""


class Mine(Feature):
    Settings = Settings1

    def build(self, setup):
        return Part1(setup.scenario.mode)

    def groups(self):
        return (Group("mine", "mine", (Figure("sent", "requests sent", int),)),)
'''


def report_of(folder: Path, text: str, more: str = "", worlds: range = WORLDS, settings: str = "") -> Report:
    file = folder / "mine.py"
    file.write_text(text + more)
    return check(Subject.of(f"{file}:Mine{settings}"), worlds)


def only(report: Report) -> str:
    (failure,) = report.failures
    return failure


@pytest.mark.parametrize("name", sorted({*scalers.names()} | {"keda:target=1,max=3", "hpa:min=2,max=4"}))
def test_autoscalers_that_are_shipped_pass(name: str) -> None:
    report = check(Subject.of(name), WORLDS)
    assert not report.failures
    assert report.runs > len(WORLDS)


@pytest.mark.parametrize("feature", [feature.name for feature in installed()])
def test_features_that_are_shipped_pass(feature: str) -> None:
    assert not check(Subject.of(feature), WORLDS).failures


def test_a_feature_of_ones_own_passes_with_settings_of_the_command_line() -> None:
    for spec in (ENERGY, f"{ENERGY}:busy_w=500"):
        report = check(Subject.of(spec), WORLDS)
        assert not report.failures
        assert not report.notes
    with pytest.raises(UserError, match=r"unknown key 'energy.bsy_w'"):
        Subject.of(f"{ENERGY}:bsy_w=500")
    with pytest.raises(UserError, match=r"energy.busy_w is '?-1'?: input should be greater"):
        Subject.of(f"{ENERGY}:busy_w=-1")


def test_in_worlds_of_an_autoscaler_replicas_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SCALER)
    subject = Subject.of(f"{file}:Mine")
    counts = []
    for number in range(20):
        world = world_of(number, subject)
        cluster = world.run("fast")
        counts.append((world.replicas, len(cluster.replicas), sum(r.state == "gone" for r in cluster.replicas)))
    assert sum(made > first for first, made, _ in counts) > 5
    assert sum(gone > 0 for _, _, gone in counts) > 5


def test_worlds_of_connectors_load(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CONNECTOR)
    for number in range(20):
        tried = attempt(world_of(number, Subject.of(f"{file}:Mine")), "reference", check=True)
        assert tried.outcome is not None or tried.unsuited
    more = "\n    def load(self, request, start, stop, now):\n        raise OSError(0)\n"
    assert "Mine: load raises OSError" in only(report_of(tmp_path, CONNECTOR, more, worlds=range(20)))


WARNS = """
    def notes(self, summary):
        from servesim.contracts import Warn

        return ["x", Warn("y")]

    def figures("""


def test_a_feature_that_warns_passes_as_one_that_notes(tmp_path: Path) -> None:
    text = FEATURE.replace("    def figures(", WARNS)
    assert text != FEATURE
    assert not report_of(tmp_path, text).failures


def test_one_right_passes(tmp_path: Path) -> None:
    for text in (SCALER, CONNECTOR, FEATURE):
        report = report_of(tmp_path, text, worlds=range(12))
        assert not report.failures
        assert not report.notes


@pytest.mark.parametrize(
    ("text", "more", "told"),
    [
        (SCALER, "    def wanted(self, load): return 1 / 0", "contract: Mine: wanted raises ZeroDivisionErr"),
        (SCALER, "    def wanted(self, load): return 1.5", "contract: Mine: wanted returns 1.5, not an int"),
        (SCALER, "    def wanted(self, load): return 1 + int(time.time() * 1e4) % 3", "determinism: Mine depends"),
        (SCALER, "    every_s = 0", "settings: no test world fits Mine: scaler Mine: its interval is 0 s but must be"),
        (CONNECTOR, "    def available(self, request, num_tokens): return 10_000", "contract: Mine at "),
        (CONNECTOR, "    def available(self, request, num_tokens): return None", "contract: Mine: available returns"),
        (CONNECTOR, "    def load(self, request, start, stop, now): return now - 1", "contract: Mine at "),
        (CONNECTOR, "    def ran(self, requests, begin_ns, end_ns): return begin_ns", "contract: Mine at "),
        (CONNECTOR, "    def __init__(self, size): pass", "contract: Mine: TypeError: Mine.__init__() takes 2"),
        (CONNECTOR, "    def __init__(self, params, place): pass", "contract: Mine: attribute params is missing"),
        (CONNECTOR, "    needs = {'remote'}", "settings: needs of Mine has the unknown entry 'remote'"),
        (FEATURE, "    def build(self, setup): return 1 / 0", "contract: Mine: build raises ZeroDivisionError"),
        (FEATURE, "    def refuses(self, scenario): return {'failure': 'no'}", "settings: Mine: refuses() names an "),
        (FEATURE, "    def groups(self): return ()", "settings: Mine: no group of its figures declares section 'mine'"),
        (FEATURE, "    def rows(self, summary): return []", "settings: Mine: rows is never called: declare its f"),
        (FEATURE, "    def groups(self): return [1]", "contract: Mine: groups returns [1], not a tuple of Groups"),
        (FEATURE, "    def groups(self): return (Group('mine', 'mine', ()),)", "settings: Mine: figure mine.sent is"),
        (FEATURE, "    class Settings(Section):\n        factor: int = 1", "settings: Mine: mine.factor has no docst"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str, more: str, told: str) -> None:
    failures = report_of(tmp_path, text, f"\n{more}\n", worlds=range(8)).failures
    assert any(failure.startswith(told) for failure in failures), failures


def test_loads_that_a_connector_does_not_count_are_told(tmp_path: Path) -> None:
    more = "\n    def load(self, request, start, stop, now): return now + 300\n"
    failures = report_of(tmp_path, CONNECTOR, more, worlds=range(20)).failures
    assert any(
        "0 of the 32 tokens that it has loaded are counted (call self.counts.loaded" in told for told in failures
    )


def test_kv_that_never_comes_is_told(tmp_path: Path) -> None:
    more = """
    def load(self, request, start, stop, now):
        self.counts.loaded(request, stop - start, "far")
        return LATER
"""
    failures = report_of(tmp_path, CONNECTOR, more, worlds=range(20)).failures
    assert failures
    assert "with Mine: " in failures[0]


def test_kv_that_never_comes_is_no_memory_held_in_line_though_a_client_gives_up(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        HALF.replace("now + 1_000_000", "LATER").replace("import Connector", "import LATER, Connector")
    )
    subject = Subject.of(f"{tmp_path / 'mine.py'}:Mine")
    found = [attempt(world_of(number, subject), "reference") for number in range(12)]
    assert any(each.error for each in found)
    assert not any("is reserved for the remote KV" in each.error for each in found)


def test_a_feature_that_changes_a_run_says_so(tmp_path: Path) -> None:
    meddles = FEATURE.replace("self.count += 1", "request.max_tokens = max(request.max_tokens - 1, 1)")
    failures = report_of(tmp_path, meddles).failures
    assert failures
    assert any(CHANGES in failure for failure in failures), failures
    acting = report_of(tmp_path, meddles, "\n    acts = True\n").failures
    assert not any(CHANGES in failure for failure in acting), acting


def test_a_feature_that_is_asked_may_answer_and_its_default_changes_nothing(tmp_path: Path) -> None:
    sheds = "\n    def gives_up(self, request, deadline):\n        return False\n\n\nclass Settings1("
    assert not report_of(tmp_path, FEATURE.replace("\n\nclass Settings1(", sheds, 1)).failures
    refuses = sheds.replace("return False", "return request.row % 2 == 0")
    file = tmp_path / "mine.py"
    file.write_text(FEATURE.replace("\n\nclass Settings1(", refuses, 1))
    answered = set()
    for number in range(40):
        world = world_of(number, Subject.of(f"{file}:Mine"))
        attempt(world, "reference")
        answered |= {verb for maker in world.features if isinstance(maker, Watched) for verb in maker.answered}
    assert answered == {"gives_up"}


def test_a_feature_that_is_off_changes_nothing_and_is_noted(tmp_path: Path) -> None:
    off = "\n    def build(self, setup): return None\n"
    report = report_of(tmp_path, FEATURE, off)
    assert not report.failures
    assert report.notes == ["Mine is disabled in every test world: add settings (:KEY=VALUE), or define in_world"]
    changing = off + "    def complete(self, settings): return settings | {'seed': 7}\n"
    assert "contract: Mine is off and changes a run" in only(report_of(tmp_path, FEATURE, changing))


def test_figures_that_depend_on_the_mode_are_told(tmp_path: Path) -> None:
    text = FEATURE.replace('{"sent": self.count}', '{"sent": len(self.mode)}')
    assert only(report_of(tmp_path, text)) == "fast: Mine: mine.sent is 4, in reference mode 9"


def test_a_feature_that_needs_more_than_a_small_world_has_is_told_what_to_write(tmp_path: Path) -> None:
    more = "\n    def build(self, setup): return Part1(setup.deployment.model.name)\n"
    told = "settings: no test world fits Mine: no test world has setup.deployment: define in_world(world, draws)"
    assert only(report_of(tmp_path, FEATURE, more)) == told
    more += "\n    def in_world(self, world, draws):\n        from dataclasses import replace\n"
    more += "        return replace(world, features=(*world.features, lambda world, pools: Part1('')))\n"
    assert not report_of(tmp_path, FEATURE, more).failures


def test_no_feature_is_called_as_a_policy_is() -> None:
    assert not {*features.names()} & {name for registry in REGISTRIES for name in registry.names()}


def test_a_run_that_does_not_end_is_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "PATIENCE_S", 0.3)
    more = "\n    def wanted(self, load):\n        while True: pass\n"
    file = tmp_path / "mine.py"
    file.write_text(SCALER + more)
    error = attempt(world_of(3, Subject.of(f"{file}:Mine")), "reference").error
    assert error.startswith("a run of a few requests did not end within 0.3 s (in wanted, mine.py line ")


@pytest.mark.parametrize(("number", "why"), [(2, "a client gives up during a load"), (39, "memory is held in line")])
def test_a_right_connector_passes_where(tmp_path: Path, number: int, why: str) -> None:
    assert report_of(tmp_path, HALF, worlds=range(number - 1, number + 1)).failures == [], why


def test_requests_that_wait_for_memory_which_waiting_ones_hold_are_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HALF)
    world = world_of(39, Subject.of(f"{tmp_path / 'mine.py'}:Mine"))
    found = attempt(world, "reference")
    assert found.unsuited
    assert "memory is reserved for the KV of 1 of them" in found.error
