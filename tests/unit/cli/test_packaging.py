"""What the package declares is what the checkout holds."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import servesim

ROOT = Path(__file__).resolve().parents[3]
MAPPED = ("policies", "traces", "calibrate", "reports")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_folder_is_declared() -> None:
    found = set()
    for top in ("servesim", *MAPPED):
        for init in (ROOT / top).rglob("__init__.py"):
            name = ".".join(init.parent.relative_to(ROOT).parts)
            found.add(name if top == "servesim" else f"servesim.{name}")
    assert found == set(project()["tool"]["setuptools"]["packages"])


def test_every_folder_of_the_laboratory_is_declared_and_none_is_in_the_product() -> None:
    declared = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [init.parent.relative_to(ROOT / "lab").parts for init in (ROOT / "lab").rglob("__init__.py")]
    assert {".".join(("servesim_lab", *parts)) for parts in folders} == set(declared)
    assert not [name for name in project()["tool"]["setuptools"]["packages"] if "lab" in name.split(".")]


def test_the_version_is_told_once_and_the_same() -> None:
    assert project()["project"]["version"] == servesim.__version__
    assert tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]["version"] == servesim.__version__


def test_every_dependency_is_locked() -> None:
    locked = {line.partition("==")[0].lower() for line in (ROOT / "requirements.lock").read_text().splitlines()}
    extras = project()["project"]["optional-dependencies"]
    own = [name for name in extras["test"] if name.startswith("servesim[")]  # other extras, by name
    named = [extra for name in own for extra in name.removeprefix("servesim[").removesuffix("]").split(",")]
    wanted = [*project()["project"]["dependencies"], *(name for name in extras["test"] if name not in own)]
    for requirement in [*wanted, *(name for extra in named for name in extras[extra])]:
        name = requirement.partition(">")[0].partition("=")[0].partition("[")[0]
        assert name.lower() in locked, f"{name} is not in requirements.lock"
