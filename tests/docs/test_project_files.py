"""CITATION.cff, NOTICE and CHANGELOG say what the package says."""

from __future__ import annotations

import re
import tomllib

import yaml

import servesim
from tests.support.documents import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # what the format 1.2.0 demands
    assert citation["version"] == servesim.__version__ == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_every_dependency_is_in_the_notice() -> None:
    extras = [p for extra, packages in PROJECT["optional-dependencies"].items() if extra != "test" for p in packages]
    names = {re.split(r"[=><\[~ ]", package)[0] for package in (*PROJECT["dependencies"], *extras)}
    notice = (ROOT / "NOTICE").read_text()
    assert len(names) > 12
    assert [name for name in sorted(names) if f"{name} (" not in notice] == []


def test_all_data_that_is_installed_is_in_the_notice() -> None:
    notice = (ROOT / "NOTICE").read_text()
    folders = [path.name for path in (ROOT / "calibrate" / "tables").iterdir() if any(path.glob("*.parquet"))]
    named = re.search(r"calibrate/tables/\{(.*)\}", notice)
    assert named is not None
    assert sorted(named[1].split(",")) == sorted(folders)
    data = [*(ROOT / "traces" / "presets").glob("*.json"), *(ROOT / "calibrate" / "tables" / "host").glob("*.yaml")]
    assert [path.name for path in data if path.name not in notice] == []


def test_the_notice_is_installed_with_the_licence() -> None:
    assert {"LICENSE", "NOTICE"} <= set(PROJECT["license-files"])


def test_the_changelog_names_the_version() -> None:
    heads = re.findall(r"^## \[(.*)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert heads[0] == "Unreleased"
    assert PROJECT["version"] in (ROOT / "CHANGELOG.md").read_text()
