"""A verb that is misspelled is said so, in a run and by `servesim policies check`; helpers are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.checking.check import check
from servesim.checking.subject import Subject
from servesim.plugins.files import load_file
from servesim.plugins.misspelled import classes_beside, misspelled

MINE = """
from servesim.contracts import Router
from servesim.contracts.feature import Feature
from servesim.contracts.part import Part
from servesim.policies.scheduling.vllm import Vllm


class Least(Router):
    {router} = {value}

    def route(self, request, views):
        return self.best(views)

    def best(self, views):
        return self.router(views)

    def router(self, views):
        return len(views) - 1


class Shortest(Vllm):
    def {scheduler}(self, request):
        super().on_arrival(request)


class Meter(Part):
    def {part}(self, finished):
        return {{}}


class Metered(Feature):
    def build(self, setup):
        return Meter()
"""
RIGHT = {"router": "name", "value": "'least'", "scheduler": "on_arrival", "part": "figures"}
SHORT = "synth:rate=20,prompt=50,output=5"
RUN: dict[str, Any] = {"trace": SHORT, "requests": 5, "model": "llama-3.2-1b", "gpu": "h200"}


def written(folder: Path, **wrong: str) -> Path:
    file = folder / "mine.py"
    file.write_text(MINE.format(**(RIGHT | wrong)))
    return file


def said_of(file: Path) -> list[str]:
    run = {**RUN, "replicas": 2, "router": f"{file}:Least", "scheduler": f"{file}:Shortest"}
    notes = servesim.simulate(**run, features=[f"{file}:Metered"]).summary["warnings"]
    return [note for note in notes if "never used by servesim" in note]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"router": "on_send", "value": "None"}, "Least.on_send is never used by servesim (did you mean on_sent?)"),
        ({"scheduler": "on_arival"}, "Shortest.on_arival is never used by servesim (did you mean on_arrival?)"),
        ({"part": "figure"}, "Meter.figure is never used by servesim (did you mean figures?)"),
        ({"part": "note"}, "Meter.note is never used by servesim (did you mean notes?)"),
    ],
)
def test_a_misspelled_verb_is_a_note_of_run_and_check(tmp_path: Path, wrong: dict[str, str], told: str) -> None:
    file = written(tmp_path, **wrong)
    assert said_of(file) == [told]
    names = {"Least": "Least", "Shortest": "Shortest", "Meter": "Metered"}
    report = check(Subject.of(f"{file}:{names[told.partition('.')[0]]}"), range(1))
    assert told in report.notes


def test_names_used_within_wrapped_and_nested_functions_are_used(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        """
import functools
from servesim.contracts import Router


def logged(function):
    @functools.wraps(function)
    def within(*args):
        return function(*args)

    return within


class Mine(Router):
    @logged
    def route(self, request, views):
        return self.on_send(views)

    def on_send(self, views):
        return min(range(len(views)), key=lambda i: self.on_sents(i))

    @staticmethod
    def on_sents(i):
        return Mine.on_arrivals(i)

    @classmethod
    def on_arrivals(cls, i):
        return i
"""
    )
    module = load_file("test", file, "test_misspelled_")
    assert list(misspelled(classes_beside(module.Mine))) == []


def test_sections_of_settings_are_no_note(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from servesim.contracts.section import Section\n\n\nclass Mine(Section):\n    watts: float = 1.0\n"
    )
    module = load_file("test", file, "test_misspelled_")
    assert list(misspelled(classes_beside(module.Mine))) == []


def test_verbs_and_helpers_are_no_note(tmp_path: Path) -> None:
    assert said_of(written(tmp_path)) == []
