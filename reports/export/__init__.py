"""Results in other tools' formats."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TextIO

from servesim.errors import UserError, suggest
from servesim.run.result import Result

FORMATS = {
    "perfetto": "perfetto",
    "vllm-bench": "vllm_bench",
    "aiperf": "aiperf",
    "csv": "table",
    "markdown": "markdown",
}
"""Names on the command line, mapped to the modules here whose `write` exports the format."""


def export(folder: Path, to: str, out: Path) -> None:
    """Write a result directory in the format `to`, either completely or not at all."""
    from servesim.reports.files import refuse_foreign, writing

    if to not in FORMATS:
        raise UserError(f"unknown format {to!r}{suggest(to, FORMATS)}")
    write: Callable[[Path, TextIO], None] = import_module(f"servesim.reports.export.{FORMATS[to]}").write
    refuse_foreign(out)
    with writing(out) as file:
        write(folder, file)


def one_run(folder: Path, to: str) -> Result:
    """Return the run in a directory; raise UserError if it contains an experiment with many runs."""
    if not (folder / "summary.json").is_file() and (folder / "cells").is_dir():
        raise UserError(
            f"{folder}: contains an experiment, but {to} exports a single run; choose a run in {folder}/cells"
        )
    return Result.load(folder)
