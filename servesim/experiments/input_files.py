"""The files a scenario refers to, and their hashes: what a result depends on besides settings and code.

Every place of a scenario where a file can be named is known here: the trace and what is joined to it, the model, the
data sheet of the GPU, host terms, kernel tables, the code of policies and features that are not built in, and their
parameters. A
folder stands for all files in it, that of a model for its config.json.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from servesim.contracts import REGISTRIES
from servesim.contracts.feature import features, of_user
from servesim.errors import UserError
from servesim.parsing import split_changes
from servesim.run.scenario import Scenario

SHEETS = (".yaml", ".yml")
DRAWN = ("preset:", "synth:", "object:")
"""Beginnings of traces that are no files."""
LARGE = 1 << 20
"""Files from this size on are hashed once for each time they were written."""


def input_digests(scenario: Scenario) -> dict[str, str]:
    """Return sha256 by name, as the scenario has it, sorted; names that lead to no file are left out."""
    found = {}
    for name, path in _named(scenario):
        inside = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        found.update({str(name / p.relative_to(path)): digest_of(p) for p in inside if p.is_file()})
    return dict(sorted(found.items()))


def digest_of(path: Path) -> str:
    """Return the sha256 (hex) of a file's bytes."""
    status = path.stat()
    if status.st_size < LARGE:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return _digest(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1024)
def _digest(path: Path, written_ns: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named(scenario: Scenario) -> Iterator[tuple[Path, Path]]:
    """Yield (name, place) of files and folders, whether they exist or not."""
    from servesim.traces.shape import parse

    if not scenario.trace.startswith(DRAWN):
        yield _same(scenario.trace)
    for text in scenario.shape:
        with suppress(UserError):  # a step that is none: its cell says what is wrong with it
            yield from (_same(value) for value in _texts(vars(parse(text))) if not value.startswith(DRAWN))
    yield _model(split_changes(scenario.model)[0])
    sheet = split_changes(scenario.gpu)[0]
    if sheet.endswith(SHEETS):
        yield _same(sheet)
    if Path(scenario.host).is_file():  # a name of shipped terms is none
        yield _same(scenario.host)
    if scenario.kernel_tables is not None:
        yield _same(scenario.kernel_tables)
    for registry in REGISTRIES:
        policy = getattr(scenario, registry.kind, None)
        if policy is not None:
            yield from _code(registry, policy["name"])
            parameters = _texts([value for key, value in policy.items() if key != "name"])
            yield from (_model(value) for value in parameters)
    for name in (*features.names(), *scenario.features):
        yield from _code(features, name)
    for feature in of_user(scenario.features):
        yield from (_model(value) for value in _texts(feature.settings(scenario).model_dump()))


def _same(name: str) -> tuple[Path, Path]:
    return Path(name), Path(name)


def _model(name: str) -> tuple[Path, Path]:
    config = Path(name) / "config.json"
    return (config, config) if config.is_file() else _same(name)


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value, whatever it is made of."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


def _code(registry: Any, name: str) -> Iterator[tuple[Path, Path]]:
    """Yield the file of a user's policy, or the package that an installed one comes in."""
    head, py, _ = name.partition(".py:")
    if py:
        yield _same(f"{head}.py")
        return
    try:
        cls, _ = registry.resolve(name)
    except UserError:  # likewise; and "none" is none
        return
    root = cls.__module__.partition(".")[0]
    source = getattr(sys.modules.get(root), "__file__", None)
    if root != "servesim" and source is not None:
        path = Path(source)
        yield Path(root), path.parent if path.name == "__init__.py" else path
