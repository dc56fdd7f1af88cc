"""Circles of imports: `python -m tests.support.circles` lists them.

Imports are read from the sources, those inside functions included: a circle that is put off until a call is one. Left
out are imports under TYPE_CHECKING, of types that only annotations name; and that a module's package is imported before
it, whatever it asks for. A name that Python looks up in a text (`import_module`) is a registry's, and no import.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "servesim": "servesim",
    **{f"servesim.{name}": name for name in ("policies", "traces", "calibrate", "reports")},
    "servesim_lab": "lab",
}
"""Folders of the checkout by the packages they are installed as."""
Graph = Mapping[str, frozenset[str]]
"""Modules by those that import them."""


def sources(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of all modules by name; a package's is its `__init__.py`."""
    return {
        ".".join([package, *path.relative_to(root / folder).with_suffix("").parts]).removesuffix(".__init__"): path
        for package, folder in FOLDERS.items()
        for path in sorted((root / folder).rglob("*.py"))
    }


def import_graph(files: Mapping[str, Path]) -> Graph:
    """Return for each module the others of `files` that it imports."""
    return {name: frozenset(_imported(name, path, files)) - {name} for name, path in files.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of several modules, each in order of names."""
    names = sorted(graph)
    number = {name: i for i, name in enumerate(names)}
    pairs = [(number[name], number[other]) for name in names for other in graph[name]]
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    table = coo_array((np.ones(len(pairs)), (rows, columns)), shape=(len(names), len(names)))
    _, labels = connected_components(table, connection="strong")
    found: dict[int, list[str]] = {}
    for name, label in zip(names, labels.tolist(), strict=True):
        found.setdefault(label, []).append(name)
    return sorted(each for each in found.values() if len(each) > 1)


def _imported(module: str, path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            outer = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*outer, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield from (name for name in (inner if inner in files else base,) if name in files)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those under TYPE_CHECKING."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield from _statements(other)
        else:
            yield from _statements(child)


if __name__ == "__main__":
    found = circles(import_graph(sources()))
    print("\n".join(" <-> ".join(each) for each in found) or "no circles")
    sys.exit(bool(found))
