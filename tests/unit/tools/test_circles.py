"""Nothing imports what imports it, in any room or between them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.circles import FOLDERS, ROOT, circles, import_graph, sources


def test_no_circle_of_imports_is_left() -> None:
    graph = import_graph(sources())
    assert circles(graph) == []
    assert graph["servesim.run.simulate"] >= {"servesim.run.setup", "servesim.run.scenario"}  # it has been read
    assert "servesim.reports.priced" in graph["servesim.reports.run"]  # inside a method
    assert "servesim.reports.run" not in graph["servesim.reports.priced"]  # for annotations alone
    assert "servesim.traces.io" in graph["servesim.traces"]  # relative
    assert "servesim.draws" in graph["servesim.contracts.router"]  # `from servesim import draws`
    assert any("servesim.reports.page" in graph[name] for name in graph if name.startswith("servesim_lab."))


def test_every_package_that_is_installed_is_read() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = {line for line in tracked.splitlines() if line.startswith(tuple(f"{name}/" for name in FOLDERS.values()))}
    assert ours <= {path.relative_to(ROOT).as_posix() for path in sources().values()}


def made(root: Path, files: dict[str, str]) -> list[list[str]]:
    """Circles of a checkout with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return circles(import_graph(sources(root)))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("import servesim.run.b", "from servesim.engine import a"),
        ("from servesim.run.b import x", "import servesim.engine.a as other"),
        ("def later():\n    from servesim.run import b", "class A:\n    from servesim.engine.a import y"),
        ("if True:\n    from ..run import b", "try:\n    from ..engine.a import y\nexcept ImportError:\n    pass"),
    ],
)
def test_a_circle_is_found_however_it_is_imported(tmp_path: Path, first: str, second: str) -> None:
    files = {"servesim/engine/a.py": first, "servesim/run/b.py": second}
    assert made(tmp_path, files) == [["servesim.engine.a", "servesim.run.b"]]


def test_a_circle_through_a_package_and_another_folder_is_found(tmp_path: Path) -> None:
    files = {
        "traces/__init__.py": "from .io import load",
        "traces/io.py": "from servesim.workload import stream",
        "servesim/workload/stream.py": "def digest():\n    from servesim.traces import load",
    }
    assert made(tmp_path, files) == [["servesim.traces", "servesim.traces.io", "servesim.workload.stream"]]


def test_types_that_annotations_name_are_no_circle(tmp_path: Path) -> None:
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from servesim.run.b import X\nelse:\n    X = int"
    files = {"servesim/engine/a.py": types, "servesim/run/b.py": "from servesim.engine import a"}
    assert made(tmp_path, files) == []


def test_imports_of_other_distributions_and_of_a_modules_own_name_are_none(tmp_path: Path) -> None:
    files = {"servesim/engine/a.py": "import numpy\nfrom servesim.engine.a import x\nfrom other import a"}
    assert made(tmp_path, files) == []
