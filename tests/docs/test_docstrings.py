"""Docstrings and commit titles begin as an American engineer begins them."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.documents import ROOT

FOLDERS = ("servesim", "policies", "traces", "calibrate", "reports", "lab", "benchmarks")
HEADS = re.compile(r"(Of|What|By|As|Take in|The same of)\b")
"""Beginnings without a noun or an imperative."""
ODD = re.compile(r"\b(anew|for ever|nobody)\b")
TITLE = re.compile(r"[a-z][\w./+, -]*: \S+( \S+){2,}")
"""`room: what and why`, of four words at least."""


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, those below attributes too."""
    for node in ast.walk(ast.parse(text)):
        for statement in getattr(node, "body", ()) if isinstance(getattr(node, "body", ()), list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, " ".join(value.value.split())


def wrong(text: str) -> list[tuple[int, str]]:
    return [(line, said[:60]) for line, said in docstrings(text) if HEADS.match(said) or ODD.search(said)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_a_noun_or_an_imperative(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [(str(file.relative_to(ROOT)), *each) for file in files for each in wrong(file.read_text("utf-8"))]
    assert not found


def test_a_head_without_a_noun_is_found() -> None:
    text = '"""Fine."""\nX = 1\n"""By file."""\n\n\ndef f():\n    """Take in that it ends."""\n'
    text += '\n\nclass A:\n    """Begin anew."""\n'
    assert wrong(text) == [(3, "By file."), (7, "Take in that it ends."), (11, "Begin anew.")]


def test_the_latest_commits_say_what_and_why() -> None:
    log = subprocess.run(["git", "log", "-10", "--no-merges", "--format=%s"], cwd=ROOT, capture_output=True, text=True)
    if log.returncode:
        pytest.skip("no checkout")
    assert not [title for title in log.stdout.splitlines() if not TITLE.match(title)]
