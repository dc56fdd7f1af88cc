"""docs/design.md lists the files that a step of a plain run passes through, and they stay few lines."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import servesim
from servesim.engine.cluster import Cluster
from servesim.engine.core import EngineCore
from tests.support.documents import ROOT

MOST_LINES = 4_996
"""Lines of the files listed. Lower it when they have become fewer."""
PLAIN: dict[str, Any] = {
    "trace": "synth:rate=20,prompt=512,output=32",
    "requests": 60,
    "model": "llama-3.1-8b",
    "gpu": "h200",
    "scheduler": "vllm",
    "kv": "paged",
    "mode": "reference",
}


@contextmanager
def traced(found: list[set[str]]) -> Iterator[None]:
    """Collect the files of functions called while a cluster runs, a set for each step: from one plan to the next."""
    run, plan = Cluster.run, EngineCore.plan.__code__

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            if frame.f_code is plan:
                found.append(set())
            if found:
                found[-1].add(frame.f_code.co_filename)

    def watched(cluster: Cluster) -> None:
        sys.setprofile(called)
        try:
            run(cluster)
        finally:
            sys.setprofile(None)

    Cluster.run = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Cluster.run = run  # type: ignore[method-assign]


def files_of_a_step() -> set[str]:
    """Files of the most common steps: all requests decode, none comes or leaves, and the prices are known."""
    servesim.simulate(PLAIN)
    steps: list[set[str]] = []
    with traced(steps):
        servesim.simulate(PLAIN)
    ours = {str(path): path.relative_to(ROOT).as_posix() for path in ROOT.glob("[sp]*/**/*.py")}
    kinds = Counter(frozenset(ours[name] for name in step if name in ours) for step in steps)
    (most, count), (_, second) = kinds.most_common(2)
    assert count > 2 * second
    return set(most)


def contracts_in(file: str) -> set[str]:
    """Contracts that a file imports."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    modules = (node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {f"{module.replace('.', '/')}.py" for module in modules if module.startswith("servesim.contracts.")}


def listed() -> list[str]:
    """The files that the page lists: those of a step, then the other contracts."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = page.partition("## One step, file by file\n")[2].partition("\n## ")[0]
    return re.findall(r"\]\(\.\./([\w/]+\.py)\)", section)


def test_the_page_lists_the_files_that_a_step_passes_through_and_the_contracts_they_import() -> None:
    passed = files_of_a_step()
    assert len(listed()) == len({*listed()})
    assert {*listed()[: len(passed)]} == passed
    assert {*listed()} == passed.union(*map(contracts_in, passed))


def test_the_files_of_a_step_have_few_lines() -> None:
    assert sum((ROOT / file).read_text(encoding="utf-8").count("\n") for file in listed()) <= MOST_LINES
