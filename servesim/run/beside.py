"""Resolution of paths in a scenario file relative to that file, regardless of the working directory of a command.

A name without a file next to the scenario is left unchanged (it is a bundled name, or a path relative to the working
directory). So are names in the scenario.yaml of a result: they are relative to the directory in which the run was
started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from servesim.parsing import split_changes

SHEETS = (".yaml", ".yml", ".json")
POLICIES = ("scheduler", "kv", "router", "speculation", "acceptance", "scaler")
_SUMMARY = "summary.json"
Names = Callable[[str], str]


def beside(settings: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the settings of a scenario file, with names of files next to it replaced by paths to them."""
    folder = file.parent
    if folder == Path() or (folder / _SUMMARY).is_file():
        return dict(settings)

    def found(name: str) -> str:
        there = folder / name
        return str(there) if name and not Path(name).is_absolute() and _exists(there) else name

    changed = {key: _in(value, _places(str(key), found)) for key, value in settings.items() if key != "pools"}
    if isinstance(pools := settings.get("pools"), list):
        changed["pools"] = [beside(pool, file) if isinstance(pool, Mapping) else pool for pool in pools]
    elif "pools" in settings:
        changed["pools"] = pools
    axes = settings.get("axes")
    if isinstance(axes, Mapping):
        changed["axes"] = {key: _in(value, _places(str(key), found)) for key, value in axes.items()}
    return changed


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for a file
        return False


def _in(value: Any, place: Names) -> Any:
    """Return a value with `place` applied to every string in it."""
    if isinstance(value, str):
        return place(value)
    if isinstance(value, Mapping):
        return {key: _in(inner, place) for key, inner in value.items()}
    return [_in(inner, place) for inner in value] if isinstance(value, list) else value


def _places(key: str, found: Names) -> Names:
    """Return the function that resolves file names in the values of a setting."""
    outer = key.partition(".")[0]
    if outer == "trace":
        return lambda text: text if text.startswith(("preset:", "synth:", "object:")) else found(text)
    if outer in ("model", "gpu", "host", "kernel_tables"):
        return lambda text: _sheet(text, found, folders=outer in ("model", "kernel_tables"))
    if outer == "shape":
        return lambda text: _after(text, "trace=", found)
    if outer == "features":
        return lambda text: ",".join(_policy(part, found) for part in text.split(","))
    if outer in POLICIES:
        return lambda text: _policy(text, found)
    return lambda text: text


def _sheet(text: str, found: Names, folders: bool) -> str:
    name = split_changes(text)[0]
    if not name.endswith(SHEETS) and not (folders and ("/" in name or "\\" in name)):
        return text  # a name, even if a file next to it has the same name
    return found(name) + text[len(name) :]


def _after(text: str, mark: str, found: Names) -> str:
    before, marked, name = text.partition(mark)
    return f"{before}{marked}{found(name)}" if marked else text


def _policy(text: str, found: Names) -> str:
    """Resolve the path in `file.py:Class`, in a parameter that is a file (`table=counts.json`), or in a file name
    alone."""
    path, py, rest = text.partition(".py:")
    if py:
        return f"{found(f'{path}.py')}:{rest}"
    if ":" in text or "=" in text:
        return ",".join(
            _after(part, "=", lambda name: found(name) if "." in name else name) for part in text.split(",")
        )
    return found(text) if "." in text else text
