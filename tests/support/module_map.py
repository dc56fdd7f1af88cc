"""docs/map.md: every module with the first sentence of its docstring. `make docs` writes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "map.md"
ROOMS = (
    "contracts",
    "plugins",
    "engine",
    "records",
    "workload",
    "cost",
    "hardware",
    "versions",
    "metrics",
    "intervals",
    "run",
    "features",
    "launch",
    "live",
    "experiments",
    "checking",
    "cli",
)
BESIDE = ("policies", "traces", "calibrate", "reports", "lab")
HEAD = """# Map

Every module with the first sentence of its docstring. Made by `make docs`; do not edit it by hand.
[design.md](design.md) says how the folders hang together.
"""


def page() -> str:
    """Return the page as it should be."""
    known = {ROOT / "servesim" / name for name in ROOMS}
    others = sorted(
        path for path in (ROOT / "servesim").iterdir() if (path / "__init__.py").is_file() and path not in known
    )
    assert not others, f"a room that the map does not name: {others[0].name}"
    folders = [ROOT / "servesim", *(ROOT / "servesim" / name for name in ROOMS), *(ROOT / name for name in BESIDE)]
    return HEAD + "".join(section for folder in folders for section in _sections(folder))


def _sections(folder: Path) -> Iterator[str]:
    """A table of the modules of a folder, then those of the folders in it, where they are not named themselves."""
    modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    rows = [f"| [{path.stem}](../{path.relative_to(ROOT)}) | {_first_sentence(path)} |\n" for path in modules]
    if rows:
        about = _first_sentence(folder / "__init__.py") if (folder / "__init__.py").is_file() else ""
        yield f"\n## {folder.relative_to(ROOT)}\n\n{f'{about}{chr(10) * 2}' if about else ''}| module | |\n|---|---|\n"
        yield from rows
    if folder.name != "servesim":
        for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
            yield from _sections(inner)


def _first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, on one line that a table can hold."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", paragraph)[0].replace("|", "\\|")


if __name__ == "__main__":  # make docs
    PAGE.write_text(page(), encoding="utf-8")
