"""Changes of a module, one place at a time: an operator, comparison, number or statement (tests.support.mutants)."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
COMPARED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
CALCULATED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "bisect_left": "bisect_right"}


class Mutant(NamedTuple):
    """One change of a module."""

    module: str
    line: int
    number: int
    """Among the changes of the module, in the order of its syntax tree."""
    told: str
    """What the line was, and is now."""

    @property
    def key(self) -> str:
        """How mutants.txt names it: by what it says, so that lines may move."""
        return f"{self.module}: {self.told}"

    @property
    def digest(self) -> str:
        """How a later run knows it: the change of a module that is the same in every byte."""
        source = hashlib.sha256((ROOT / self.module).read_bytes()).hexdigest()[:16]
        return f"{source} {self.number}"


def _edits(tree: ast.AST) -> Iterator[tuple[ast.AST, Any]]:
    """Yield each place of a module that can be changed, and a function that changes it."""
    typed = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    skipped = {inner for each in typed if isinstance(each, ast.AST) for inner in ast.walk(each)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
            yield node, lambda n=node: n.ops.__setitem__(0, COMPARED[type(n.ops[0])]())
        elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in CALCULATED:
            yield node, lambda n=node: setattr(n, "op", CALCULATED[type(n.op)]())
        elif isinstance(node, ast.BoolOp):
            yield node, lambda n=node: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, lambda n=node: setattr(n, "op", ast.UAdd())
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            yield node, lambda n=node: setattr(n, "value", not n.value if isinstance(n.value, bool) else n.value + 1)
        elif isinstance(node, ast.IfExp):
            yield node, lambda n=node: n.__dict__.update(body=n.orelse, orelse=n.body)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SWAPPED:
            yield node, lambda n=node: setattr(n.func, "id", SWAPPED[n.func.id])
        elif isinstance(node, ast.Continue | ast.Break | ast.Expr) and not _says(node):
            yield node, None


def _says(node: ast.AST) -> bool:
    """Return whether a statement is a docstring, or yields."""
    return isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call)


def _skipped(tree: ast.Module) -> set[int]:
    """Return the lines whose changes say nothing: imports, __slots__, annotations, texts of errors."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.Assert) or (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__slots__"
        ):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def changed(source: str, number: int) -> tuple[str, int, str]:
    """Return a module with its change `number`, the line of that, and what the statement was and is. IndexError where
    there are not as many."""
    tree = ast.parse(source)
    node, change = [*_edits(tree)][number]
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    holder: ast.AST = node
    while not isinstance(holder, ast.stmt):
        holder = parents[holder]
    before = _shown(holder)
    if change is None:
        put = ast.copy_location(ast.Pass(), node)
        for _, value in ast.iter_fields(parents[node]):
            if isinstance(value, list) and node in value:
                value[value.index(node)] = put
        after = "pass"
    else:
        change()
        after = _shown(holder)
    line: int = node.lineno  # type: ignore[attr-defined]
    return ast.unparse(ast.fix_missing_locations(tree)), line, f"{before}  ->  {after}"


def _shown(statement: ast.AST) -> str:
    """Return a statement in one line: of a compound one its head."""
    return " ".join(ast.unparse(statement).split("\n")[0].split())


def places(module: str) -> list[tuple[str, int, int]]:
    """Return the changes that can be made in a module, as (module, line, number)."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    skipped = _skipped(tree)
    lines = [node.lineno for node, _ in _edits(tree)]  # type: ignore[attr-defined]
    return [(module, line, number) for number, line in enumerate(lines) if line not in skipped]


def mutant_at(module: str, number: int) -> Mutant | None:
    """Return a mutant of a module; None where the change says the same as before."""
    _, line, told = changed((ROOT / module).read_text(encoding="utf-8"), number)
    before, after = told.split("  ->  ")
    return Mutant(module, line, number, told) if before != after else None
