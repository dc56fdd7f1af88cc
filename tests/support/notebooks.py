"""Notebooks whose cells are run: what they show is what happens. `make docs` puts present outputs into them."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
MEASURING = ROOT / "docs" / "a-real-model.ipynb"
"""Notebook that times a model: it needs torch, and its figures are those of one machine (tests/torch runs it)."""
NOTEBOOKS = sorted(path for path in (ROOT / "docs").glob("*.ipynb") if path != MEASURING)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def executed(path: Path) -> Any:
    """Return a notebook run from its first cell, in a folder of its own; nbclient.exceptions.CellExecutionError where a
    cell fails. What differs from one run to the next, such as times of execution, is left out."""
    notebook = nbformat.read(path, as_version=4)
    path_before = os.environ["PATH"]
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{path_before}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    finally:
        os.environ["PATH"] = path_before
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec",)}
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            output.pop("execution_count", None)
            if "text/plain" in output.get("data", {}):
                output["data"]["text/plain"] = _ADDRESS.sub("", output["data"]["text/plain"])
            if output["output_type"] == "execute_result":
                output["execution_count"] = None
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = number
    return notebook


def main() -> None:
    """Put present outputs into notebooks."""
    for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        nbformat.write(executed(path), path)


if __name__ == "__main__":
    main()
