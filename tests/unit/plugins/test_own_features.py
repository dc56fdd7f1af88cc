"""A user's features in a run, interpreted, by whichever build serves it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.contracts.part import Part
from servesim.errors import PolicyError

ENERGY = f"{Path(__file__).parents[2] / 'support' / 'energy.py'}:Energy"
RUN: dict[str, Any] = {
    "trace": "preset:azure-conv-2023",
    "requests": 40,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "replicas": 2,
    "router": "least-outstanding",
    "clients.timeout_s": 0.3,
}
VERBS = {name for name, member in vars(Part).items() if callable(member) and not name.startswith("_")} - {"wants"}
WATCHING = '''
from collections import Counter

from servesim.contracts.feature import Feature
from servesim.contracts.part import Part
from servesim.contracts.request import Request


class Watcher(Part):
    """Overrides every verb, counts its calls and answers by default."""

    def __init__(self):
        self.calls = Counter()

    def join(self, cluster):
        self.calls["join"] += 1
        self.cluster = cluster

    def core_made(self, replica):
        self.calls["core_made"] += 1

    def start(self):
        self.calls["start"] += 1
        self.cluster.clock.at(1_000_000, 0, lambda event: self._happens())

    def _happens(self):
        self.cluster.set_state(1, "draining")
        assert self.cluster.crashed(1) == [] and not self.cluster.keeps(1)
        request = Request(0, "0", 1, 1, 0)
        self.cluster.lost(request)
        self.cluster.network_changed(0, 2.0)
        assert self.cluster.replacing(self.cluster.fleet.pools[0]) == []
        self.cluster.tell_passed_on(request, 1, 1)
        assert self.cluster.held_for(self.cluster.fleet.pools[0]) == self.cluster.num_waiting

    def sent(self, request, output_len, index):
        self.calls["sent"] += 1
        assert request.num_tokens == request.prompt_len and output_len > 0

    def passed_on(self, request, output_len, index):
        self.calls["passed_on"] += 1

    def state_changed(self, index, state):
        self.calls["state_changed"] += 1
        assert (index, state) == (1, "draining")

    def crashed(self, index):
        self.calls["crashed"] += 1
        return ()

    def lost(self, request):
        self.calls["lost"] += 1

    def network_changed(self, index, factor):
        self.calls["network_changed"] += 1

    def left(self, request):
        self.calls["left"] += 1

    def sends(self, request, output_len):
        self.calls["sends"] += 1
        return False

    def takes(self, request, output_len, decision):
        self.calls["takes"] += 1
        return False

    def reaches(self, request, index):
        self.calls["reaches"] += 1
        return True

    def gives_up(self, request, deadline):
        self.calls["gives_up"] += 1
        return False

    def keeps(self, index):
        self.calls["keeps"] += 1
        return False

    def held_for(self, pool):
        self.calls["held_for"] += 1
        return 0

    def replacing(self, pool):
        self.calls["replacing"] += 1
        return ()

    def held(self):
        self.calls["held"] += 1
        return 0

    def columns(self, rows):
        self.calls["columns"] += 1
        return {"twice": 2 * rows}

    def served(self, rows):
        self.calls["served"] += 1
        return None

    def settled(self, requests):
        self.calls["settled"] += 1

    def figures(self, finished):
        self.calls["figures"] += 1
        return {}

    def conclusions(self, summary, finished):
        self.calls["conclusions"] += 1
        return {"calls": dict(self.calls)}

    def notes(self, summary):
        self.calls["notes"] += 1
        return ["watched"]


class Watching(Feature):
    def build(self, setup):
        return Watcher()


class Failing(Watcher):
    def left(self, request):
        raise ValueError("lost count")


class Broken(Feature):
    def build(self, setup):
        return Failing()
'''


@pytest.fixture
def watching(tmp_path: Path) -> Path:
    path = tmp_path / "watching.py"
    path.write_text(WATCHING)
    return path


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_a_part_that_overrides_every_verb_has_each_called_and_changes_nothing(watching: Path, mode: str) -> None:
    drained = [f"{watching}:Watching"]
    result, other = (servesim.simulate(**RUN, mode=each, features=drained) for each in (mode, "fast"))
    calls, requests = result.summary["calls"], result.summary["requests"]
    assert {*calls} == VERBS
    assert calls["sends"] == calls["sent"] == calls["reaches"] == calls["takes"] == calls["left"] == 40
    assert calls["core_made"] == 2
    assert calls["state_changed"] == calls["join"] == calls["start"] == 1
    assert calls["gives_up"] == 40
    assert requests["arrived"] == 40
    assert 0 < requests["aborted"] < 40
    assert "watched" in result.summary["notes"]
    assert result.requests["twice"].tolist() == [2 * row for row in result.requests["row"]]
    assert result.requests.equals(other.requests)


def test_the_verbs_counted_are_all_that_the_contract_has(watching: Path) -> None:
    scope: dict[str, Any] = {}
    exec(compile(watching.read_text(), str(watching), "exec"), scope)
    assert {name for name in vars(scope["Watcher"]) if not name.startswith("_")} == VERBS
    for name in VERBS:
        own, contract = (inspect.signature(getattr(cls, name)).parameters for cls in (scope["Watcher"], Part))
        assert [*own] == [*contract]


def test_a_feature_in_one_file_measures_a_run_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    patient = {key: value for key, value in RUN.items() if key != "clients.timeout_s"}
    plain = servesim.simulate(**patient)
    metered = servesim.simulate(**patient, features=[ENERGY], out=tmp_path / "out", **{"energy.busy_w": 500})
    assert plain.requests.equals(metered.requests)
    energy, done = metered.summary["energy"], metered.summary["requests"]["completed"]
    assert energy["joules_per_request"] == energy["joules"] / done
    table = metered.requests
    seconds = (table["finished_ns"].max() - table["arrival_ns"].min()) / 1e9 * RUN["replicas"]
    busy = metered.steps["gpu_ns"].sum() / 1e9
    assert energy["joules"] == pytest.approx(500 * busy + 100 * (seconds - busy))
    assert servesim.Result.load(tmp_path / "out", trust=True).summary["energy"] == energy


def test_an_error_of_a_users_part_is_told_with_its_class_and_line(watching: Path) -> None:
    with pytest.raises(PolicyError, match=r"Failing at \d+ ns: left raises ValueError: lost count \(watching\.py line"):
        servesim.simulate(**RUN, features=[f"{watching}:Broken"])
