"""A feature is a folder: what serves names none, and what runs, measures and shows imports none by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from servesim.checking.world import World, toy_trace
from servesim.contracts.feature import installed
from servesim.contracts.part import verbs
from servesim.engine.telling import Telling
from tests.support.documents import ROOT

FOLDERS = (
    *("bars", "bursts", "classes", "data_parallel", "failures", "handoff", "offload", "scaling", "view_lag"),
    *(path.name for path in (ROOT / "servesim" / "features").iterdir() if (path / "__init__.py").is_file()),
)
"""Those that there are, and those that a checkout may lack."""
ENGINE = [*(ROOT / "servesim" / "engine").rglob("*.py")]
NAMELESS = [
    path
    for folder in ("servesim/engine", "servesim/run", "servesim/metrics", "servesim/cli", "servesim/cost", "reports")
    for path in (ROOT / folder).rglob("*.py")
]


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported, anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def names(tree: ast.AST) -> Iterator[str]:
    """All that code is called or says, but for what is written to readers: docstrings."""
    documented = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Constant(value=str(text)) if id(node) not in documented:
                yield text
    yield from imported(tree)


def of_features(tree: ast.AST) -> list[str]:
    """Names that have a folder of features in them, as a word."""
    word = re.compile(rf"(?<![a-z])({'|'.join({*FOLDERS})})(?![a-z])")
    return [name for name in names(tree) if word.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())]


@pytest.mark.parametrize("path", ENGINE, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_serves_names_no_feature(path: Path) -> None:
    assert of_features(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "if self.handoff is not None: pass",
        "def offload_left(request): pass",
        "cluster = Cluster(failures=None)",
        "kind = getattr(scenario, 'view_lag')",
        "from servesim.features.data_parallel import Ranks",
        "class Handoff: pass",
        "part = DataParallel(2)",
    ],
)
def test_the_scan_finds_a_feature_in(line: str) -> None:
    assert of_features(ast.parse(line))


def test_nothing_but_experiments_and_checks_imports_a_feature_by_name() -> None:
    found = {
        str(path.relative_to(ROOT)): module
        for path in NAMELESS
        for module in imported(ast.parse(path.read_text(encoding="utf-8")))
        if f"{module}.".startswith("servesim.features.")
    }
    assert found == {}
    assert len(NAMELESS) > 100


def test_a_run_without_features_has_one_part_and_calls_no_verb_of_another() -> None:
    cluster = World(toy_trace([0], [5], [2])).run()
    assert [type(part) for part in cluster.parts] == [Telling]
    for verb in ("takes", "reaches", "gives_up", "held"):
        assert verbs(cluster.parts, verb) == ()
    assert not of_features(ast.parse(" ".join(f"{name};" for name in vars(cluster))))


def test_features_stand_in_an_order_of_their_own() -> None:
    ranks = [feature.rank for feature in installed()]
    assert len({*ranks}) == len(ranks)
    assert ranks == sorted(ranks)
