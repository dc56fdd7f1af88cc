"""Paths in a scenario file, as they are written on Windows too."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath
from typing import Any

import pytest

from servesim.run import beside as module
from servesim.run.beside import beside

FOLDER = PureWindowsPath(r"D:\work\lab")
THERE = {
    r"D:\work\lab\day.csv",
    r"D:\work\lab\sub\mine.py",
    r"D:\work\lab\sub\counts.csv",
    r"D:\work\lab\cards\gpu.yaml",
    r"D:\work\lab\cards\model",
    r"D:\work\lab\shape.csv",
}


class OnWindows(PureWindowsPath):
    """A path of a machine on which the files of THERE are and no others."""

    def exists(self) -> bool:
        return str(self) in THERE

    def is_file(self) -> bool:
        return self.exists()


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "Path", OnWindows)
    return OnWindows(FOLDER / "scenario.yaml")


@pytest.mark.parametrize(
    ("key", "given", "found"),
    [
        ("trace", "day.csv", r"D:\work\lab\day.csv"),
        ("trace", r"C:\logs\day.csv", r"C:\logs\day.csv"),
        ("trace", "synth:rate=2", "synth:rate=2"),
        ("scheduler", r"sub\mine.py:Mine", r"D:\work\lab\sub\mine.py:Mine"),
        ("scheduler", "sub/mine.py:Mine:eager=1", r"D:\work\lab\sub\mine.py:Mine:eager=1"),
        ("scheduler", r"C:\x\spf.py:Cls", r"C:\x\spf.py:Cls"),
        ("scaler", r"sub\mine.py:Mine", r"D:\work\lab\sub\mine.py:Mine"),
        ("acceptance", r"positions:table=sub\counts.csv", r"positions:table=D:\work\lab\sub\counts.csv"),
        ("acceptance", r"positions:table=C:\x\counts.csv", r"positions:table=C:\x\counts.csv"),
        ("gpu", r"cards\gpu.yaml:bandwidth=1e12", r"D:\work\lab\cards\gpu.yaml:bandwidth=1e12"),
        ("gpu", r"C:\cards\gpu.yaml:bandwidth=1e12", r"C:\cards\gpu.yaml:bandwidth=1e12"),
        ("model", r"cards\model", r"D:\work\lab\cards\model"),
        ("model", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("shape", "burst:at=1,trace=shape.csv", r"burst:at=1,trace=D:\work\lab\shape.csv"),
        ("label", "day.csv", "day.csv"),
    ],
)
def test_what_stands_beside_a_scenario_is_found_on_windows(windows: Any, key: str, given: str, found: str) -> None:
    assert beside({key: given}, windows) == {key: found}


def test_axes_name_files_beside_the_scenario_too(windows: Any) -> None:
    assert beside({"axes": {"trace": ["day.csv", "preset:azure-conv-2023"]}}, windows) == {
        "axes": {"trace": [r"D:\work\lab\day.csv", "preset:azure-conv-2023"]}
    }


def test_names_in_the_scenario_of_a_result_are_those_of_the_run(tmp_path: Path) -> None:
    for name in ("day.csv", "summary.json"):
        (tmp_path / name).touch()
    assert beside({"trace": "day.csv"}, tmp_path / "scenario.yaml") == {"trace": "day.csv"}


@pytest.mark.parametrize("settings", [{5: "day.csv"}, {"pools": [{"name": "a", 5: 6}]}, {"trace": "x" * 5000}])
def test_what_names_nothing_is_left_for_the_scenario_to_refuse(settings: dict[Any, Any], tmp_path: Path) -> None:
    assert beside(settings, tmp_path / "scenario.yaml") == settings
