"""Docstrings of a policy or feature, and its parameters or settings with their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from pathlib import Path
from typing import Any, NamedTuple


class Parameter(NamedTuple):
    """A parameter of a policy, or a setting of a feature."""

    name: str
    type: str
    default: Any
    """Default value, or dataclasses.MISSING if the parameter is required."""
    doc: str


def parameters(cls: type[Any]) -> list[Parameter]:
    """Return the parameters of a policy or the settings of a feature; empty for a connector."""
    if hasattr(cls, "Params"):
        told = field_docs(cls.Params)
        fields = dataclasses.fields(cls.Params)
        return [Parameter(f.name, str(f.type), f.default, told.get(f.name, "")) for f in fields]
    if not hasattr(cls, "Settings"):
        return []
    from servesim.cli.options import type_name

    return [
        Parameter(
            key,
            type_name(field.annotation),
            dataclasses.MISSING if field.is_required() else field.default,
            field.description or "",
        )
        for key, field in zip(cls.keys(), cls.Settings.model_fields.values(), strict=True)
    ]


def field_docs(params: type[Any]) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass and its bases."""
    docs: dict[str, str] = {}
    for cls in reversed(params.__mro__):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        except (OSError, TypeError):
            continue
        assert isinstance(body, ast.ClassDef)
        for line, after in zip(body.body, body.body[1:], strict=False):
            told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if told and isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                docs[line.target.id] = str(after.value.value)  # type: ignore[attr-defined]
    return docs


def idea(cls: type[Any]) -> str:
    """Return the docstrings of a policy's module and class."""
    module = inspect.getmodule(cls)
    told = (module.__doc__ if module else None, cls.__doc__)
    if module is not None and not any(told) and module.__file__:
        told = _source_docs(Path(module.__file__), cls.__name__)
    return "\n\n".join(inspect.cleandoc(text) for text in told if text)


def _source_docs(extension: Path, name: str) -> tuple[str | None, str | None]:
    """Return the docstrings of a compiled module and a class in it, read from the source file next to it."""
    source = extension.with_name(f"{extension.name.partition('.')[0]}.py")
    tree = ast.parse(source.read_text(encoding="utf-8")) if source.is_file() else ast.Module([], [])
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return ast.get_docstring(tree), next((ast.get_docstring(node) for node in classes), None)
