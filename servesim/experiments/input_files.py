"""Files that a scenario refers to, and their hashes. Together with settings and code, they are the inputs of a result.

All places in a scenario that can name a file are covered here: the trace and the files joined to it, the model, the GPU
data sheet, host terms, kernel tables, the code of policies and features that are not built in, and their parameters. A
folder stands for all files in it, or for its config.json if it is a model's folder.
"""

from __future__ import annotations

import hashlib
import stat
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
from servesim.plugins.trust import code_in
from servesim.run.pools import pool_scenarios
from servesim.run.scenario import Scenario
from servesim.run.trace_source import DRAWN, OBJECT

SHEETS = (".yaml", ".yml")
NO_FILES = (*DRAWN, OBJECT)
"""Prefixes of traces that are not files."""
LONGEST = 256
"""Length in characters from which a text is assumed not to name a file."""
LARGE = 1 << 20
"""Minimum size in bytes of files that are not hashed again unless modified."""


def input_digests(scenario: Scenario) -> dict[str, str]:
    """Return the sha256 of each file by its name in the scenario, sorted. Leave out names for which there is no
    file."""
    found = {}
    scenarios = [scenario, *(pool.scenario for pool in pool_scenarios(scenario) if scenario.pools)]
    for name, path in dict.fromkeys(named for one in scenarios for named in _named(one)):
        inside = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        found.update({str(name / p.relative_to(path)): digest_of(p) for p in inside if p.is_file()})
    return dict(sorted(found.items()))


def digests_in(value: Any) -> dict[str, str]:
    """Return the sha256 of each file that is named by a text in a value, as a whole or as `file.py:Class`."""
    files = [Path(text) for text in _texts(value) if len(text) < LONGEST and Path(text).is_file()]
    return {str(path): digest_of(path) for path in (*files, *code_in(value))}


def digest_of(path: Path) -> str:
    """Return the sha256 (hex) of a file's bytes."""
    status = path.stat()
    if stat.S_ISFIFO(status.st_mode):
        raise UserError(f"{path}: is a pipe, which can be read only once; copy it to a file")
    if status.st_size < LARGE:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return _digest(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1024)
def _digest(path: Path, written_ns: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named(scenario: Scenario) -> Iterator[tuple[Path, Path]]:
    """Yield (name, path) of each file or folder, whether or not it exists."""
    from servesim.traces.shape import parse

    if not scenario.trace.startswith(NO_FILES):
        yield _same(scenario.trace)
    for text in scenario.shape:
        with suppress(UserError):  # invalid step: its cell reports the error
            yield from (_same(value) for value in _texts(vars(parse(text))) if not value.startswith(NO_FILES))
    yield _model(split_changes(scenario.model)[0])
    sheet = split_changes(scenario.gpu)[0]
    if sheet.endswith(SHEETS):
        yield _same(sheet)
    if Path(scenario.host).is_file():  # not if it names bundled terms
        yield _same(scenario.host)
    if scenario.kernel_tables is not None:
        yield _same(scenario.kernel_tables)
    for registry in REGISTRIES:
        policy = getattr(scenario, registry.kind, None)
        if policy is not None:
            yield from _code(registry, policy["name"])
            parameters = _texts([value for key, value in policy.items() if key != "name"])
            yield from (_model(value) for value in parameters)
            yield from ((path, path) for path in code_in(policy))
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
    """Yield every string in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


def _code(registry: Any, name: str) -> Iterator[tuple[Path, Path]]:
    """Yield the file of a user's policy, or the package of an installed policy."""
    head, py, _ = name.partition(".py:")
    if py:
        yield _same(f"{head}.py")
        return
    try:
        cls, _ = registry.resolve(name)
    except UserError:  # its cell reports it; also for "none"
        return
    root = cls.__module__.partition(".")[0]
    source = getattr(sys.modules.get(root), "__file__", None)
    if root != "servesim" and source is not None:
        path = Path(source)
        yield Path(root), path.parent if path.name == "__init__.py" else path
